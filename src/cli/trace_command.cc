#include "cli/trace_command.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "cli/units.h"
#include "replay/chrome_trace.h"

namespace nvshare::cli {
namespace {

int fail(const std::string& text) {
  fmt::print(stderr, "nvsharectl trace: {}\n", text);
  return 1;
}

std::string counted(size_t number, const char* thing) { return fmt::format("{} {}{}", number, thing, number == 1 ? "" : "s"); }

}  // namespace

int trace_command(const TraceOptions& options) {
  std::ifstream recording(options.recording);
  if (!recording)
    return fail(fmt::format("cannot read {}: {}; nvshare-scheduler --trace FILE makes a recording", options.recording, strerror(errno)));
  replay::ChromeTrace trace;
  std::string line;
  for (size_t number = 1; std::getline(recording, line); ++number) {
    const auto added = trace.add(line);
    if (added) continue;
    if (recording.peek() == std::ifstream::traits_type::eof() && number > 1) break;  // the scheduler is writing it
    return fail(
        fmt::format("{} line {}: {}; accepted is what nvshare-scheduler --trace wrote", options.recording, number, added.error().text));
  }
  if (trace.summary().gpus == 0)
    return fail(fmt::format("{} has no GPU in it: no program has used one since it was begun", options.recording));
  const std::string text = trace.finish();
  if (options.output == "-") {
    fmt::print("{}", text);
    return std::fflush(stdout) == 0 ? 0 : fail("cannot write to standard output");
  }
  std::ofstream output(options.output, std::ios::trunc);
  output << text;
  output.close();
  if (!output) return fail(fmt::format("cannot write {}: {}; -o FILE names another", options.output, strerror(errno)));
  const auto summary = trace.summary();
  fmt::print("wrote {}: {}, {}, {}, {}; open it at https://ui.perfetto.dev\n", options.output, counted(summary.gpus, "GPU"),
             counted(summary.clients, "client"), counted(summary.turns, "turn"), format_duration(summary.length));
  return 0;
}

}  // namespace nvshare::cli
