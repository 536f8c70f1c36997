#include <algorithm>

#include "policy/concerns.h"

namespace nvshare::policy {

void leave(Context& context, const ClientLeft& event) {
  Gpu* gpu = context.state.gpu_with(event.client);
  if (!gpu) return;
  Client& client = gpu->clients.at(event.client);
  if (!event.memory_freed) {
    // The driver takes a while to tear a dead process down. All that it may have mapped counts until then, its context included.
    Bytes bytes = client.holds_lock() ? std::max(client.budget, client.memory.resident) : client.memory.resident;
    if (!context.config().memory_reserve_percent) bytes += overhead_of(context.config(), client);
    const Duration grace = event.watched ? context.config().watched_grace : context.config().departed_grace;
    gpu->departed[event.client] = Departed{bytes, context.now + grace};
  }
  if (client.passing_since) gpu->time_passing += context.now - *client.passing_since;
  const TenantId tenant = client.tenant;
  gpu->clients.erase(event.client);
  context.state.gpu_of.erase(event.client);
  const bool is_last =
      std::none_of(gpu->clients.begin(), gpu->clients.end(), [&](const auto& entry) { return entry.second.tenant == tenant; });
  if (is_last) gpu->speeds.erase(tenant);
}

void forget_departed(Context& context, Gpu& gpu) {
  std::erase_if(gpu.departed, [&](const auto& entry) { return entry.second.until <= context.now; });
  for (const auto& [id, departed] : gpu.departed) context.wake(gpu, departed.until);
}

}  // namespace nvshare::policy
