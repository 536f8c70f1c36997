// Tenants: who shares limits. A process belongs to the `nvsharectl run` or the step of a Slurm job that started it, else to its pod, job,
// container or systemd unit, else it is a tenant of its own. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "protocol/admin.h"
#include "scheduler/persisted_changes.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/tenants/pod_registry.h"
#include "scheduler/tenants/process_cgroups.h"

namespace nvshare::scheduler {

// What a tenant has used of a GPU's time, and owes, beside compute limits.
struct KeptAccount {
  policy::Instant joined_at = 0;  // CLOCK_MONOTONIC, which goes on over a restart of the scheduler
  policy::Duration debt = 0, used = 0, throttled_time = 0;
  bool operator==(const KeptAccount&) const = default;
};

// What the plugin in Slurm's daemons says of a job (src/slurm), by an admin request. A job that nobody told of is one by its cgroup alone.
struct Job {
  struct Step {
    pid_t pid = 0;  // its slurmstepd: what hangs from it is the job's
    uint64_t start_time = 0;
    bool operator==(const Step&) const = default;
  };
  uint32_t id = 0;
  bool told = false;
  std::string user, partition;
  int memory_percent = 0;  // of the GPU that its first program uses; 0 = none, or in Tenant::gpu_memory_limit by now
  std::vector<Step> steps;
  bool suspended = false;  // Slurm has stopped its processes, or is about to
  bool gone = false;       // it has ended; what it still has of processes keeps its limits
  bool operator==(const Job&) const = default;
};

struct Tenant {
  policy::TenantId id = 0;
  std::string name;
  std::string kind;              // "run", "job", "pod", "container", "unit" or "process"
  int64_t gpu_memory_limit = 0;  // bytes, 0 = none
  // Of each GPU that it uses, granted by the node; 0 = none. All of a GPU together stay within gpu_memory_oversub_ratio.
  int64_t gpu_memory_reserved = 0;
  // Of a run: UUIDs of those that its programs will see; empty: not known. On a single one it has what it reserved from its start on.
  std::vector<std::string> gpus;
  bool has_reserved_on(const std::string& gpu) const { return gpu_memory_reserved > 0 && gpus.size() == 1 && gpus[0] == gpu; }
  int core_limit = 100;    // percent of each GPU's time, granted by the node: its reservation, and a ceiling; 100 = none
  int core_ceiling = 100;  // a ceiling besides; 100 = none
  PodLimits pod;           // of a pod, besides those: the lower one is in force
  int64_t memory_limit_in_force() const { return lower_limit(gpu_memory_limit, pod.gpu_memory_limit); }
  int64_t memory_limit_on(const std::string& gpu) const {
    const auto on = pod.memory_on.find(gpu);
    return lower_limit(memory_limit_in_force(), on == pod.memory_on.end() ? 0 : on->second);
  }
  int core_limit_in_force() const { return std::min({core_limit, core_ceiling, pod.core_limit}); }
  int core_reserved_in_force() const {
    return std::min(std::max(core_limit < 100 ? core_limit : 0, pod.core_reserved), core_limit_in_force());
  }
  int priority = 0;  // the pod's is added to it
  int priority_in_force() const {
    return std::clamp(priority + pod.priority, protocol::admin::kPriorityMin, protocol::admin::kPriorityMax);
  }
  bool suspended = false;  // by the administrator ("paused" in requests and files): its programs get no turns
  bool suspended_in_force() const;
  std::string sharing = "node";  // by the administrator: one of protocol::admin::kSharingWords
  const std::string& sharing_in_force() const { return sharing != "node" ? sharing : pod.sharing; }
  policy::TenantTurns turns_in_force() const;
  bool gang_turns = true;     // on several GPUs: its turns are on all of them together
  uint64_t clients = 0;       // now
  uint64_t clients_ever = 0;  // those now included
  bool has_asked = false;     // a process of it asked what it may use (Tenants::ask)
  uint64_t awaited = 0;       // clients of an earlier scheduler that live and are not back
  pid_t root = 0;             // of a run: the process that the tree hangs from
  uint64_t root_start_time = 0;
  std::optional<Job> job;  // of a job
  // By the GPU's UUID: as of the last Engine::housekeep; and of an earlier scheduler, until it is taken over by the first client there.
  std::map<std::string, KeptAccount> accounts, former_accounts;
  void is_awaited_no_more() { awaited -= awaited > 0 ? 1 : 0; }  // one of those is back, or has ended
  bool operator==(const Tenant&) const = default;
};

inline bool Tenant::suspended_in_force() const { return suspended || (job && job->suspended); }

class Tenants {
 public:
  static constexpr size_t kIdleJobsMax = 256;  // without a step or client: their end is not told yet, or never will be

