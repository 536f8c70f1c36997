#include "scheduler/engine/absent_clients.h"

#include <optional>
#include <vector>

namespace nvshare::scheduler {

void AbsentClients::await(policy::Duration grace, policy::Instant now) {
  const size_t absent = at_.known.missing().size();
  if (absent == 0 || grace <= 0) return;
  spdlog::info("{} clients of the previous scheduler live; granting nothing until they are back, for {:.1f} s at most", absent,
               static_cast<double>(grace) / 1e9);
  hold_.begin(now + grace);
  at_.limits.freeze(true, now);
}

void AbsentClients::deadline_reached(policy::Instant now) {
  if (!hold_.holds() || *hold_.until() > now) return;
  spdlog::warn("{} clients of the previous scheduler did not come back in time; going on without them", at_.known.missing().size());
  end_hold(now);
}

void AbsentClients::end_hold_without_absent(policy::Instant now) {
  if (hold_.holds() && at_.known.missing().empty()) end_hold(now);
}

// What the absent may have counts before anybody is granted what waited.
void AbsentClients::end_hold(policy::Instant now) {
  const RestartHold::Held held = hold_.end();
  at_.policy.apply(at_.departures.hold_absent(at_.gpus, at_.settings.policy, now), now);
  at_.looks.see_foreign(now);
  count(now);
  at_.limits.freeze(false, now);
  for (const auto& [id, growth] : held.growths) {
    RegisteredClient* client = at_.clients.find(id);
    if (client == nullptr) continue;
    policy::MemoryChanged event = growth;
    event.memory = at_.believed.believe(*client, client->memory);
    at_.policy.apply(event, now);
  }
  for (const policy::ClientId id : held.lock_requests) {
    if (at_.clients.find(id) != nullptr) at_.policy.apply(policy::LockRequested{id}, now);
  }
}

void AbsentClients::count(policy::Instant now) {
  for (const auto& [id, known] : at_.known.missing()) {
    const Tenant* tenant = at_.tenants.find(known.tenant);
    const std::optional<policy::GpuId> gpu = at_.gpus.find(known.gpu);
    if (tenant == nullptr || !gpu || at_.gpus[*gpu].total == 0 || at_.limits.ledger().knows(id)) continue;
    spdlog::info("client {} of the previous scheduler (pid {}) is not back: what it may have of tenant {}'s memory stays counted", id,
                 known.pid, tenant->id);
    const uint64_t part = part_of(*tenant, known.pid, at_.tenants.cgroups);
    const int64_t node_limit = tenant->memory_limit_on(known.gpu);
    at_.limits.perform(at_.limits.join({id, tenant->id, *gpu, known.own_limit, node_limit, known.charged, known.lease, true, part}, now),
                       now);
  }
}

void AbsentClients::forget(policy::Instant now) {
  struct Ended {
    policy::ClientId id;
    policy::TenantId tenant;
    bool is_another;
  };
  std::vector<Ended> ended;
  for (const auto& [id, known] : at_.known.missing()) {
    // Or it runs another program now, which is a client of its own.
    const std::optional<policy::GpuId> gpu = at_.gpus.find(known.gpu);
    const bool is_another = gpu && at_.clients.of_process(known.pid, *gpu) != nullptr;
    if (is_another || !is_alive_(known.pid, known.start_time)) ended.push_back({id, known.tenant, is_another});
  }
  for (const auto& [id, tenant, is_another] : ended) {
    at_.known.end(id);
    if (Tenant* its = at_.tenants.find(tenant)) its->is_awaited_no_more();
    at_.limits.leave(id, now);
    if (!is_another) {
      at_.departures.absent_ended(id, at_.gpus, now);
    } else if (at_.departures.forget_absent(id)) {
      at_.policy.apply(policy::ClientMemoryFreed{id}, now);
    }
  }
  if (ended.empty()) return;
  at_.tenants.prune();
  at_.tenants.save();
  end_hold_without_absent(now);
}

}  // namespace nvshare::scheduler
