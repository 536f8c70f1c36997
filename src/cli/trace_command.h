// nvsharectl trace: what a scheduler recorded, or remembers of the last minute, as a file that Perfetto opens.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/admin_connection.h"
#include "replay/chrome_trace.h"

namespace nvshare::cli {

struct TraceOptions {
  std::string recording;                      // empty: the scheduler that runs is asked
  std::string output = "nvshare-trace.json";  // "-": standard output
  double last_s = 0;                          // of a running scheduler's, only so far back; 0: all
};

int trace_command(const TraceOptions& options);

// What a running scheduler does, bit by bit: it remembers a minute, so that fetch() is due more often than that.
class LiveTrace {
 public:
  // From `last_ns` ago; 0: as far back as the scheduler remembers.
  LiveTrace(AdminConnection admin, int64_t last_ns) : admin_(std::move(admin)), last_ns_(last_ns) {}
  Result<void> fetch();
  replay::ChromeTrace& picture() { return picture_; }

 private:
  AdminConnection admin_;
  int64_t last_ns_;
  uint64_t next_ = 0;
  replay::ChromeTrace picture_;
};

// One line about it: what was written to where.
Result<std::string> write_picture(replay::ChromeTrace& picture, const std::string& output);

}  // namespace nvshare::cli