  using LookAtCgroups = ProcessCgroups::Look;
  explicit Tenants(LookAtCgroups look_at_cgroups = cgroups_of, CgroupReader reader = {})
      : cgroups(std::move(look_at_cgroups), std::move(reader)) {}
  // `file`: where tenants, their limits and the process trees that make them are kept for the next scheduler; empty: nowhere. Takes over
  // what is there of those whose processes live; a file that is damaged, or not ours, is refused: problem().
  explicit Tenants(std::string file, LookAtCgroups look_at_cgroups = cgroups_of, CgroupReader reader = {},
                   StartTimeOf start_time = start_time_of);
  ~Tenants();  // the file is whole then, which a scheduler of an earlier release reads, too
  Tenants(const Tenants&) = delete;
  Tenants& operator=(const Tenants&) = delete;

  const ProcessCgroups cgroups;
  PodRegistry pods;  // a pod's tenant is not changed with it: see Tenant::pod

  // Registers the process tree rooted at `pid`. Registering the same process again changes name, limits and priority.
  Result<policy::TenantId> add_run(pid_t pid, const std::string& name, int64_t gpu_memory_limit, bool gang_turns = true,
                                   int core_limit = 100, int priority = 0, int64_t gpu_memory_reserved = 0, int core_ceiling = 100,
                                   std::vector<std::string> gpus = {});

  // What is told of a Slurm job: see tenants_of_jobs.cc. Limits of a job that is known already stay as they are. Null: nobody told of that
  // job before, and this names no step of it.
  Result<Tenant*> add_job(const protocol::admin::JobRequest& request);
  Tenant* find_job(uint32_t job);  // null: there is none

  // The tenant of a process; counts one more client. `former`: that it was a client of before a restart, 0: none; a run's processes stay
  // its own when the process that they hang from has ended.
  Tenant& join(const Peer& peer, const std::string& program, policy::TenantId former = 0);
  void leave(policy::TenantId id);
  // The tenant that the process belongs to, or would (an id that no client has then).
  struct Asked {
    policy::TenantId id;
    int64_t gpu_memory_limit;  // on that GPU; 0 = none
  };
  Asked ask(const Peer& peer, const std::string& gpu, int64_t gpu_total = 0);

  // The tenant of a process that must not use a GPU past the library: limits hold for it, or it is a pod that the node's agent named,
  // which shares its GPU by what it was granted. Nothing: another one's, or nobody's.
  struct Limited {
    policy::TenantId id = 0;  // 0: it has no clients
    std::string name;
    std::string pod;  // its UID; empty: it is none
  };
  std::optional<Limited> limited(pid_t pid);

  Tenant* find(policy::TenantId id);
  const Tenant* find(policy::TenantId id) const;
  // By name, by the decimal id, or of a Slurm job "job=" and its number. Null when there is none or several of that name.
  Tenant* find(const std::string& name_or_id);
  const std::map<std::string, Tenant>& all() const { return tenants_; }

  Tenant* find_pod(const std::string& uid);           // null: it has no clients in a tenant of its own
  std::string pod_of(policy::TenantId tenant) const;  // its UID; empty: the tenant is no pod

