#include <algorithm>

#include "policy/concerns.h"

namespace nvshare::policy {

void leave(Context& context, const ClientLeft& event) {
  Client* const known = context.state.find(event.client);
  if (known == nullptr) return;
  Client& client = *known;
  Gpu* const gpu = client.home;
  if (!event.memory_freed) {
    // The driver takes a while to tear a dead process down. All that it may have mapped counts until then, its context included.
    Bytes bytes = client.holds_lock() ? std::max(client.budget, client.memory.resident) : held(client);
    if (!context.config().memory_reserve_percent) bytes += overhead_of(context.config(), client);
    const Duration grace = event.watched ? context.config().watched_grace : context.config().departed_grace;
    gpu->departed[event.client] = Departed{bytes, context.now + grace};
    gpu->departed_bytes += bytes;
  }
  if (client.passing_since) gpu->time_passing += context.now - *client.passing_since;
  const TenantId tenant = client.tenant;
  if (client.prefetch) gpu->prefetching = 0;
  uncount(*gpu, client);
  forget_in_indexes(context.state, *gpu, client);
  gpu->clients.erase(event.client);
  if (!gpu->of_tenant.contains(tenant)) gpu->speeds.erase(tenant);
}

void departed_freed(State& state, ClientId client) {
  for (auto& [id, gpu] : state.gpus) {
    if (const auto left = gpu.departed.extract(client)) gpu.departed_bytes -= left.mapped().bytes;
  }
}

void hold_memory(Context& context, const MemoryHeld& event) {
  const auto gpu = context.state.gpus.find(event.gpu);
  if (gpu == context.state.gpus.end() || context.state.clients.contains(event.client)) return;
  departed_freed(context.state, event.client);
  Bytes bytes = std::max<Bytes>(event.bytes, 0);
  if (!context.config().memory_reserve_percent) bytes += context.config().overhead_default;
  gpu->second.departed[event.client] = Departed{bytes, context.now + context.config().watched_grace};
  gpu->second.departed_bytes += bytes;
}

void forget_departed(Context& context, Gpu& gpu) {
  for (auto at = gpu.departed.begin(); at != gpu.departed.end();) {
    const Departed& departed = at->second;
    if (departed.until <= context.now) {
      gpu.departed_bytes -= departed.bytes;
      at = gpu.departed.erase(at);
    } else {
      context.wake(gpu, departed.until);
      ++at;
    }
  }
}

}  // namespace nvshare::policy
