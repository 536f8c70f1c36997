// Tells the node's scheduler of a job, as root. Where no scheduler answers, what was to be said waits for it in a file.
#pragma once

#include <string>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::slurm {

enum class Told { kNow, kWaits };

// An error: the scheduler refused, or neither it nor its folder takes the request.
Result<Told> tell(const std::string& runtime_dir, const protocol::admin::JobRequest& request);

// What the job used on this node's GPUs, for people; empty: nothing, or no scheduler answers.
std::string use_of_job(const std::string& runtime_dir, uint32_t job);

}  // namespace nvshare::slurm
