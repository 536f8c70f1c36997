// nvsharectl trace: a scheduler's recording as a file that Perfetto opens.
#pragma once

#include <string>

namespace nvshare::cli {

struct TraceOptions {
  std::string recording;
  std::string output = "nvshare-trace.json";  // "-": standard output
};

int trace_command(const TraceOptions& options);

}  // namespace nvshare::cli
