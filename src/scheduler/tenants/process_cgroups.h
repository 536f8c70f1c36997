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

  // While it lives, what is asked of that process comes from one look: it may move between two. One at a time.
  class Held {
   public:
    Held(const ProcessCgroups& of, pid_t pid) : of_(of) { of_.held_.emplace(pid, of_.look_(pid)); }
    ~Held() { of_.held_.reset(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    bool readable() const { return of_.held_->second != kUnreadableCgroups; }

   private:
    const ProcessCgroups& of_;
  };

  std::optional<CgroupIdentity> identify(pid_t pid) const { return reader_.identify(text_of(pid)); }
  // A number of the container in its pod; 0: in none that is known.
  uint64_t container_of(pid_t pid) const {
    const auto cgroup = identify(pid);
    return cgroup && !cgroup->container.empty() ? std::hash<std::string>()(cgroup->container) : 0;
  }
  bool is_outside_containers(const Peer& peer) const { return may_administer(reader_, text_of(peer.pid), status_text_of(peer.pid)); }

 private:
  std::string text_of(pid_t pid) const { return held_ && held_->first == pid ? held_->second : look_(pid); }

  const Look look_;
  mutable std::optional<std::pair<pid_t, std::string>> held_;
  const CgroupReader reader_;
};

}  // namespace nvshare::scheduler
