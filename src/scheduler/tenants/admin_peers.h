// Who may send admin requests: root and the scheduler's own user, from outside containers. Reads /proc; pure where marked.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "scheduler/tenants/cgroup_identity.h"

namespace nvshare::scheduler {

// Not thread-safe.
class AdminPeers {
 public:
  // An error: the process at the other end may not, and why.
  Result<void> may_administer(int socket);

 private:
  std::string own_cgroups_;  // as `reader_` was made with: it looks at all mounts
  CgroupReader reader_;
};

// The same by the texts of its /proc/PID/cgroup and /proc/PID/status. A process in a PID namespace below the scheduler's own is in some
// container, whether or not its cgroup says so, and may only where that is the scheduler's own. Pure.
bool may_administer(const CgroupReader& reader, std::string_view cgroups, std::string_view status);

// An error: that process is in a container, which is not the scheduler's own, by its cgroup and the text of its /proc/PID/status.
Result<void> is_outside_containers(pid_t pid, std::string_view status);

// The text of /proc/PID/status, empty if there is no such process.
std::string status_text_of(pid_t pid);

}  // namespace nvshare::scheduler
