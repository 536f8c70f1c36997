// Figures for people: three significant digits, binary units, durations as one would say them. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace nvshare::cli {

// "0 B", "512 B", "1.5 KiB", "384 MiB", "24 GiB", "1.37 TiB".
std::string format_bytes(uint64_t bytes);

// Nanoseconds >= 0: "0 s", "850 ms", "12.3 s", "3 min 05 s", "2 h 07 min", "3 d 04 h". Below a millisecond: "<1 ms".
std::string format_duration(int64_t nanoseconds);

}  // namespace nvshare::cli
