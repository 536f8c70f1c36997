// What people, Slurm and the node's agent set for tenants, and how it takes effect: on the policy, on memory limits, and on what the next
// scheduler is told. Memory limits towards clients: memory_limits.h. One thread, the engine's.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "protocol/admin.h"
#include "scheduler/engine/bypass_guard.h"
#include "scheduler/engine/client_sharing.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/log.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class TenantOrders {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    Tenants& tenants;
    const Gpus& gpus;
    MemoryLimits& limits;
    PolicyDriver& policy;
    ClientSharing& sharing;
    const BypassGuard& bypasses;
    RepeatedWarnings& warnings;
  };
  explicit TenantOrders(const Neighbours& neighbours) : at_(neighbours) {}

  // Refused where what is to be reserved for it has no room on any GPU that it will see: its programs would be (client_membership.cc).
  Result<policy::TenantId> add_run(const protocol::admin::TenantRequest& request);
  Result<policy::TenantId> tell_of_job(const protocol::admin::JobRequest& request, policy::Instant now);  // 0: nobody knows that job
  // Of the request, what is about the tenant.
  void set(Tenant& tenant, const protocol::admin::SetRequest& request, policy::Instant now);
  // All of it is in force at once. An error: it is, but could not be persisted.
  Result<void> set_pods(const protocol::admin::PodsRequest& request, policy::Instant now);

  // As if it were paused and resumed at once: whoever runs is asked to end its turn.
  void release(const Tenant& tenant, policy::Instant now);
  // In what the tenant is not as all others: to be told before its first client, and taken back after its last one.
  std::vector<policy::Event> exceptions_of(const Tenant& tenant, bool begins) const;

 private:
  Result<void> admit_reservation(const protocol::admin::TenantRequest& request) const;
  // What a tenant's limits and priority come from, as it is to be.
  void change(Tenant& tenant, const Tenant& changed, policy::Instant now);
  void change_memory(const Tenant& before, const Tenant& tenant, policy::Instant now);
  void change_turns(const Tenant& before, const Tenant& tenant, policy::Instant now);
  bool gets_no_turns(const Tenant& tenant) const { return tenant.suspended_in_force() || at_.bypasses.refuses(tenant.id); }

  const Neighbours at_;
  std::optional<std::set<std::string>> listed_pods_;  // UIDs, while the agent names all pods in several requests
};

}  // namespace nvshare::scheduler
