// Where the scheduler listens. Both sides and nvsharectl derive every path from one runtime directory:
//   <runtime>/client/scheduler.sock   clients; this folder alone is mounted into containers
//   <runtime>/admin/admin.sock        nvsharectl, device plugin (JSON lines, see admin.h); never mounted
//   <runtime>/jobs/                   what was said of Slurm jobs while no scheduler answered: admin requests, one a file; for its owner
// <runtime> is NVSHARE_RUNTIME_DIR, else /run/nvshare (the machine's scheduler).
// A user's own scheduler (started by `nvsharectl run`) uses $XDG_RUNTIME_DIR/nvshare, else /tmp/nvshare-<uid>.
#pragma once

namespace nvshare::protocol {

inline constexpr char kRuntimeDirectoryVariable[] = "NVSHARE_RUNTIME_DIR";
inline constexpr char kRuntimeDirectoryDefault[] = "/run/nvshare";
inline constexpr char kClientSocket[] = "/client/scheduler.sock";
inline constexpr char kAdminSocket[] = "/admin/admin.sock";
inline constexpr char kJobsFolder[] = "/jobs";

}  // namespace nvshare::protocol
