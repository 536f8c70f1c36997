// Clients of an earlier scheduler that are not back: what they may have counts under their tenants' limits until they have ended. What they
// may have on their GPUs: departures.h.
#include <algorithm>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

bool Engine::is_alive(pid_t pid, uint64_t start_time) const {
  return pid > 0 && start_time != 0 && start_time_if_alive_(pid) == start_time;
}

// It may be stopped, and goes on with what it holds: that is nobody else's of its tenant meanwhile.
void Engine::count_absent(policy::Instant now) {
  for (const auto& [id, known] : known_.missing()) {
    const Tenant* tenant = tenants_.find(known.tenant);
    const std::optional<policy::GpuId> gpu = gpus_.find(known.gpu);
    if (tenant == nullptr || !gpu || gpus_[*gpu].total == 0 || limits_.ledger().knows(id)) continue;
    spdlog::info("client {} of the previous scheduler (pid {}) is not back: what it may have of tenant {}'s memory stays counted", id,
                 known.pid, tenant->id);
    const uint64_t part = part_of(*tenant, known.pid, tenants_.cgroups);
    limits_.perform(
        limits_.join({id, tenant->id, *gpu, known.own_limit, tenant->memory_limit_on(known.gpu), known.charged, known.lease, true, part},
                     now),
        now);
  }
}

void Engine::forget_absent(policy::Instant now) {
  struct Ended {
    policy::ClientId id;
    policy::TenantId tenant;
    bool is_another;
  };
  std::vector<Ended> ended;
  for (const auto& [id, known] : known_.missing()) {
    // Or it runs another program now, which is a client of its own.
    const std::optional<policy::GpuId> gpu = gpus_.find(known.gpu);
    const bool is_another = gpu && clients_.of_process(known.pid, *gpu) != nullptr;
    if (is_another || !is_alive(known.pid, known.start_time)) ended.push_back({id, known.tenant, is_another});
  }
  for (const auto& [id, tenant, is_another] : ended) {
    known_.end(id);
    if (Tenant* its = tenants_.find(tenant)) its->is_awaited_no_more();
    limits_.leave(id, now);
    if (!is_another) {
      departures_.absent_ended(id, gpus_, now);
    } else if (departures_.forget_absent(id)) {
      apply(policy::ClientMemoryFreed{id}, now);
    }
  }
  if (ended.empty()) return;
  tenants_.prune();
  tenants_.save();
  if (hold_ && known_.missing().empty()) end_hold(now);
}

}  // namespace nvshare::scheduler
