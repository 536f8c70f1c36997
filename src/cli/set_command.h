// nvsharectl set: limits of a tenant, or settings of the scheduler, changed while everything runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

// "TENANT core=40 memory=8Gi", or "scheduling_mode=weighted ..." without a tenant. Errors name the word.
Result<protocol::admin::SetRequest> parse_changes(const std::vector<std::string>& words);

// Of a tenant's name that begins with "job=": whether the rest is a Slurm job's number.
Result<void> check_job(const std::string& tenant);

// Whether a program may be given so much GPU memory; 0: no limit. Less than a mebibyte is a number whose unit was forgotten.
bool is_memory_limit(uint64_t bytes);
inline constexpr char kMemoryLimitAccepted[] = "accepted: 1Mi to 1024Ti, such as 8Gi, or 0, which is no limit";

// All return the exit code for nvsharectl.
int set_command(const std::vector<std::string>& words);
int pause_command(const std::string& tenant, bool pauses);  // nvsharectl pause, nvsharectl resume
int release_command(const std::string& tenant);             // nvsharectl release

}  // namespace nvshare::cli
