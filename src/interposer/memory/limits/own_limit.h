// The memory limit on each GPU that this program's environment names: what somebody asked for, and what the device plugin granted the
// container, on all its GPUs together, in even parts on each, or on each GPU, for a container that was granted nothing by name. The lowest
// holds, so that a pod that sets the first one itself only lowers. A value that cannot be read lifts no limit: the program gets
// no GPU (Link::start).
#pragma once

#include <stdlib.h>

#include "base/parse.h"
#include "interposer/variable.h"

namespace nvshare::interposer {

inline constexpr Variable kLimitVariable = {"NVSHARE_GPU_MEMORY_LIMIT", "bytes, or `8Gi`, `500M`",
                                            "lowers the memory limit of this process's tenant"};
inline constexpr Variable kGrantVariable = {"NVSHARE_GPU_MEMORY_GRANT", "bytes",
                                            "set by the Kubernetes plugins: what the container was granted"};
inline constexpr Variable kGrantGpusVariable = {"NVSHARE_GPU_MEMORY_GRANT_GPUS", "a number",
                                                "set by the Kubernetes plugins: on how many GPUs together"};
inline constexpr Variable kGrantDefaultVariable = {"NVSHARE_GPU_MEMORY_GRANT_DEFAULT", "bytes",
                                                   "set by the Kubernetes plugins: of a container that asked for none"};

struct OwnLimit {
  uint64_t bytes = 0;              // 0 = none
  const char* variable = nullptr;  // that says so
};

// `wrong(variable, why)` is called for each value that cannot be read.
template <typename Wrong>
OwnLimit own_memory_limit(const Wrong& wrong) {
  const auto read = [&](const Variable& variable, auto parse) -> uint64_t {
    const char* text = getenv(variable.name);
    if (text == nullptr || *text == '\0') return 0;
    const auto value = parse(text);
    if (value) return static_cast<uint64_t>(*value);
    wrong(variable.name, value.error().text);
    return 0;
  };
  OwnLimit asked{read(kLimitVariable, parse_bytes), kLimitVariable.name};
  const uint64_t gpus = read(kGrantGpusVariable, [](const char* text) { return parse_integer(text, 1, 1000); });
  OwnLimit granted{read(kGrantVariable, parse_bytes), kGrantVariable.name};
  const uint64_t by_default = read(kGrantDefaultVariable, parse_bytes);
  if (granted.bytes > 0 && gpus > 1) granted.bytes = granted.bytes / gpus + (granted.bytes % gpus != 0 ? 1 : 0);
  if (granted.bytes == 0) granted = {by_default, kGrantDefaultVariable.name};
  if (asked.bytes == 0) return granted;
  return granted.bytes == 0 || asked.bytes <= granted.bytes ? asked : granted;
}

}  // namespace nvshare::interposer
