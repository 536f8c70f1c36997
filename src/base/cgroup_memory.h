// What the memory limits of a process's cgroups leave it: versions 1 and 2, every level from its own up to the mount's root (in a container
// that is the container's). Reads files and keeps nothing; no allocation, so that it may run inside guest processes. Thread-safe.
#pragma once

#include <cstdint>

namespace nvshare {

inline constexpr char kCgroupRoot[] = "/sys/fs/cgroup";
// Where the cgroup file systems are mounted, when it is not kCgroupRoot. Read by the library and by the scheduler.
inline constexpr char kCgroupRootVariable[] = "NVSHARE_CGROUP_ROOT";

struct CgroupRoom {
  uint64_t limit = UINT64_MAX;      // of the level that leaves the least; UINT64_MAX: no level has a limit
  uint64_t available = UINT64_MAX;  // that it leaves: limit - usage, where file cache that the kernel would drop first is no usage
  bool limited() const { return limit != UINT64_MAX; }
};

// `cgroups`: the text of /proc/PID/cgroup. A limit is memory.max or memory.high, whichever is lower; with version 1
// memory.limit_in_bytes. Levels that cannot be read count as unlimited. Where the named folder does not exist under `root` (a container
// without a cgroup namespace sees its own cgroup as the mount's root), the root itself is the one level.
CgroupRoom cgroup_memory_room(const char* cgroups, const char* root);

// Of the calling process, under the root that the environment names.
CgroupRoom own_cgroup_memory_room();

}  // namespace nvshare
