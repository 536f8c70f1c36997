// Parts of what policy.h shows of a State, each at what it alone costs: with thousands of clients nobody looks at all of them for one.
#pragma once

#include <optional>
#include <vector>

#include "policy/policy.h"

namespace nvshare::policy {

// As view(): of the client's GPU without other clients and tenants (nullopt: it is not known); of one GPU with that tenant alone and
// without clients; of all GPUs without clients.
std::optional<GpuView> view_of_client(const State& state, ClientId client, Instant now);
GpuView view_of_tenant(const State& state, GpuId gpu, TenantId tenant, Instant now);
std::vector<GpuView> view_of_tenants(const State& state, Instant now);

// As swap_demands() and glimpse(), of one GPU.
std::vector<SwapDemand> swap_demands(const State& state, GpuId gpu);
void glimpse(const State& state, GpuId gpu, std::vector<ClientGlimpse>& clients);

// The GPUs whose clients the last step() may have changed.
const std::vector<GpuId>& settled_last(const State& state);

}  // namespace nvshare::policy
