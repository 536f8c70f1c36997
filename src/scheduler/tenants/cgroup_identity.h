// What a cgroup path says of a process: the pod, Slurm job, container or unit that it is in. The kernel's word, and one that a process
// cannot change for another tenant's: a path counts from the root of the hierarchy to the first folder that names a tenant, and what stands
// below that folder may have been made by the tenant itself. Pure but for CgroupReader::here().
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nvshare::scheduler {

struct CgroupIdentity {
  enum class Kind { kContainer, kPod, kJob, kUnit } kind;
  std::string
      name;  // to show: a pod's UID as Kubernetes writes it, a container's id, a unit's name; "user-1000/..." below a user's manager
  std::string path;       // from the root up to and including the folder that names it: two with the same path are the same
  uint32_t job = 0;       // of a job: its number
  std::string container;  // of a pod: the cgroup below the pod's, one for each container; empty: the pod's itself
};

// Reads others' cgroups from where the scheduler stands. Pods count only below the kubelet's root folder: where the scheduler's own
// cgroup shows it if the scheduler is in a pod, else at the standard places (/kubepods, /kubelet/kubepods, or a slice that systemd has
// nested from the root, such as /kubepods.slice or /kubelet.slice/kubelet-kubepods.slice).
class CgroupReader {
 public:
  CgroupReader() = default;  // of a scheduler that is in no pod
  // By the texts of /proc/self/cgroup and /proc/self/mountinfo. The latter names the pod where a cgroup namespace hides its folder.
  CgroupReader(std::string_view own_cgroups, std::string_view own_mounts);
  static CgroupReader here();

  // What the text of /proc/PID/cgroup says; nothing for a login session, say. A pod is known by either cgroup driver, in each hierarchy of
  // version 1, and from inside another cgroup namespace; hierarchies that name different pods name none.
  std::optional<CgroupIdentity> identify(std::string_view cgroups) const;

  // Whether somebody with these cgroups may send admin requests: not from inside a container that is not the scheduler's own, because root
  // in a container is root to SO_PEERCRED too.
  bool may_administer(std::string_view peer_cgroups) const;

 private:
  std::optional<CgroupIdentity> identify_path(std::string_view path) const;

  std::string own_cgroups_ = "0::/\n";
  std::string own_pod_;               // UID; empty: in none, or shown by the cgroups
  std::set<std::string> pods_below_;  // the kubelet's root folders, as the scheduler's own cgroup shows them; empty: the standard places
};

}  // namespace nvshare::scheduler
