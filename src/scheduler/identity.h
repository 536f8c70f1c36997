// Who is at the other end of a socket: never what it says of itself, always what the kernel says. Reads /proc; pure where marked.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

struct Peer {
  pid_t pid = 0;  // in our PID namespace; 0 if it is in one that we do not see
  uid_t uid = 0;
  uint64_t start_time = 0;  // of the process, in clock ticks since boot: with the pid, names one process for good
  FileDescriptor pidfd;     // readable once the process has ended; none on kernels without
};

// The process that connected (SO_PEERCRED), even if a forked child of it holds the socket by now.
Result<Peer> peer_of(int socket);

// 0 if there is no such process.
uint64_t start_time_of(pid_t pid);
pid_t parent_of(pid_t pid);
std::string short_name_of(pid_t pid);

// The text of /proc/PID/cgroup, empty if there is no such process.
std::string cgroups_of(pid_t pid);

// A process' number as another sees it, in that one's PID namespace; 0 if it does not see it there, or one of them has ended.
pid_t pid_as_seen_by(pid_t viewer, pid_t pid);
// The same of the texts of both /proc/PID/status; same_namespace: their namespaces are one. Pure.
pid_t pid_as_seen_by(std::string_view viewer_status, std::string_view status, bool same_namespace);

struct CgroupIdentity {
  enum class Kind { kContainer, kPod, kUnit } kind;
  std::string name;       // a pod's UID as Kubernetes writes it, a container's id, a unit's name
  std::string container;  // of a pod: the cgroup below the pod's, one for each container; empty: the pod's itself
};

// What the text of /proc/PID/cgroup says: a pod or container, else a systemd unit of its own, else nothing (a login session). The
// outermost counts: who is root in a container may nest others' names below its own. A pod is known by either cgroup driver, in each
// hierarchy of version 1 and from inside another cgroup namespace; hierarchies that name different pods name none. Pure.
std::optional<CgroupIdentity> identify_cgroup(std::string_view cgroups);

// Whether somebody with these cgroups may send admin requests to a scheduler with those: not from inside a container that is not the
// scheduler's own, because root in a container is root to SO_PEERCRED too. Pure.
bool may_administer(std::string_view peer_cgroups, std::string_view own_cgroups);

}  // namespace nvshare::scheduler
