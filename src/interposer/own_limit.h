// The memory limit on each GPU that this program's environment names.
//
//   NVSHARE_GPU_MEMORY_LIMIT          what somebody asked for
//   NVSHARE_GPU_MEMORY_GRANT          what the device plugin granted the container on its NVSHARE_GPU_MEMORY_GRANT_GPUS (1) GPUs together,
//                                     in even parts on each
//   NVSHARE_GPU_MEMORY_GRANT_DEFAULT  the same on each GPU, for a container that was granted nothing by name
//
// The lowest holds, so that a pod that sets the first one itself only lowers.
#pragma once

#include <stdlib.h>

#include <algorithm>

#include "base/parse.h"

namespace nvshare::interposer {

// `refused(variable, why)` is told of each value that cannot be read; that one counts as none. 0 = no limit.
template <typename Refused>
uint64_t own_memory_limit(const Refused& refused) {
  const auto read = [&](const char* variable, auto parse) -> uint64_t {
    const char* text = getenv(variable);
    if (text == nullptr || *text == '\0') return 0;
    const auto value = parse(text);
    if (value) return static_cast<uint64_t>(*value);
    refused(variable, value.error().text);
    return 0;
  };
  const uint64_t asked = read("NVSHARE_GPU_MEMORY_LIMIT", parse_bytes);
  const uint64_t gpus = read("NVSHARE_GPU_MEMORY_GRANT_GPUS", [](const char* text) { return parse_integer(text, 1, 1000); });
  uint64_t granted = read("NVSHARE_GPU_MEMORY_GRANT", parse_bytes);
  if (granted > 0 && gpus > 1) granted = granted / gpus + (granted % gpus != 0 ? 1 : 0);
  if (granted == 0) granted = read("NVSHARE_GPU_MEMORY_GRANT_DEFAULT", parse_bytes);
  return asked == 0 || granted == 0 ? asked + granted : std::min(asked, granted);
}

}  // namespace nvshare::interposer
