#include "scheduler/engine/believed_memory.h"

#include <algorithm>
#include <optional>

namespace nvshare::scheduler {

policy::Memory BelievedMemory::believe(RegisteredClient& client, const protocol::MemoryReport& memory) {
  // What it had before a limit was lowered it may still have.
  std::optional<int64_t> allocated_most;
  const KnownGpu& gpu = at_.gpus[client.gpu];
  const Tenant* tenant = at_.tenants.find(client.tenant);
  if (const int64_t limit = tenant != nullptr ? tenant->memory_limit_on(gpu.uuid_text) : 0; limit > 0) {
    allocated_most = std::max(limit + ClaimBound::kSlack, client.believed.allocated);
  }
  client.believed = client.claims.believe(memory, gpu.total, allocated_most);
  keep(client);
  return client.believed;
}

void BelievedMemory::granted(policy::ClientId id, int64_t budget) {
  RegisteredClient* client = at_.clients.find(id);
  if (client == nullptr) return;
  client->claims.granted(budget);
  client->prefetch = 0;
  keep(*client);
}

void BelievedMemory::promised(const policy::SendPrefetch& prefetch) {
  granted(prefetch.client, prefetch.budget);
  if (RegisteredClient* client = at_.clients.find(prefetch.client)) client->prefetch = prefetch.prefetch;
}

void BelievedMemory::prefetched(RegisteredClient& client, const protocol::SwapProgress& message) {
  const bool ends = message.direction == static_cast<uint8_t>(protocol::SwapDirection::kAhead) && message.finished != 0;
  if (!ends || client.prefetch == 0 || message.id != client.prefetch) return;
  client.prefetch = 0;
  client.claims.released();
}

void BelievedMemory::keep(const RegisteredClient& client, bool may_lower) {
  at_.known.keep_on_gpu(client.id, client.most_on_gpu(), may_lower);
}

}  // namespace nvshare::scheduler
