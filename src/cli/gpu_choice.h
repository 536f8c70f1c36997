// Which GPU a program gets that names none. Pure, thread-safe.
#pragma once

#include <string>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

struct GpuChoice {
  std::string visible_devices;  // for CUDA_VISIBLE_DEVICES; empty = leave the environment as it is
  std::string description;      // for the start line
};

// The GPU with the fewest clients that wait or run, then the most memory that nobody has allocated, then the first of the list.
// With a single GPU, or none known, the environment stays as it is.
GpuChoice choose_emptiest(const protocol::admin::StatusReport& status);

// `wanted` is "all", an index in the order of `status`, or a UUID (or the beginning of one). The error lists what there is.
Result<GpuChoice> choose_named(const protocol::admin::StatusReport& status, const std::string& wanted);

}  // namespace nvshare::cli
