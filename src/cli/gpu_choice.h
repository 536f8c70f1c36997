// Which GPU a program gets that names none. Pure, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

struct GpuChoice {
  std::string visible_devices;  // for CUDA_VISIBLE_DEVICES; empty = leave the environment as it is
  std::string description;      // for the start line
};

// The GPU with the fewest clients that wait or run, then the most memory that nobody has allocated. Of those that are alike in that the
// first, or as many further on as there are runs that have used no GPU yet: each of those was given one in the same way. With a single GPU,
// or none known, the environment stays as it is.
GpuChoice choose_emptiest(const protocol::admin::StatusReport& status);

// `wanted` is "all", or a list, separated by commas, of indices in the order of `status` and UUIDs (or beginnings of them), or of UUIDs of
// MIG devices. The error names what is wrong and lists what there is.
Result<GpuChoice> choose_named(const protocol::admin::StatusReport& status, const std::string& wanted);

// UUIDs of the GPUs of a list as choose_named takes it, of all for "all"; none where the list is empty or the scheduler knows no GPU yet.
// MIG devices are refused: the scheduler does not tell them apart.
Result<std::vector<std::string>> gpus_listed(const protocol::admin::StatusReport& status, const std::string& list);

// What the program will see by a CUDA_VISIBLE_DEVICES of the user's own, for the start line; it is never changed. As CUDA reads it: a list
// of indices, UUIDs or beginnings of them, or a MIG device; what it does not know (such as -1) ends the list, an empty value shows no GPU.
std::string describe_visible(const protocol::admin::StatusReport& status, const std::string& value);

}  // namespace nvshare::cli
