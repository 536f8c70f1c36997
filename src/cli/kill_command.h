// nvsharectl kill: a signal to all processes of a tenant.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

// "TERM", "SIGTERM" or "15". The error lists what is accepted.
Result<int> parse_signal(const std::string& text);

// The one tenant of that name or id; of a Slurm job, "job=NUMBER". The error names the tenants that there are, or those that share the
// name.
Result<uint64_t> tenant_meant(const protocol::admin::StatusReport& status, const std::string& name);

// Of a run: all that hang from its first process, but not that one, which is nvsharectl and ends with its program, nor a scheduler that it
// has started. Of any tenant: its clients. `parents`: of all processes. Ascending.
std::vector<pid_t> processes_of(const protocol::admin::StatusReport& status, uint64_t tenant, const std::map<pid_t, pid_t>& parents);

// Returns the exit code for nvsharectl.
int kill_command(const std::string& tenant, const std::string& signal);

}  // namespace nvshare::cli
