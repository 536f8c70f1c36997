// Who may send admin requests: root and the scheduler's own user, from outside containers. Reads /proc; pure where marked.
#pragma once

#include <string_view>

#include "base/result.h"
#include "scheduler/cgroup_identity.h"

namespace nvshare::scheduler {

// An error: the process at the other end may not, and why.
Result<void> may_administer(int socket);

// The same by the texts of its /proc/PID/cgroup and /proc/PID/status. A process in a PID namespace below the scheduler's own is in some
// container, whether or not its cgroup says so, and may only where that is the scheduler's own. Pure.
bool may_administer(const CgroupReader& reader, std::string_view cgroups, std::string_view status);

}  // namespace nvshare::scheduler
