// Processes of tenants with limits, and of pods that were granted a GPU, that use a GPU, by NVML, without being clients: they went past the
// library, or their container has none, so no limit holds for them.
// Pure bookkeeping, time is an argument; not thread-safe.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

class BypassWatch {
 public:
  // A program's context may be there a moment before its client is, and a moment after.
  static constexpr policy::Duration kPatience = 10'000'000'000;
  static constexpr policy::Duration kInterval = 1'000'000'000;  // between two looks at a GPU

  struct Process {
    pid_t pid = 0;
    uint64_t start_time = 0;
    std::string program;
    std::string tenant;       // as people know it
    policy::TenantId id = 0;  // 0: the tenant has no clients
    int64_t used = 0;         // bytes of the GPU's memory
    std::string pod;          // its UID; empty: in none
  };
  struct Seen {
    Process process;
    policy::Instant since = 0;
    bool told = false;  // it has lasted for kPatience
  };
  struct Change {
    Process process;
    bool began = false;  // else it ended
  };

  // Whether it is time to look at that GPU again.
  bool is_due(policy::GpuId gpu, policy::Instant now) const {
    const auto at = looked_at_.find(gpu);
    return at == looked_at_.end() || now - at->second >= kInterval;
  }
  // All such processes on the GPU now.
  std::vector<Change> update(policy::GpuId gpu, const std::vector<Process>& processes, policy::Instant now) {
    looked_at_[gpu] = now;
    std::vector<Change> changes;
    std::map<std::pair<pid_t, uint64_t>, Seen> there;
    auto& before = seen_[gpu];
    for (const Process& process : processes) {
      const auto known = before.find({process.pid, process.start_time});
      Seen seen = known == before.end() ? Seen{process, now, false} : Seen{process, known->second.since, known->second.told};
      if (!seen.told && now - seen.since >= kPatience) {
        seen.told = true;
        changes.push_back({process, true});
      }
      there.emplace(std::pair{process.pid, process.start_time}, seen);
    }
    for (const auto& [key, seen] : before) {
      if (seen.told && !there.contains(key)) changes.push_back({seen.process, false});
    }
    before = std::move(there);
    return changes;
  }

  // That have clients, and such a process for long enough.
  std::set<policy::TenantId> tenants() const {
    std::set<policy::TenantId> found;
    for (const auto& [gpu, processes] : seen_) {
      for (const auto& [key, seen] : processes) {
        if (seen.told && seen.process.id != 0) found.insert(seen.process.id);
      }
    }
    return found;
  }
  const std::map<policy::GpuId, std::map<std::pair<pid_t, uint64_t>, Seen>>& seen() const { return seen_; }

  // Tenants that get no turns for it, from now on. Those for which that has changed.
  std::set<policy::TenantId> refuse(std::set<policy::TenantId> tenants) {
    std::set<policy::TenantId> changed;
    std::set_symmetric_difference(refused_.begin(), refused_.end(), tenants.begin(), tenants.end(), std::inserter(changed, changed.end()));
    refused_ = std::move(tenants);
    return changed;
  }
  bool refuses(policy::TenantId tenant) const { return refused_.contains(tenant); }

 private:
  std::map<policy::GpuId, std::map<std::pair<pid_t, uint64_t>, Seen>> seen_;
  std::map<policy::GpuId, policy::Instant> looked_at_;
  std::set<policy::TenantId> refused_;
};

}  // namespace nvshare::scheduler
