// nvsharectl set: limits of a tenant, or settings of the scheduler, changed while everything runs.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

// "TENANT core=40 memory=8Gi", or "scheduling_mode=weighted ..." without a tenant. Errors name the word.
Result<protocol::admin::SetRequest> parse_changes(const std::vector<std::string>& words);

// All return the exit code for nvsharectl.
int set_command(const std::vector<std::string>& words);
int pause_command(const std::string& tenant, bool pauses);  // nvsharectl pause, nvsharectl resume
int release_command(const std::string& tenant);             // nvsharectl release

}  // namespace nvshare::cli
