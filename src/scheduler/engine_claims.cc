// How much of what clients say of themselves the engine believes: docs/security.md.
#include <algorithm>

#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kGpuBytesMost = int64_t{1} << 42;

}  // namespace

policy::Memory Engine::believe(Client& client, const protocol::MemoryReport& memory) {
  // What it had before a limit was lowered it may still have.
  std::optional<int64_t> allocated_most;
  const Tenant* tenant = tenants_.find(client.tenant);
  if (const int64_t limit = tenant != nullptr ? tenant->memory_limit_on(gpus_[client.gpu].uuid_text) : 0; limit > 0) {
    allocated_most = std::max(limit + ClaimBound::kSlack, client.believed.allocated);
  }
  client.believed = client.claims.believe(memory, gpus_[client.gpu].total, allocated_most);
  keep_on_gpu(client);
  return client.believed;
}

// Before it hears of it.
void Engine::note_grant(policy::ClientId client, int64_t budget) {
  Client* granted = clients_.find(client);
  if (granted == nullptr) return;
  granted->claims.granted(budget);
  granted->prefetch = 0;
  keep_on_gpu(*granted);
}

void Engine::prefetch(const policy::SendPrefetch& action) {
  note_grant(action.client, action.budget);
  if (Client* client = clients_.find(action.client)) client->prefetch = action.prefetch;
  messenger_.send_to(action.client, protocol::Prefetch{action.prefetch, static_cast<uint64_t>(action.budget)});
}

// Unless a grant has taken the promise over.
void Engine::note_prefetched(Client& client, const protocol::SwapProgress& message) {
  const bool ends = message.direction == static_cast<uint8_t>(protocol::SwapDirection::kAhead) && message.finished != 0;
  if (!ends || client.prefetch == 0 || message.id != client.prefetch) return;
  client.prefetch = 0;
  client.claims.released();
}

void Engine::keep_on_gpu(const Client& client, bool may_lower) { known_.keep_on_gpu(client.id, client.most_on_gpu(), may_lower); }

// CUDA's figure is what programs can have, and NVML's a little more: where there is one, only figures close to it are believed. Clients
// of one GPU say the same, but for those that lie, so a larger one is taken: a smaller one would take memory from everybody.
void Engine::size_gpu(policy::GpuId id, int64_t claimed, policy::Instant now) {
  KnownGpu& gpu = gpus_[id];
  const bool credible = gpu.nvml_total == 0 || (claimed <= gpu.nvml_total && claimed > gpu.nvml_total / 10 * 9);
  const int64_t before = gpu.total;
  const int64_t figure = std::min(claimed, kGpuBytesMost);
  if (before == 0) {
    gpu.real_total = credible ? figure : gpu.nvml_total;
    if (gpu.nvml_total == 0 && settings_.gpu_physical_memory) gpu.real_total = std::max(gpu.real_total, *settings_.gpu_physical_memory);
  } else if (credible && figure > gpu.real_total + gpu.real_total / 100) {
    gpu.real_total = figure;
  }
  gpu.total = settings_.gpu_physical_memory ? std::min(*settings_.gpu_physical_memory, gpu.real_total) : gpu.real_total;
  if (gpu.total == before) return;
  spdlog::info("{} ({}): {} MiB{}", gpu.uuid_text, gpu.name, gpu.total >> 20,
               gpu.configured() ? fmt::format(", as configured, of {} MiB", gpu.real_total >> 20) : "");
  apply(policy::GpuAppeared{id, gpu.total}, now);
}

}  // namespace nvshare::scheduler
