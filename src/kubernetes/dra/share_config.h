// The opaque parameters of a claim or a DeviceClass for this driver, beside its amounts:
//
//   {"apiVersion":"gpu.nvshare.com/v1alpha1","kind":"GpuShareConfig","priority":-10,"sharing":"turns","memoryBackend":"managed"}
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
  std::string sharing;          // one of protocol::admin::kSharingWords; empty: as the node has it
  int turn_seconds = 0;         // the longest turn while others wait, up to protocol::admin::kTurnSecondsMax; 0: as long as all others'
  bool operator==(const ShareConfig&) const = default;
};

// Where it comes from: the administrator in a DeviceClass, or whoever may write a claim.
struct ConfigSource {
  bool is_class = false;  // may shorten turns, which the neighbours have to bear
  int priority_max = 0;   // the highest that is accepted, at most protocol::admin::kPriorityMax
};
// Errors name the field and what is accepted.
Result<ShareConfig> parse_share_config(const Json& parameters, const ConfigSource& source);

// What a DeviceClass says and what a claim says: the later backend holds, of two priorities the lower one, of two lengths of turns the
// shorter one, and the earlier way of sharing, since a claim must not undo what the class's administrator decided.
ShareConfig joined_config(const ShareConfig& earlier, const ShareConfig& later);

}  // namespace nvshare::kubernetes::dra
