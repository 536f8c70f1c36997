// What this process's tenant has of a GPU, as the scheduler knows it: for programs that ask NVML, whether they use CUDA or not.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/messages.h"

namespace nvshare::interposer {

class Process;

struct TenantUse {
  uint64_t limit = 0;  // bytes; 0 = none
  uint64_t total = 0;  // the GPU's size as programs are to see it
  uint64_t used = 0;   // by all the tenant's processes
  std::vector<protocol::TenantProcess> processes;
};

// Asks the scheduler, on a connection of its own that ends with the answer; this process's own use is put in as it stands now. `total`: as
// the driver says. Without a scheduler (or with one that refuses): this process alone, if it has a limit of its own; else false, and the
// driver's answer stands.
bool ask_tenant_use(Process& process, const uint8_t (&uuid)[16], uint64_t total, TenantUse* use);

}  // namespace nvshare::interposer
