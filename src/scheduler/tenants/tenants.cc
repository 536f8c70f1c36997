#include "scheduler/tenants/tenants.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/parse.h"
#include "base/printable.h"
#include "protocol/short_names.h"

namespace nvshare::scheduler {
namespace {

constexpr int kAncestorsMax = 256;
constexpr char kPodKey[] = "pod:";
constexpr char kJobKey[] = "job=";
constexpr char kRunKind[] = "run";
constexpr char kJobKind[] = "job";

const char* name_of(CgroupIdentity::Kind kind) {
  switch (kind) {
    case CgroupIdentity::Kind::kContainer:
      return "container";
    case CgroupIdentity::Kind::kPod:
      return "pod";
    case CgroupIdentity::Kind::kJob:
      return "job";
    case CgroupIdentity::Kind::kUnit:
      break;
  }
  return "unit";
}

bool hangs_from(const Job& job, pid_t pid) {
  return std::any_of(job.steps.begin(), job.steps.end(),
                     [&](const Job::Step& step) { return step.pid == pid && step.start_time == start_time_of(pid); });
}

std::string key_of_process(const char* kind, pid_t pid, uint64_t start_time) {
  return std::string(kind) + ":" + std::to_string(pid) + ":" + std::to_string(start_time);
}

}  // namespace

policy::TenantTurns Tenant::turns_in_force() const {
  const std::string& word = sharing_in_force();
  return {id,
          word == "turns"      ? policy::TenantSharing::kTurns
          : word == "together" ? policy::TenantSharing::kTogether
                               : policy::TenantSharing::kNode,
          pod.turn_seconds * int64_t{1'000'000'000}};
}

Tenants::Tenants(std::string file, LookAtCgroups look_at_cgroups, CgroupReader reader, StartTimeOf start_time)
    : cgroups(std::move(look_at_cgroups), std::move(reader)), start_time_(std::move(start_time)) {
  if (file.empty()) return;
  file_.emplace(std::move(file));
  load();
}

Result<policy::TenantId> Tenants::add_run(pid_t pid, const std::string& name, int64_t gpu_memory_limit, bool gang_turns, int core_limit,
                                          int priority, int64_t gpu_memory_reserved, int core_ceiling, std::vector<std::string> gpus) {
  uint64_t start_time = start_time_of(pid);
  if (start_time == 0) return error_format("there is no process %d", pid);
  prune();
  Tenant& tenant = get(key_of_process("run", pid, start_time), "run", name.empty() ? short_name_of(pid) : name);
  if (!name.empty()) tenant.name = name;
  tenant.gpu_memory_limit = gpu_memory_limit;
  tenant.gpu_memory_reserved = gpu_memory_reserved;
  tenant.gpus = std::move(gpus);
  tenant.gang_turns = gang_turns;
  tenant.core_limit = core_limit;
  tenant.core_ceiling = core_ceiling;
  tenant.priority = priority;
  tenant.root = pid;
  tenant.root_start_time = start_time;
  save_changes(tenant.id);
  return tenant.id;
}

Tenant& Tenants::join(const Peer& peer, const std::string& program, policy::TenantId former) {
  Tenant& tenant = of(peer, program, former);
  ++tenant.clients;
  ++tenant.clients_ever;
  touched_.insert(tenant.id);
  clients_changed();
  return tenant;
}

void Tenants::clients_changed() {
  is_unsaved_ = true;
  if (!saves_later_) save();
}

Tenants::Asked Tenants::ask(const Peer& peer, const std::string& gpu, int64_t gpu_total) {
  Tenant& tenant = of(peer, "", 0);
  tenant.has_asked = true;
  settle_memory(tenant, gpu_total);
  const Asked asked{tenant.id, tenant.memory_limit_on(gpu)};
  prune();
  return asked;
}

namespace {

bool is_limited(const Tenant& tenant) {
  return tenant.memory_limit_in_force() != 0 || !tenant.pod.memory_on.empty() || tenant.core_limit_in_force() < 100 ||
         (tenant.job && tenant.job->memory_percent > 0);
}

}  // namespace

std::optional<Tenants::Limited> Tenants::limited(pid_t pid) {
  const Tenant* tenant = run_of(pid);
  if (tenant == nullptr) {
    const auto cgroup = cgroups.identify(pid);
    if (!cgroup) return std::nullopt;
    if (cgroup->kind == CgroupIdentity::Kind::kPod) {
      tenant = find_pod(pods.leader_of(cgroup->name));
      const PodLimits* told = pods.find(cgroup->name);
      if (told != nullptr && (told->told() || !told->limits_nothing()))
        return Limited{tenant != nullptr ? tenant->id : 0, told->told() ? told->name : cgroup->name, cgroup->name};
    } else if (cgroup->kind == CgroupIdentity::Kind::kJob) {
      tenant = find_job(cgroup->job);
    } else if (const auto known = tenants_.find(std::string(name_of(cgroup->kind)) + ":" + cgroup->path); known != tenants_.end()) {
      tenant = &known->second;
    }
  }
  if (tenant == nullptr || !is_limited(*tenant)) return std::nullopt;
  return Limited{tenant->id, tenant->name, ""};
}

Tenant& Tenants::of(const Peer& peer, const std::string& program, policy::TenantId former) {
  Tenant* const run = run_of(peer.pid);
  const auto cgroup = cgroups.identify(peer.pid);
  // A process that has ended meanwhile, and whose number another one may have had as these were looked at, belongs to nobody.
  const bool lives = start_time_(peer.pid) == peer.start_time;
  if (run != nullptr && lives) return *run;
  if (Tenant* known = find(former); known != nullptr && (known->root != 0 || known->job)) return *known;
  if (cgroup && lives) {
    if (cgroup->kind == CgroupIdentity::Kind::kPod) return of_pod(cgroup->name);
    return get(*cgroup);
  }
  // A container whose cgroups nobody knows (of `ctr`, say).
  if (!cgroup && peer.pid_namespace != 0 && lives) {
    const std::string name = "pid:[" + std::to_string(peer.pid_namespace) + "]";
    return get("container:" + name, "container", name);
  }
  return get(key_of_process("process", peer.pid, peer.start_time), "process", program);
}

// Its UID is its own, and what its limits are told by; it was found below the kubelet's root only.
Tenant& Tenants::of_pod(const std::string& uid) {
  const std::string leader = pods.leader_of(uid);
  Tenant& tenant = get(kPodKey + leader, name_of(CgroupIdentity::Kind::kPod), leader);
  const PodLimits* told = pods.find(leader);
  if (told == nullptr) told = pods.find(uid);  // of the tenant's other pod only the members are known
  if (told == nullptr) return tenant;
  if (told->told()) tenant.name = told->name;
  tenant.pod = *told;
  tenant.pod.member_of.clear();
  return tenant;
}

uint64_t part_of(const Tenant& tenant, pid_t pid, const ProcessCgroups& cgroups) {
  return tenant.kind == name_of(CgroupIdentity::Kind::kPod) ? cgroups.container_of(pid) : 0;
}

void Tenants::leave(policy::TenantId id) {
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return;
  Tenant& tenant = at->second->second;
  if (tenant.clients > 0) --tenant.clients;
  touched_.insert(id);
  if (is_over(tenant)) forget(at->second);
  clients_changed();
}

Tenant* Tenants::find(policy::TenantId id) {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : &at->second->second;
}

const Tenant* Tenants::find(policy::TenantId id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : &at->second->second;
}

Tenant* Tenants::find(const std::string& name_or_id) {
  if (name_or_id.starts_with(kJobKey)) {
    const auto job = parse_integer(std::string_view(name_or_id).substr(sizeof kJobKey - 1), 1, UINT32_MAX);
    return job ? find_job(static_cast<uint32_t>(*job)) : nullptr;
  }
  if (const auto id = parse_integer(name_or_id, 1, INT64_MAX); id && std::to_string(*id) == name_or_id) {
    if (Tenant* tenant = find(static_cast<policy::TenantId>(*id))) return tenant;
  }
  // Programs choose their names: where one is called like a container's short ID, neither is meant.
  std::vector<Tenant*> called;
  for (auto& [key, tenant] : tenants_) {
    if (tenant.name == name_or_id || protocol::is_short_name(tenant.kind, tenant.name, name_or_id)) called.push_back(&tenant);
  }
  return called.size() == 1 ? called.front() : nullptr;
}

Tenant* Tenants::find_pod(const std::string& uid) {
  auto at = tenants_.find(kPodKey + uid);
  return at == tenants_.end() ? nullptr : &at->second;
}

std::string Tenants::pod_of(policy::TenantId tenant) const {
  const auto at = by_id_.find(tenant);
  if (at == by_id_.end() || !at->second->first.starts_with(kPodKey)) return {};
  return at->second->first.substr(std::string_view(kPodKey).size());
}

PodLimits pod_gone(Tenants& tenants, const std::string& uid) {
  const PodLimits* held = limits_of_pod(tenants, uid);
  PodLimits limits = held != nullptr ? *held : PodLimits();
  limits.priority = std::min(limits.priority, 0);
  limits.ends = false;
  limits.gone = true;
  tenants.pods.put_gone(uid, limits, [&](const std::string& each) {
    const Tenant* its = tenants.find_pod(tenants.pods.leader_of(each));
    return its != nullptr && its->clients > 0;  // they may leave and come back
  });
  return limits;
}

std::set<std::string> pods_but(const Tenants& tenants, const std::set<std::string>& named) {
  std::set<std::string> uids;
  const auto add = [&](const std::string& uid, const PodLimits& limits) {
    if (!limits.gone && !named.contains(uid)) uids.insert(uid);
  };
  for (const auto& [uid, limits] : tenants.pods.all()) add(uid, limits);
  for (const auto& [key, tenant] : tenants.all()) {
    if (key.starts_with(kPodKey)) add(key.substr(sizeof kPodKey - 1), tenant.pod);
  }
  return uids;
}

const PodLimits* limits_of_pod(Tenants& tenants, const std::string& uid) {
  if (const PodLimits* told = tenants.pods.find(uid)) return told;
  const Tenant* tenant = tenants.find_pod(uid);
  return tenant == nullptr ? nullptr : &tenant->pod;
}

void recall_limit(Tenant& tenant, const std::string& gpu, int64_t memory) {
  if (memory == 0) return;
  if (tenant.kind != "pod") {
    if (tenant.memory_limit_in_force() == 0) tenant.gpu_memory_limit = memory;
    return;
  }
  if (tenant.pod.told()) return;
  if (tenant.gpu_memory_limit != 0 && memory >= tenant.gpu_memory_limit) return;  // that is what `set` asked for, and known
  auto [there, is_new] = tenant.pod.memory_on.try_emplace(gpu, memory);
  there->second = std::min(there->second, memory);
  tenant.pod.gpu_memory_limit = 0;
  for (const auto& [uuid, limit] : tenant.pod.memory_on) tenant.pod.gpu_memory_limit = std::max(tenant.pod.gpu_memory_limit, limit);
}

bool has_limited(const Tenants& tenants) {
  return !tenants.pods.all().empty() ||
         std::any_of(tenants.all().begin(), tenants.all().end(), [](const auto& entry) { return is_limited(entry.second); });
}

bool has_runs(const Tenants& tenants) {
  return std::any_of(tenants.all().begin(), tenants.all().end(),
                     [](const auto& entry) { return entry.second.root != 0 && !is_over(entry.second); });
}

bool is_over(const Tenant& tenant) {
  if (tenant.clients > 0 || tenant.awaited > 0) return false;
  if (tenant.job && tenant.job->told) return tenant.job->gone;
  if (tenant.root != 0) return start_time_of(tenant.root) != tenant.root_start_time;
  // A limit, a priority or a suspension that somebody set outlives the tenant's processes; what holds for a pod that is gone is in `pods`.
  if (tenant.pod.gone)
    return tenant.gpu_memory_limit == 0 && tenant.core_limit == 100 && tenant.core_ceiling == 100 && tenant.priority == 0 &&
           tenant.sharing == "node";
  return tenant.memory_limit_in_force() == 0 && tenant.pod.memory_on.empty() && tenant.core_limit_in_force() == 100 &&
         tenant.core_reserved_in_force() == 0 && tenant.priority_in_force() == 0 && tenant.sharing == "node" && !tenant.suspended;
}

Tenants::Map::iterator Tenants::forget(Map::iterator at) {
  by_id_.erase(at->second.id);
  if (lines_.erase(at->first) > 0) forgotten_.push_back(at->first);
  trees_.erase(at->second.id);
  return tenants_.erase(at);
}

void Tenants::index(Map::iterator at) {
  by_id_[at->second.id] = at;
  if (at->second.root != 0 || at->second.kind == kRunKind || at->second.kind == kJobKind) trees_[at->second.id] = &at->second;
}

void Tenants::prune() {
  for (auto at = tenants_.begin(); at != tenants_.end();) at = is_over(at->second) ? forget(at) : std::next(at);
}

Tenant& Tenants::get(const std::string& key, const char* kind, const std::string& name) {
  auto [at, is_new] = tenants_.try_emplace(key);
  if (is_new) {
    at->second.id = next_id_++;
    at->second.kind = kind;
    at->second.name = name;
    index(at);
  }
  return at->second;
}

Tenant& Tenants::get(const CgroupIdentity& cgroup) {
  const char* kind = name_of(cgroup.kind);
  if (cgroup.kind == CgroupIdentity::Kind::kJob) return get_job(cgroup.job);
  const std::string key = std::string(kind) + ":" + cgroup.path;
  // An earlier release knew it by its name alone. Those of users, whose names say so, it did not tell apart: theirs are not taken over.
  if (!tenants_.contains(key)) {
    if (auto former = tenants_.extract(std::string(kind) + ":" + cgroup.name)) {
      if (lines_.erase(former.key()) > 0) forgotten_.push_back(former.key());
      former.key() = key;
      index(tenants_.insert(std::move(former)).position);
    }
  }
  // A user may have named the folder, and this name is shown to others: in logs, on their terminals.
  return get(key, kind, printable(cgroup.name));
}

Tenant* Tenants::run_of(pid_t pid) {
  if (trees_.empty()) return nullptr;
  for (int i = 0; i < kAncestorsMax && pid > 1; ++i, pid = parent_of(pid)) {
    for (const auto& [id, tenant] : trees_) {
      if (tenant->root == pid && tenant->root_start_time == start_time_of(pid)) return tenant;
      if (tenant->job && hangs_from(*tenant->job, pid)) return tenant;
    }
  }
  return nullptr;
}

}  // namespace nvshare::scheduler
