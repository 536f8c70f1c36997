// Amounts that the tests of this folder share.
#pragma once

#include <cstdint>

namespace nvshare::scheduler {

inline constexpr int64_t kMiB = 1 << 20;
inline constexpr int64_t kGiB = 1 << 30;
inline constexpr int64_t kSecond = 1'000'000'000;  // in nanoseconds

}  // namespace nvshare::scheduler
