// The opaque parameters of a claim or a DeviceClass for this driver, beside its amounts:
//
//   {"apiVersion":"gpu.nvshare.com/v1alpha1","kind":"GpuShareConfig","priority":-10,"memoryBackend":"managed"}
//
// Unknown fields are refused, so that a misspelt one is not silently without effect. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "kubernetes/dra/json_fields.h"

namespace nvshare::kubernetes::dra {

inline constexpr char kDriverName[] = "gpu.nvshare.com";
inline constexpr char kConfigVersion[] = "gpu.nvshare.com/v1alpha1";
inline constexpr char kConfigKind[] = "GpuShareConfig";
inline constexpr size_t kConfigBytesMax = 10 << 10;  // Kubernetes takes no more

struct ShareConfig {
  std::optional<int> priority;  // of the pod among those that wait, as the annotation nvshare.com/priority
  std::string memory_backend;   // "vmm", "managed" or "none" (NVSHARE_MEMORY_BACKEND); empty: the library's default
  bool operator==(const ShareConfig&) const = default;
};

// `priority_max`: the highest that is accepted, at most protocol::admin::kPriorityMax. Errors name the field and what is accepted.
Result<ShareConfig> parse_share_config(const Json& parameters, int priority_max);

// What a DeviceClass says and what a claim says: the later backend holds, and of two priorities the lower one, since a claim must not
// undo what the class's administrator took.
ShareConfig joined_config(const ShareConfig& earlier, const ShareConfig& later);

}  // namespace nvshare::kubernetes::dra
