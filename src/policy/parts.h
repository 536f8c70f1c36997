// Parts of what policy.h shows of a State, each at what it alone costs: with thousands of clients nobody looks at all of them for one.
#pragma once

#include <optional>
#include <vector>

#include "policy/policy.h"

namespace nvshare::policy {

// As view(): of the client's GPU without other clients and tenants (nullopt: it is not known); of one GPU with that tenant alone and
// without clients; of all GPUs without clients (GpuView::overhead is of all that there are); of one GPU like that, or without tenants as
// well (nullopt: it has no clients and never had any).
std::optional<GpuView> view_of_client(const State& state, ClientId client, Instant now);
GpuView view_of_tenant(const State& state, GpuId gpu, TenantId tenant, Instant now);
std::vector<GpuView> view_of_tenants(const State& state, Instant now);
std::optional<GpuView> view_of_tenants(const State& state, GpuId gpu, Instant now);
std::optional<GpuView> view_of_gpu(const State& state, GpuId gpu);
// Adds clients of a GPU to the list, in the order of their numbers: at most so many, behind the last that it has.
void view_clients(const State& state, GpuId gpu, size_t most, Instant now, std::vector<ClientView>& clients);

// As swap_demands(), of one GPU; false: all of them are 0.
std::vector<SwapDemand> swap_demands(const State& state, GpuId gpu);
bool may_swap(const State& state, GpuId gpu);

// As glimpse(), of the clients that the last step() may have changed.
void glimpse_touched(const State& state, std::vector<ClientGlimpse>& clients);

}  // namespace nvshare::policy
