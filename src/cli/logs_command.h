// nvsharectl logs: what the scheduler has to say, wherever it goes.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace nvshare::cli {

struct LogsOptions {
  int lines = 50;       // the last ones
  bool follow = false;  // and what comes
};

// What shows a log. `output`: where the scheduler's standard error leads, as /proc/PID/fd/2 says; `pid`: the scheduler's.
Result<std::vector<std::string>> log_viewer(const std::string& output, int pid, const LogsOptions& options);

// Returns the exit code for nvsharectl, or becomes the program that shows the log.
int logs_command(const LogsOptions& options);

}  // namespace nvshare::cli
