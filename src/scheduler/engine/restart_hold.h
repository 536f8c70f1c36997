// After a restart: what clients ask for waits until the clients of the earlier scheduler are back, or the time for that is over. Pure
// bookkeeping, time is an argument; not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

class RestartHold {
 public:
  // What waited: in the order in which it was asked for; the last that each client wants.
  struct Held {
    std::vector<policy::ClientId> lock_requests;
    std::map<policy::ClientId, policy::MemoryChanged> growths;
  };

  void begin(policy::Instant until) { until_ = until; }
  bool holds() const { return until_.has_value(); }
  std::optional<policy::Instant> until() const { return until_; }  // none: nothing is held

  // While it holds.
  void request_lock(policy::ClientId client) { held_.lock_requests.push_back(client); }
  // What the client has counts at once, what it wants later: what of the event is for now.
  policy::MemoryChanged change_memory(policy::MemoryChanged event) {
    held_.growths.erase(event.client);
    if (event.wanted > 0) held_.growths.emplace(event.client, event);
    event.wanted = 0;
    return event;
  }
  void client_left(policy::ClientId client) {
    held_.growths.erase(client);
    std::erase(held_.lock_requests, client);
  }

  Held end() {
    until_.reset();
    return std::exchange(held_, {});
  }

 private:
  std::optional<policy::Instant> until_;
  Held held_;
};

}  // namespace nvshare::scheduler
