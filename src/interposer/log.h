// The library's voice in somebody else's process: whole lines on stderr, few of them, never allocating. Thread-safe.
#pragma once

#include <cstdint>

namespace nvshare::interposer {

enum class LogLevel : int { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// NVSHARE_LOG_LEVEL, read once; warning when unset or wrong (a wrong value is named in a warning).
bool log_enabled(LogLevel level);

// One line "nvshare: <level>: ...". Past kLinesMax lines of warnings and errors a process says no more.
[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...);

}  // namespace nvshare::interposer
