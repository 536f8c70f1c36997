// Tenants: who shares limits. A process belongs to the `nvsharectl run` that started it, else to its container or systemd unit, else
// it is a tenant of its own. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "policy/policy.h"
#include "scheduler/identity.h"

namespace nvshare::scheduler {

struct Tenant {
  policy::TenantId id = 0;
  std::string name;
  std::string kind;              // "run", "container", "unit" or "process"
  int64_t gpu_memory_limit = 0;  // bytes, 0 = none
  int core_limit = 100;          // percent of each GPU's time, 100 = none
  int priority = 0;
  bool gang_turns = true;     // on several GPUs: its turns are on all of them together
  uint64_t clients = 0;       // now
  uint64_t clients_ever = 0;  // those now included
  pid_t root = 0;             // of a run: the process that the tree hangs from
  uint64_t root_start_time = 0;
};

class Tenants {
 public:
  // Registers the process tree rooted at `pid`. Registering the same process again changes name and limit.
  Result<policy::TenantId> add_run(pid_t pid, const std::string& name, int64_t gpu_memory_limit, bool gang_turns = true,
                                   int core_limit = 100);

  // The tenant of a process; counts one more client.
  Tenant& join(const Peer& peer, const std::string& program);
  void leave(policy::TenantId id);
  // The tenant that the process belongs to, or would (an id that no client has then).
  struct Asked {
    policy::TenantId id;
    int64_t gpu_memory_limit;  // 0 = none
  };
  Asked ask(const Peer& peer);

  Tenant* find(policy::TenantId id);
  // By name, or by the decimal id. Null when there is none or several of that name.
  Tenant* find(const std::string& name_or_id);
  const std::map<std::string, Tenant>& all() const { return tenants_; }

  bool has_runs();  // whose root process lives
  // Forgets runs that ended.
  void prune();

 private:
  Tenant& of(const Peer& peer, const std::string& program);
  Tenant& get(const std::string& key, const char* kind, const std::string& name);
  Tenant* run_of(pid_t pid);

  std::map<std::string, Tenant> tenants_;  // by what identifies it, such as "unit:train.service"
  policy::TenantId next_id_ = 1;
};

}  // namespace nvshare::scheduler
