// Writes events of pods to the API server, on a loop, so that nothing waits for it. One that was not taken (no answer, 401,
// 403, 429, 5xx) is tried again, with pauses that double, for an hour; the others do not wait for it. The latest few dozen wait; what
// does not fit is in the log only, where all of them are.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "kubernetes/pods/api_client.h"
#include "kubernetes/pods/pod_limits.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes {

class EventRecorder {
 public:
  struct Pace {
    std::chrono::milliseconds first_pause = std::chrono::seconds(2);
    std::chrono::milliseconds longest_pause = std::chrono::minutes(5);
    std::chrono::milliseconds patience = std::chrono::hours(1);
  };
  static constexpr size_t kWaitingMax = 64;

  EventRecorder(LoopThread& loop, ApiServerAddress address, std::string node, Pace pace);
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

  // On the loop's thread, as the members below.
  void add(Waiting one);
  void send_next();
  void answered(const Result<ApiReply>& reply);
  bool is_taken(const Waiting& one, const Result<ApiReply>& reply) const;  // or never will be
  std::string event_of(const Waiting& one) const;

  LoopThread& loop_;
  const std::string node_;
  const Pace pace_;
  std::optional<ApiClient> server_;
  std::deque<Waiting> waiting_;  // as they were recorded
  std::optional<Waiting> sent_;  // not answered yet
  std::optional<Timer> next_due_;
};

}  // namespace nvshare::kubernetes
