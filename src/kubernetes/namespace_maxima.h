// What a pod of a namespace may have at most, whatever it was granted: "team-a:gpu-memory=16Gi,gpu-core=50;*:gpu-memory=8Gi", where `*`
// is every namespace that is not named. For clusters where a ResourceQuota, which bounds a namespace's sum, is not enough. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes {

struct NamespaceMaximum {
  int64_t memory = 0;  // bytes on each GPU, all the pod's processes together; 0 = none
  int core = 100;      // percent of each GPU's time; 100 = none
  bool operator==(const NamespaceMaximum&) const = default;
};
using NamespaceMaxima = std::map<std::string, NamespaceMaximum, std::less<>>;

// Errors name the part that cannot be read. "none": no maxima.
Result<NamespaceMaxima> parse_namespace_maxima(std::string_view text);

NamespaceMaximum maximum_of(const NamespaceMaxima& maxima, std::string_view name_space);

// The lower of each.
void lower_to(const NamespaceMaximum& maximum, protocol::admin::PodRequest* pod);

// "16Gi": from 1Mi to 1024Ti, with Mi, Gi or Ti; a bare number would be bytes, which nobody means.
Result<int64_t> parse_pod_memory(std::string_view text);

}  // namespace nvshare::kubernetes
