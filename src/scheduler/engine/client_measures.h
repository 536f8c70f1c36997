// What a look at a GPU says of clients' memory, beside what they say themselves. Functions, of what the engine's parts hold.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

// NVML lists no process there, and nothing is in use beyond what clients have: so it is not that it cannot list those that have contexts.
bool has_no_contexts(policy::GpuId gpu, const GpuSample& sample, const Clients& clients);

// What the client has there. One that NVML does not list counts by its own report: NVML may see other process numbers than we do; or its
// context is gone and its handles are not, or not yet. A liar gains nothing, because the policy counts what it says against it.
int64_t used_by(const RegisteredClient& client, const GpuSample& sample, bool nvml_sees_pids, const policy::Config& config);

// Bounds its claims by it. `unexplained`: what no listed process has there, less what clients before it took of that.
void see_claims(RegisteredClient& client, const GpuSample& sample, bool nvml_sees_pids, int64_t* unexplained);

// A process that registers has a context, or is about to make one, which NVML shows soon. Until then it counts with the usual size
// (nullopt); all of one owner's with a part of the GPU at most.
std::optional<int64_t> overhead_of_newcomer(const RegisteredClient& client, const KnownGpu& gpu, const Clients& clients,
                                            const Tenants& tenants, const policy::Config& config);

}  // namespace nvshare::scheduler
