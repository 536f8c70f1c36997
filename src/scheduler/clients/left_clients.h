// Clients that have left and whose memory may not be free yet: of the driver, or because their processes live on. Found by client, by
// process and by the time at which they left. Pure bookkeeping; not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "scheduler/clients/claims.h"

namespace nvshare::scheduler {

// Its process may live and come back; then it has what it had.
struct LeftClient {
  pid_t pid = 0;
  uint64_t start_time = 0;
  policy::GpuId gpu = 0;
  policy::Instant since = 0;
  ClaimBound claims;
  int64_t allocated = 0;
  bool waits_for_end = false;  // of its process, which NVML does not watch
};

class LeftClients {
 public:
  using ByTime = std::set<std::pair<policy::Instant, policy::ClientId>>;

  void put(policy::ClientId id, const LeftClient& left) {
    erase(id);
    all_[id] = left;
    of_process_[{left.pid, left.start_time}].insert(id);
    if (left.waits_for_end) waiting_.emplace(left.since, id);
  }

  void erase(policy::ClientId id) {
    const auto at = all_.find(id);
    if (at == all_.end()) return;
    waiting_.erase({at->second.since, id});
    const auto process = of_process_.find({at->second.pid, at->second.start_time});
    process->second.erase(id);
    if (process->second.empty()) of_process_.erase(process);
    all_.erase(at);
  }

  const LeftClient& at(policy::ClientId id) const { return all_.at(id); }
  const std::map<policy::ClientId, LeftClient>& all() const { return all_; }
  // By the process that they were of, in the order of their ids.
  std::vector<policy::ClientId> of_process(pid_t pid, uint64_t start_time) const {
    const auto at = of_process_.find({pid, start_time});
    if (at == of_process_.end()) return {};
    return {at->second.begin(), at->second.end()};
  }
  // Those that wait for the end of their process.
  const ByTime& waiting() const { return waiting_; }

 private:
  std::map<policy::ClientId, LeftClient> all_;
  std::map<std::pair<pid_t, uint64_t>, std::set<policy::ClientId>> of_process_;
  ByTime waiting_;
};

}  // namespace nvshare::scheduler
