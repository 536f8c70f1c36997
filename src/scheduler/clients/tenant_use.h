// What a tenant uses of a GPU, as a process that asks is told of its own tenant.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/clients.h"

namespace nvshare::scheduler {

// Process `viewer` asks, for which that limit holds; `total`: of the GPU, bytes.
std::vector<protocol::TenantUse> use_of(const Clients& clients, policy::TenantId tenant, policy::GpuId gpu, int64_t total, uint64_t limit,
                                        pid_t viewer);

}  // namespace nvshare::scheduler
