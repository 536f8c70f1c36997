// Starts nvshare-slurm-step (step_watch.h) from within slurmstepd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace nvshare::slurm {

// Its process, a child of the caller, in the cgroup of `task`; it ends with the caller. The program lies beside the plugin.
Result<pid_t> start_watch(uint32_t job, const std::string& runtime_dir, int suspend_time, pid_t task);

}  // namespace nvshare::slurm
