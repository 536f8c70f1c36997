// Writes events of pods to the API server, on a thread of its own, so that nothing waits for it. One that was not taken (no answer, 401,
// 403, 429, 5xx) is tried again, with pauses that double, for an hour; the others do not wait for it. The latest few dozen wait; what
// does not fit is in the log only, where all of them are.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "kubernetes/pods/api_server.h"
#include "kubernetes/pods/pod_limits.h"

namespace nvshare::kubernetes {

class EventRecorder {
 public:
  struct Pace {
    std::chrono::milliseconds first_pause = std::chrono::seconds(2);
    std::chrono::milliseconds longest_pause = std::chrono::minutes(5);
    std::chrono::milliseconds patience = std::chrono::hours(1);
  };
  static constexpr size_t kWaitingMax = 64;

  EventRecorder(ApiServerAddress address, std::string node, Pace pace);
  ~EventRecorder();
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  void record(PodLimits::Notice notice);  // any thread

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    PodLimits::Notice notice;
    std::string time;  // when it happened, as events have it
    Clock::time_point due, given_up;
    std::chrono::milliseconds pause;
  };

  void run();
  bool is_taken(const Waiting& one);  // or never will be
  std::string event_of(const Waiting& one) const;

  ApiServer server_;
  const std::string node_;
  const Pace pace_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);  // as they were recorded
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
