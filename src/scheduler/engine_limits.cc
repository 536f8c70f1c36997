// What people, Slurm and the node's agent set for tenants, and how it takes effect. Memory limits towards clients: memory_limits.h.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

void Engine::change_limits(Tenant& tenant, const Tenant& changed, policy::Instant now) {
  const int64_t limit = changed.memory_limit_in_force();
  std::vector<policy::GpuId> gpus;  // on which its memory limit changes
  for (policy::GpuId gpu : limits_.ledger().gpus_of(tenant.id)) {
    const std::string& uuid = gpus_[gpu].uuid_text;
    if (changed.memory_limit_on(uuid) != tenant.memory_limit_on(uuid)) gpus.push_back(gpu);
  }
  const bool core_changes =
      changed.core_limit_in_force() != tenant.core_limit_in_force() || changed.core_reserved_in_force() != tenant.core_reserved_in_force();
  const bool priority_changes = changed.priority_in_force() != tenant.priority_in_force();
  const bool ends_changes = changed.pod.ends != tenant.pod.ends;
  const bool suspension_changes = changed.suspended_in_force() != tenant.suspended_in_force();
  const bool memory_changes = limit != tenant.memory_limit_in_force();
  const bool sharing_changes = changed.sharing_in_force() != tenant.sharing_in_force();
  const bool turns_change = sharing_changes || changed.pod.turn_seconds != tenant.pod.turn_seconds;
  tenant = changed;
  if (memory_changes || !gpus.empty() || suspension_changes || turns_change) steps_.note_change();  // the policy's step sees the others
  if (memory_changes)
    spdlog::info("tenant {} '{}': memory limit {}", tenant.id, tenant.name, limit > 0 ? fmt::format("{} MiB", limit >> 20) : "none");
  for (policy::GpuId gpu : gpus) {
    const int64_t there = tenant.memory_limit_on(gpus_[gpu].uuid_text);
    if (there != limit)
      spdlog::info("tenant {} '{}': memory limit on {}: {} MiB", tenant.id, tenant.name, gpus_[gpu].uuid_text, there >> 20);
    limits_.set_limit(tenant.id, gpu, there, now);
  }
  if (core_changes) {
    spdlog::info("tenant {} '{}': compute limit {} %, of which {} % are reserved", tenant.id, tenant.name, tenant.core_limit_in_force(),
                 tenant.core_reserved_in_force());
    apply(policy::ComputeLimit{tenant.id, tenant.core_limit_in_force(), tenant.core_reserved_in_force()}, now);
  }
  if (priority_changes) {
    spdlog::info("tenant {} '{}': priority {}", tenant.id, tenant.name, tenant.priority_in_force());
    apply(policy::TenantPriority{tenant.id, tenant.priority_in_force()}, now);
  }
  if (suspension_changes) {
    const bool suspended = tenant.suspended_in_force();
    spdlog::info("tenant {} '{}' is {}", tenant.id, tenant.name, suspended ? "paused: its programs get no turns" : "resumed");
    if (tenant.clients > 0) apply(policy::TenantSuspended{tenant.id, gets_no_turns(tenant)}, now);
  }
  if (turns_change) {
    const std::string& sharing = tenant.sharing_in_force();
    const int seconds = tenant.pod.turn_seconds;
    spdlog::info("tenant {} '{}': sharing {}, turns {}", tenant.id, tenant.name, sharing == "node" ? "as the node says" : sharing,
                 seconds == 0 ? "as long as all others'" : fmt::format("of at most {} s", seconds));
    if (tenant.clients > 0) apply(tenant.turns_in_force(), now);
    if (sharing_changes) tell_shares(now);
  }
  if (ends_changes) {
    if (tenant.pod.ends)
      spdlog::info("tenant {} '{}' is being ended: its programs get the next turn, to save what they have", tenant.id, tenant.name);
    apply(policy::TenantEnds{tenant.id, tenant.pod.ends}, now);
  }
}

std::vector<policy::Event> Engine::exceptions_of(const Tenant& tenant, bool begins) const {
  std::vector<policy::Event> exceptions;
  if (gets_no_turns(tenant)) exceptions.emplace_back(policy::TenantSuspended{tenant.id, begins});
  const policy::TenantTurns turns = tenant.turns_in_force();
  if (turns.is_as_all()) return exceptions;
  exceptions.emplace_back(begins ? turns : policy::TenantTurns{tenant.id});
  return exceptions;
}

