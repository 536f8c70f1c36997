// The wait of `nvsharectl run --wait` and `--after`, before the program begins.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "cli/run_command.h"
#include "cli/scheduler_link.h"

namespace nvshare::cli {

// Nanoseconds, -1: for ever. The error names the option that is wrong.
Result<int64_t> patience_of(const RunOptions& options);

// Looks every half a second; tells on standard error what it waits for: in a terminal in one line that is written over. Returns at once
// when `options` ask for no wait. The value is the exit code when the program is not to begin.
std::optional<int> wait_to_start(const RunOptions& options, const std::string& visible_devices, SchedulerLink& link);

}  // namespace nvshare::cli
