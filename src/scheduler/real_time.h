// The loop's thread at real-time priority (SCHED_RR, 1) while it makes reports for viewers: their work must not make grants wait for a
// processor (docs/adr/0028). Only that thread: those that it makes are ordinary (SCHED_RESET_ON_FORK).
//
// It never keeps a processor: whenever it has run for kInARowUs without a pause, the kernel sends SIGXCPU (RLIMIT_RTTIME), whose handler
// makes it ordinary, also in a loop without end; for kOrdinaryNs it stays so.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "loop/event_loop.h"
#include "scheduler/log.h"

namespace nvshare::scheduler {

class RealTime {
 public:
  static constexpr int64_t kInARowUs = 100'000;
  static constexpr int64_t kOrdinaryNs = 1'000'000'000;
  static constexpr int64_t kHoldNs = 10'000'000'000;  // viewers where nothing happens ask every five seconds

  // On the loop's thread; one in a process. An error where the kernel does not allow it; then all is as before.
  static Result<std::unique_ptr<RealTime>> begin(EventLoop& loop, int64_t hold_ns = kHoldNs);
  // On the same thread, which is ordinary afterwards.
  ~RealTime();
  RealTime(const RealTime&) = delete;
  RealTime& operator=(const RealTime&) = delete;

  // From now on, until `hold_ns` after the last call.
  void needed();

 private:
  RealTime(EventLoop& loop, FileDescriptor bell, int64_t hold_ns);
  bool switch_on();
  void gave_way();
  void look();

  const int64_t hold_ns_;
  FileDescriptor bell_;  // an eventfd: the handler was there
  bool is_on_ = false;
  bool gave_way_ = false;  // not long ago
  int64_t needed_at_ = 0;
  RepeatedWarnings warnings_;
  Timer timer_;
  Watch bell_watch_;
};

}  // namespace nvshare::scheduler
