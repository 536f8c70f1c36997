// Some chroots have no /proc, where much is looked up.
#pragma once

#include <unistd.h>

namespace nvshare::cli {

inline bool has_proc() { return access("/proc/self", F_OK) == 0; }
inline constexpr char kNoProc[] = "/proc is not mounted here: mount -t proc proc /proc";

}  // namespace nvshare::cli
