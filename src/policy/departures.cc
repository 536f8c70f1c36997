#include <algorithm>

#include "policy/clients.h"

namespace nvshare::policy {

void DepartedMemory::hold(ClientId client, const Part& part) {
  release(client);
  by_client_.emplace(client, part);
  bytes_ += part.bytes;
}

void DepartedMemory::release(ClientId client) {
  if (const auto part = by_client_.extract(client)) bytes_ -= part.mapped().bytes;
}

void leave(Context& context, const ClientLeft& event) {
  Client* const known = context.state.find(event.client);
  if (known == nullptr) return;
  Client& client = *known;
  Gpu* const gpu = client.indexed.home;
  if (!event.memory_freed) {
    // The driver takes a while to tear a dead process down. All that it may have mapped counts until then, its context included.
    Bytes bytes = client.holds_lock() ? std::max(client.budget.bytes, client.memory.resident) : held(client);
    if (!context.config().memory_reserve_percent) bytes += overhead_of(context.config(), client);
    const Duration grace = event.watched ? context.config().watched_grace : context.config().departed_grace;
    gpu->departed.hold(event.client, {bytes, context.now + grace});
  }
  if (client.turn.passing_since) gpu->switches.passing += context.now - *client.turn.passing_since;
  const TenantId tenant = client.tenant;
  if (client.prefetches.current) gpu->prefetch.client = 0;
  uncount(*gpu, client);
  forget_in_indexes(context.state, *gpu, client);
  gpu->clients.erase(event.client);
  if (!gpu->of_tenant.contains(tenant)) gpu->link.of_tenants.erase(tenant);
}

void departed_freed(State& state, ClientId client) {
  for (auto& [id, gpu] : state.gpus) gpu.departed.release(client);
}

void hold_memory(Context& context, const MemoryHeld& event) {
  const auto gpu = context.state.gpus.find(event.gpu);
  if (gpu == context.state.gpus.end() || context.state.clients.contains(event.client)) return;
  departed_freed(context.state, event.client);
  Bytes bytes = std::max<Bytes>(event.bytes, 0);
  if (!context.config().memory_reserve_percent) bytes += context.config().overhead_default;
  gpu->second.departed.hold(event.client, {bytes, context.now + context.config().watched_grace});
}

void forget_departed(Context& context, Gpu& gpu) {
  std::vector<ClientId> over;
  for (const auto& [id, part] : gpu.departed.by_client()) {
    if (part.until <= context.now) {
      over.push_back(id);
    } else {
      context.wake(gpu, part.until);
    }
  }
  for (const ClientId id : over) gpu.departed.release(id);
}

}  // namespace nvshare::policy