  // Forgets runs that ended.
  void prune();

  // Writes the file if what it is to say has changed.
  void save();
  // Only what clients that joined and left have changed, and this tenant: costs what changed. Limits of pods are not among it.
  void save_changes(policy::TenantId changed = 0);
  // From now on clients that join and leave do not write it: whoever calls this looks at is_unsaved(), and calls save_changes() soon.
  void save_later() { saves_later_ = true; }
  bool is_unsaved() const { return is_unsaved_; }
  // Of ids that are known from elsewhere: nobody else gets them.
  void keep_id(policy::TenantId id);
  // The last problem with the file, empty if none.
  const std::string& problem() const { return problem_; }

 private:
  using Map = std::map<std::string, Tenant>;
  void clients_changed();
  void index(Map::iterator at);
  Map::iterator forget(Map::iterator at);
  const std::string& text_of(const std::string& key, const Tenant& tenant, bool* is_new);
  Tenant& of(const Peer& peer, const std::string& program, policy::TenantId former);
  void load();
  void load_pod(const nlohmann::json& entry, std::string* left_out);
  void load_tenant(const nlohmann::json& entry, std::string* left_out);
  void load_change(const std::string& line, std::string* left_out);
  Tenant& get(const std::string& key, const char* kind, const std::string& name);
  Tenant& get(const CgroupIdentity& cgroup);  // of all kinds but pods
  Tenant& of_pod(const std::string& uid);
  Tenant& get_job(uint32_t job);
  void forget_idle_jobs();
  Tenant* run_of(pid_t pid);

  const StartTimeOf start_time_ = start_time_of;
  Map tenants_;  // by what identifies it, such as "unit:/system.slice/train.service"
  std::map<policy::TenantId, Map::iterator> by_id_;
  std::map<policy::TenantId, Tenant*> trees_;  // runs and jobs: process trees
  bool saves_later_ = false;
  bool is_unsaved_ = false;
  policy::TenantId next_id_ = 1;
  std::optional<PersistedChanges> file_;
  std::string written_;                 // what it says as a whole
  std::set<policy::TenantId> touched_;  // may have changed since the last save
  std::vector<std::string> forgotten_;  // keys, since then
  struct Line {
    Tenant tenant;
    std::string text;
  };
  std::map<std::string, Line> lines_;  // of the file, by tenants_'s keys: made anew for a tenant that has changed
  std::string problem_;
};

// A client of it that came back had that limit there. The device plugin, which speaks for pods, will say it again, or that it no
// longer holds; until then each GPU has the lowest that was told there, and others the highest of them.
void recall_limit(Tenant& tenant, const std::string& gpu, int64_t memory);
// Where a job's memory limit is a part of the GPU: how much that is, now that it is known.
void settle_memory(Tenant& tenant, int64_t gpu_total);
// Which part of the tenant the process is, for limits that hold for that alone: of a pod, the container. Else 0.
uint64_t part_of(const Tenant& tenant, pid_t pid, const ProcessCgroups& cgroups);
bool is_over(const Tenant& tenant);        // and may be forgotten
bool has_limited(const Tenants& tenants);  // Tenants::limited(): there may be such processes
bool has_runs(const Tenants& tenants);     // whose root process lives, or that have clients

// Nobody speaks for the pod any more. Its processes may go on (it was deleted by force), leave and come back: they are held to what it had,
// and have no priority over others. What holds for it from now on.
PodLimits pod_gone(Tenants& tenants, const std::string& uid);
// All pods that were told of, or have clients, and are not gone; but for these.
std::set<std::string> pods_but(const Tenants& tenants, const std::set<std::string>& named);
// That hold for the pod, or will for its first client; null: nobody told of it.
const PodLimits* limits_of_pod(Tenants& tenants, const std::string& uid);

}  // namespace nvshare::scheduler
