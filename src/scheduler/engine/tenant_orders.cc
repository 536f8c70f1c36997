#include "scheduler/engine/tenant_orders.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"

namespace nvshare::scheduler {

using namespace protocol;

void TenantOrders::change(Tenant& tenant, const Tenant& changed, policy::Instant now) {
  const Tenant before = tenant;
  tenant = changed;
  change_memory(before, tenant, now);
  if (before.core_limit_in_force() != tenant.core_limit_in_force() || before.core_reserved_in_force() != tenant.core_reserved_in_force()) {
    spdlog::info("tenant {} '{}': compute limit {} %, of which {} % are reserved", tenant.id, tenant.name, tenant.core_limit_in_force(),
                 tenant.core_reserved_in_force());
    at_.policy.apply(policy::ComputeLimit{tenant.id, tenant.core_limit_in_force(), tenant.core_reserved_in_force()}, now);
  }
  if (before.priority_in_force() != tenant.priority_in_force()) {
    spdlog::info("tenant {} '{}': priority {}", tenant.id, tenant.name, tenant.priority_in_force());
    at_.policy.apply(policy::TenantPriority{tenant.id, tenant.priority_in_force()}, now);
  }
  change_turns(before, tenant, now);
  if (before.pod.ends != tenant.pod.ends) {
    if (tenant.pod.ends)
      spdlog::info("tenant {} '{}' is being ended: its programs get the next turn, to save what they have", tenant.id, tenant.name);
    at_.policy.apply(policy::TenantEnds{tenant.id, tenant.pod.ends}, now);
  }
}

void TenantOrders::change_memory(const Tenant& before, const Tenant& tenant, policy::Instant now) {
  const int64_t limit = tenant.memory_limit_in_force();
  std::vector<policy::GpuId> gpus;  // on which its memory limit changes
  for (policy::GpuId gpu : at_.limits.ledger().gpus_of(tenant.id)) {
    const std::string& uuid = at_.gpus[gpu].uuid_text;
    if (before.memory_limit_on(uuid) != tenant.memory_limit_on(uuid)) gpus.push_back(gpu);
  }
  const bool changes = limit != before.memory_limit_in_force();
  if (changes || !gpus.empty()) at_.policy.steps().note_change();  // which the policy does not see
  if (changes)
    spdlog::info("tenant {} '{}': memory limit {}", tenant.id, tenant.name, limit > 0 ? fmt::format("{} MiB", limit >> 20) : "none");
  for (policy::GpuId gpu : gpus) {
    const std::string& uuid = at_.gpus[gpu].uuid_text;
    const int64_t there = tenant.memory_limit_on(uuid);
    if (there != limit)
      spdlog::info("tenant {} '{}': memory limit on {}: {} MiB", tenant.id, tenant.name, at_.gpus.name_of(gpu), there >> 20);
    at_.limits.set_limit(tenant.id, gpu, there, now);
  }
}

void TenantOrders::change_turns(const Tenant& before, const Tenant& tenant, policy::Instant now) {
  const bool sharing_changes = before.sharing_in_force() != tenant.sharing_in_force();
  const bool turns_change = sharing_changes || before.pod.turn_seconds != tenant.pod.turn_seconds;
  const bool suspension_changes = before.suspended_in_force() != tenant.suspended_in_force();
  if (suspension_changes || turns_change) at_.policy.steps().note_change();  // of a tenant without clients the policy is not told
  if (suspension_changes) {
    const bool suspended = tenant.suspended_in_force();
    spdlog::info("tenant {} '{}' is {}", tenant.id, tenant.name, suspended ? "paused: its programs get no turns" : "resumed");
    if (tenant.clients > 0) at_.policy.apply(policy::TenantSuspended{tenant.id, gets_no_turns(tenant)}, now);
  }
  if (!turns_change) return;
  const std::string& sharing = tenant.sharing_in_force();
  const int seconds = tenant.pod.turn_seconds;
  spdlog::info("tenant {} '{}': sharing {}, turns {}", tenant.id, tenant.name, sharing == "node" ? "as the node says" : sharing,
               seconds == 0 ? "as long as all others'" : fmt::format("of at most {} s", seconds));
  if (tenant.clients > 0) at_.policy.apply(tenant.turns_in_force(), now);
  if (sharing_changes) at_.sharing.tell(now);
}

void TenantOrders::release(const Tenant& tenant, policy::Instant now) {
  if (tenant.clients == 0 || gets_no_turns(tenant)) return;
  spdlog::info("tenant {} '{}' gives up its turns", tenant.id, tenant.name);
  at_.policy.apply(policy::TenantSuspended{tenant.id, true}, now);
  at_.policy.apply(policy::TenantSuspended{tenant.id, false}, now);
}

std::vector<policy::Event> TenantOrders::exceptions_of(const Tenant& tenant, bool begins) const {
  std::vector<policy::Event> exceptions;
  if (gets_no_turns(tenant)) exceptions.emplace_back(policy::TenantSuspended{tenant.id, begins});
  const policy::TenantTurns turns = tenant.turns_in_force();
  if (turns.is_as_all()) return exceptions;
  exceptions.emplace_back(begins ? turns : policy::TenantTurns{tenant.id});
  return exceptions;
}

Result<void> TenantOrders::admit_reservation(const admin::TenantRequest& request) const {
  Tenant wanted;  // with no program anywhere
  wanted.gpu_memory_reserved = request.gpu_memory_reserved;
  Result<void> admitted;
  for (const std::string& uuid : request.gpus) {
    const std::optional<policy::GpuId> gpu = at_.gpus.find(uuid);
    if (!gpu || at_.gpus[*gpu].real_total == 0) return {};  // its size is known once a program uses it
    admitted = at_.limits.admit_reservation(*gpu, wanted, at_.settings);
    if (admitted) return {};
  }
  return admitted;
}

Result<policy::TenantId> TenantOrders::add_run(const admin::TenantRequest& request) {
  if (auto ok = admit_reservation(request); !ok) return ok.error();
  Result<policy::TenantId> id =
      at_.tenants.add_run(request.pid, printable(request.name.c_str()), request.gpu_memory_limit, request.gang_turns,
                          request.gpu_core_limit, request.priority, request.gpu_memory_reserved, request.gpu_core_ceiling, request.gpus);
  if (!at_.tenants.problem().empty()) spdlog::warn("{}", at_.tenants.problem());
  if (id) spdlog::debug("tenant {}: process tree of pid {}, '{}'", *id, request.pid, request.name);
  return id;
}

void TenantOrders::set(Tenant& tenant, const admin::SetRequest& request, policy::Instant now) {
  Tenant wanted = tenant;
  wanted.gpu_memory_limit = request.gpu_memory_limit.value_or(tenant.gpu_memory_limit);
  if (wanted.job && request.gpu_memory_limit) wanted.job->memory_percent = 0;
  wanted.core_limit = request.gpu_core_limit.value_or(tenant.core_limit);
  wanted.core_ceiling = request.gpu_core_ceiling.value_or(tenant.core_ceiling);
  wanted.priority = request.priority.value_or(tenant.priority);
  wanted.suspended = request.paused.value_or(tenant.suspended);
  wanted.sharing = request.sharing.value_or(tenant.sharing);
  change(tenant, wanted, now);
  at_.tenants.save_changes(tenant.id);
  if (request.release) release(tenant, now);
}

Result<void> TenantOrders::set_pods(const admin::PodsRequest& request, policy::Instant now) {
  std::set<std::string> named;
  const auto hold_to = [&](const std::string& uid, const PodLimits& limits) {
    Tenant* tenant = at_.tenants.find_pod(uid);
    if (tenant == nullptr) return;
    Tenant wanted = *tenant;
    wanted.pod = limits;
    change(*tenant, wanted, now);
  };
  for (const admin::PodRequest& pod : request.pods) {
    PodLimits limits{printable(pod.name.c_str()), pod.gpu_memory_limit, pod.gpu_core_limit, pod.priority, pod.ends, pod.gpu_memory_on};
    limits.core_reserved = pod.gpu_core_reserved;
    limits.sharing = pod.sharing;
    limits.turn_seconds = pod.turn_seconds;
    limits.member_of = pod.member_of;
    named.insert(pod.uid);
    if (const PodLimits* held = limits_of_pod(at_.tenants, pod.uid); pod.only_lowers && held != nullptr) limits = lowest_of(*held, limits);
    if (pod.gone) {
      hold_to(pod.uid, pod_gone(at_.tenants, pod.uid));
      continue;
    }
    if (Tenant* tenant = at_.tenants.find_pod(pod.uid)) tenant->name = limits.name;
    at_.tenants.pods.remember(pod.uid, limits);
    hold_to(pod.uid, limits);
  }
  using List = admin::PodsRequest::List;
  if (request.list == List::kFirst) listed_pods_.emplace();
  if (listed_pods_) listed_pods_->insert(named.begin(), named.end());
  const bool listed_all = request.list == List::kLast && listed_pods_;
  if (listed_all) named.swap(*listed_pods_);
  if (request.complete || listed_all) {
    listed_pods_.reset();
    for (const std::string& uid : pods_but(at_.tenants, named)) hold_to(uid, pod_gone(at_.tenants, uid));
  }
  at_.tenants.prune();
  at_.tenants.save();
  if (at_.tenants.problem().empty()) return {};
  return error_format("the limits are in force, but a scheduler that starts anew would not know them: %.350s",
                      at_.tenants.problem().c_str());
}

Result<policy::TenantId> TenantOrders::tell_of_job(const admin::JobRequest& request, policy::Instant now) {
  const Tenant* known = at_.tenants.find_job(request.job);
  const std::optional<Tenant> before = known != nullptr ? std::optional(*known) : std::nullopt;
  Result<Tenant*> told = at_.tenants.add_job(request);
  if (!told) return told.error();
  if (*told == nullptr) return policy::TenantId{0};
  Tenant& tenant = **told;
  const policy::TenantId id = tenant.id;
  Tenant wanted = tenant;
  if (request.ends) wanted.pod.ends = true;
  if (before) {  // programs of it may run already: what is new for them takes effect
    tenant.gpu_memory_limit = before->gpu_memory_limit;
    tenant.core_limit = before->core_limit;
    tenant.priority = before->priority;
    tenant.pod = before->pod;
    tenant.suspended = before->suspended;
    if (before->job) tenant.job->suspended = before->job->suspended;
  }
  change(tenant, wanted, now);
  at_.tenants.prune();
  at_.tenants.save();
  if (!at_.tenants.problem().empty()) at_.warnings.warn(at_.tenants.problem(), now, "{}", at_.tenants.problem());
  return id;
}

}  // namespace nvshare::scheduler
