#include "scheduler/clients/tenant_use.h"

#include <algorithm>

#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {

std::vector<protocol::TenantUse> use_of(const Clients& clients, policy::TenantId tenant, policy::GpuId gpu, int64_t total, uint64_t limit,
                                        pid_t viewer) {
  using namespace protocol;
  std::vector<TenantProcess> processes;
  uint64_t allocated = 0;
  for (const auto& [id, client] : clients.all()) {
    if (client.tenant != tenant || client.gpu != gpu) continue;
    allocated += client.memory.charged;
    const pid_t pid = pid_as_seen_by(viewer, client.pid);
    if (pid != 0 && processes.size() < kTenantProcessesMax) processes.push_back({pid, 0, client.memory.charged});
  }
  std::vector<TenantUse> messages;
  size_t first = 0;
  do {
    TenantUse message{};
    message.memory_limit = limit;
    message.gpu_total_bytes = static_cast<uint64_t>(total);
    message.allocated = std::min(allocated, kMemoryBytesMax);
    message.processes = static_cast<uint32_t>(processes.size());
    message.first = static_cast<uint32_t>(first);
    const size_t here = std::min<size_t>(processes.size() - first, kProcessesPerMessage);
    std::copy_n(processes.begin() + static_cast<ptrdiff_t>(first), here, message.process);
    messages.push_back(message);
    first += here;
  } while (first < processes.size());
  return messages;
}

}  // namespace nvshare::scheduler
