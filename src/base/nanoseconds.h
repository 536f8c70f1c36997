// Durations and points in time of std::chrono, as Condition (mutex.h) takes them.
#pragma once

#include <chrono>
#include <cstdint>

namespace nvshare {

constexpr int64_t nanoseconds_of(std::chrono::nanoseconds duration) { return duration.count(); }
constexpr int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) { return nanoseconds_of(time.time_since_epoch()); }

}  // namespace nvshare
