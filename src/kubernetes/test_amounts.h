// Amounts of memory that tests speak of.
#pragma once

#include <cstdint>

namespace nvshare::kubernetes {

inline constexpr int64_t kGib = 1LL << 30;

}  // namespace nvshare::kubernetes
