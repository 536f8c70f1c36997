// Amounts as Kubernetes writes them ("80Gi", "1500m", "2e9"). Pure functions.
// Source: k8s.io/apimachinery/pkg/api/resource/quantity.go.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nvshare::kubernetes::dra {

inline constexpr int64_t kQuantityMost = int64_t{1} << 62;

// A whole number from 0 to kQuantityMost; parts of one are rounded up, as Kubernetes does.
Result<int64_t> parse_quantity(std::string_view text);

// The shortest way to write that many bytes with a power of 1024: "80Gi", "81559Mi".
std::string bytes_quantity(int64_t bytes);

}  // namespace nvshare::kubernetes::dra
