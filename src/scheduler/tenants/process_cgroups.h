// What the cgroups of a process say: whose it is, and whether it is in a container. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "scheduler/tenants/admin_peers.h"
#include "scheduler/tenants/cgroup_identity.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {

class ProcessCgroups {
 public:
  using Look = std::function<std::string(pid_t)>;  // the text of /proc/PID/cgroup
  ProcessCgroups(Look look, CgroupReader reader) : look_(std::move(look)), reader_(std::move(reader)) {}

  std::optional<CgroupIdentity> identify(pid_t pid) const { return reader_.identify(look_(pid)); }
  // A number of the container in its pod; 0: in none that is known.
  uint64_t container_of(pid_t pid) const {
    const auto cgroup = identify(pid);
    return cgroup && !cgroup->container.empty() ? std::hash<std::string>()(cgroup->container) : 0;
  }
  bool is_outside_containers(const Peer& peer) const { return may_administer(reader_, look_(peer.pid), status_text_of(peer.pid)); }

 private:
  const Look look_;
  const CgroupReader reader_;
};

}  // namespace nvshare::scheduler
