// What tenants have used of GPUs' time, and owe, beside compute limits: kept with the tenants for the next scheduler, and told to the
// policy when the first client of a tenant of an earlier scheduler is back. One thread, the engine's.
#pragma once

#include "policy/policy.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class KeptAccounts {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Gpus& gpus;
    Tenants& tenants;
    PolicyDriver& policy;
  };
  explicit KeptAccounts(const Neighbours& neighbours) : at_(neighbours) {}

  void keep(policy::Instant now);
  void take_over(policy::TenantId tenant, policy::GpuId gpu, policy::Instant now);

 private:
  const Neighbours at_;
};

}  // namespace nvshare::scheduler
