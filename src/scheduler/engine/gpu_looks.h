// What a look at the GPUs through NVML means: other programs' memory, contexts' overhead, what of clients' claims is true, and whose part
// of the GPU's time is not what was billed. The policy hears of it. One thread, the engine's.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/engine/believed_memory.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class GpuLooks {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    Clients& clients;
    Gpus& gpus;
    const Tenants& tenants;
    Departures& departures;
    BelievedMemory& believed;
    PolicyDriver& policy;
  };
  explicit GpuLooks(const Neighbours& neighbours) : at_(neighbours) {}

  // At what NVML is to look.
  struct Wanted {
    std::vector<GpuUuid> in_use;            // with clients, or memory of dead ones; where NVML is, all while clients are awaited
    std::vector<GpuUuid> shared_by_limits;  // where a tenant has a compute limit
  };
  Wanted wanted(bool awaits_clients) const;

  // Clients that are awaited would count as foreign.
  void sampled(policy::GpuId gpu, const GpuSample& sample, bool awaits_clients, policy::Instant now);
  // By the last look: what clients that did not come back after a restart have counts before anybody is granted memory.
  void see_foreign(policy::Instant now);

 private:
  int64_t measure_clients(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  // What clients had that are listed no more since a moment ago: they may have ended.
  int64_t may_be_free(policy::GpuId gpu, const GpuSample& sample) const;
  // `lists_contexts`: of a process that is not listed that means that it has none.
  void measure_overhead(RegisteredClient& client, const GpuSample& sample, bool lists_contexts, std::vector<policy::Event>* events);
  void see_foreign(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void compare_use(policy::GpuId gpu, const UseSample& sample, policy::Instant now);
  void say(policy::GpuId id, const UtilizationMonitor::Change& change) const;

  const Neighbours at_;
};

}  // namespace nvshare::scheduler