Result<policy::TenantId> Engine::add_run(const admin::TenantRequest& request) {
  Result<policy::TenantId> id =
      tenants_.add_run(request.pid, printable(request.name.c_str()), request.gpu_memory_limit, request.gang_turns, request.gpu_core_limit,
                       request.priority, request.gpu_memory_reserved, request.gpu_core_ceiling);
  if (!tenants_.problem().empty()) spdlog::warn("{}", tenants_.problem());
  if (id) spdlog::debug("tenant {}: process tree of pid {}, '{}'", *id, request.pid, request.name);
  return id;
}

Result<void> Engine::set(const admin::SetRequest& request, policy::Instant now) {
  Tenant* tenant = nullptr;
  if (!request.tenant.empty()) {
    tenant = tenants_.find(request.tenant);
    if (tenant == nullptr) return error_format("there is no tenant '%.80s', or several of that name; use its id", request.tenant.c_str());
  }
  Result<Settings> changed = change_settings(settings_, {request.settings.begin(), request.settings.end()});
  if (!changed) return changed.error();
  if (tenant != nullptr) {
    Tenant wanted = *tenant;
    wanted.gpu_memory_limit = request.gpu_memory_limit.value_or(tenant->gpu_memory_limit);
    if (wanted.job && request.gpu_memory_limit) wanted.job->memory_percent = 0;
    wanted.core_limit = request.gpu_core_limit.value_or(tenant->core_limit);
    wanted.core_ceiling = request.gpu_core_ceiling.value_or(tenant->core_ceiling);
    wanted.priority = request.priority.value_or(tenant->priority);
    wanted.suspended = request.paused.value_or(tenant->suspended);
    wanted.sharing = request.sharing.value_or(tenant->sharing);
    change_limits(*tenant, wanted, now);
    tenants_.save_changes(tenant->id);
    if (request.release) release(*tenant, now);
  }
  if (!request.settings.empty()) {
    settings_ = *changed;
    set_log_level(settings_.log_level);
    apply(policy::ConfigChanged{settings_.policy}, now);
    update_host_memory(now, true);
    refuse_turns(now);
    tell_shares(now);
  }
  return {};
}

Result<void> Engine::set_pods(const admin::PodsRequest& request, policy::Instant now) {
  std::set<std::string> named;
  const auto change = [&](const std::string& uid, const PodLimits& limits) {
    Tenant* tenant = tenants_.find_pod(uid);
    if (tenant == nullptr) return;
    Tenant wanted = *tenant;
    wanted.pod = limits;
    change_limits(*tenant, wanted, now);
  };
  for (const admin::PodRequest& pod : request.pods) {
    PodLimits limits{printable(pod.name.c_str()), pod.gpu_memory_limit, pod.gpu_core_limit, pod.priority, pod.ends, pod.gpu_memory_on};
    limits.core_reserved = pod.gpu_core_reserved;
    limits.sharing = pod.sharing;
    limits.turn_seconds = pod.turn_seconds;
    limits.member_of = pod.member_of;
    named.insert(pod.uid);
    if (const PodLimits* held = limits_of_pod(tenants_, pod.uid); pod.only_lowers && held != nullptr) limits = lowest_of(*held, limits);
    if (pod.gone) {
      change(pod.uid, pod_gone(tenants_, pod.uid));
      continue;
    }
    if (Tenant* tenant = tenants_.find_pod(pod.uid)) tenant->name = limits.name;
    tenants_.pods.remember(pod.uid, limits);
    change(pod.uid, limits);
  }
  using List = admin::PodsRequest::List;
  if (request.list == List::kFirst) listed_pods_.emplace();
  if (listed_pods_) listed_pods_->insert(named.begin(), named.end());
  const bool listed_all = request.list == List::kLast && listed_pods_;
  if (listed_all) named.swap(*listed_pods_);
  if (request.complete || listed_all) {
    listed_pods_.reset();
    for (const std::string& uid : pods_but(tenants_, named)) change(uid, pod_gone(tenants_, uid));
  }
  tenants_.prune();
  tenants_.save();
  if (tenants_.problem().empty()) return {};
  return error_format("the limits are in force, but a scheduler that starts anew would not know them: %.350s", tenants_.problem().c_str());
}

Result<policy::TenantId> Engine::tell_of_job(const admin::JobRequest& request, policy::Instant now) {
  const Tenant* known = tenants_.find_job(request.job);
  const std::optional<Tenant> before = known != nullptr ? std::optional(*known) : std::nullopt;
  Result<Tenant*> told = tenants_.add_job(request);
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
  change_limits(tenant, wanted, now);
  tenants_.prune();
  tenants_.save();
  if (!tenants_.problem().empty()) warnings_.warn(tenants_.problem(), now, "{}", tenants_.problem());
  return id;
}

}  // namespace nvshare::scheduler
