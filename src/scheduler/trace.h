// A trace is a file of JSON lines: first {"config":{...}}, then one {"now":..,"event":"LockRequested",...} per policy event, so that any
// day replays. A daemon that restarts appends a new beginning to the same file. Not thread-safe.
#pragma once

#include <fstream>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "policy/policy.h"

namespace nvshare::scheduler {

struct TraceEvent {
  policy::Instant now = 0;
  policy::Event event;
};
using TraceLine = std::variant<policy::Config, TraceEvent>;

std::string encode_trace(const TraceLine& line);  // without newline
Result<TraceLine> decode_trace(std::string_view line);

class TraceWriter {
 public:
  static Result<TraceWriter> open(const std::string& file, const policy::Config& config);
  void write(const TraceEvent& event);
  void flush() { stream_.flush(); }

 private:
  explicit TraceWriter(std::ofstream stream) : stream_(std::move(stream)) {}
  std::ofstream stream_;
};

}  // namespace nvshare::scheduler
