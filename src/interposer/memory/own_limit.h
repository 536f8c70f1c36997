// The memory limit on each GPU that this program's environment names.
//
//   NVSHARE_GPU_MEMORY_LIMIT          what somebody asked for
//   NVSHARE_GPU_MEMORY_GRANT          what the device plugin granted the container on its NVSHARE_GPU_MEMORY_GRANT_GPUS (1) GPUs together,
//                                     in even parts on each
//   NVSHARE_GPU_MEMORY_GRANT_DEFAULT  the same on each GPU, for a container that was granted nothing by name
//
// The lowest holds, so that a pod that sets the first one itself only lowers. A value that cannot be read lifts no limit: the program gets
// no GPU (Client::start).
#pragma once

#include <stdlib.h>

#include "base/parse.h"

namespace nvshare::interposer {

struct OwnLimit {
  uint64_t bytes = 0;              // 0 = none
  const char* variable = nullptr;  // that says so
};

// `wrong(variable, why)` is called for each value that cannot be read.
template <typename Wrong>
OwnLimit own_memory_limit(const Wrong& wrong) {
  const auto read = [&](const char* variable, auto parse) -> uint64_t {
    const char* text = getenv(variable);
    if (text == nullptr || *text == '\0') return 0;
    const auto value = parse(text);
    if (value) return static_cast<uint64_t>(*value);
    wrong(variable, value.error().text);
    return 0;
  };
  OwnLimit asked{read("NVSHARE_GPU_MEMORY_LIMIT", parse_bytes), "NVSHARE_GPU_MEMORY_LIMIT"};
  const uint64_t gpus = read("NVSHARE_GPU_MEMORY_GRANT_GPUS", [](const char* text) { return parse_integer(text, 1, 1000); });
  OwnLimit granted{read("NVSHARE_GPU_MEMORY_GRANT", parse_bytes), "NVSHARE_GPU_MEMORY_GRANT"};
  const uint64_t by_default = read("NVSHARE_GPU_MEMORY_GRANT_DEFAULT", parse_bytes);
  if (granted.bytes > 0 && gpus > 1) granted.bytes = granted.bytes / gpus + (granted.bytes % gpus != 0 ? 1 : 0);
  if (granted.bytes == 0) granted = {by_default, "NVSHARE_GPU_MEMORY_GRANT_DEFAULT"};
  if (asked.bytes == 0) return granted;
  return granted.bytes == 0 || asked.bytes <= granted.bytes ? asked : granted;
}

}  // namespace nvshare::interposer
