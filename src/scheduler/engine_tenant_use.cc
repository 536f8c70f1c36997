// What tenants use: what a process that asks is told of its own, and what the report says of all.
#include <algorithm>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

std::vector<protocol::TenantUse> Engine::use_of(policy::TenantId tenant, policy::GpuId gpu, uint64_t limit, pid_t viewer) const {
  using namespace protocol;
  std::vector<TenantProcess> processes;
  uint64_t allocated = 0;
  for (const auto& [id, client] : clients_.all()) {
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
    message.gpu_total_bytes = static_cast<uint64_t>(gpus_[gpu].total);
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
