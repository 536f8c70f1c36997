// Writes events of pods to the API server, on a thread of its own, so that nothing waits for it. While the API server is gone the latest
// few dozen are kept; what does not fit is in the log only, where all of them are.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "kubernetes/api_server.h"
#include "kubernetes/pod_limits.h"

namespace nvshare::kubernetes {

class EventTeller {
 public:
  EventTeller(ApiServerAddress address, std::string node);
  ~EventTeller();
  EventTeller(const EventTeller&) = delete;
  EventTeller& operator=(const EventTeller&) = delete;

  void tell(PodLimits::Notice notice);  // any thread

 private:
  void run();
  std::string event_of(const PodLimits::Notice& notice) const;

  ApiServer server_;
  const std::string node_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PodLimits::Notice> waiting_;  // guarded by mutex_
  bool stop_ = false;                      // guarded by mutex_
  std::thread thread_;                     // last
};

}  // namespace nvshare::kubernetes
