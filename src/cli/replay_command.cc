#include "cli/replay_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/replay_view.h"

namespace nvshare::cli {

int replay_command(const ReplayOptions& options) {
  const auto replayed = replay::replay(options.recording);
  if (!replayed) {
    fmt::print(stderr, "nvsharectl replay: {}: {}\n", options.recording, replayed.error().text);
    return kExitNotReplayed;
  }
  fmt::print("{}", options.json ? replay_json(*replayed, options.recording, NVSHARE_VERSION)
                                : replay_text(*replayed, options.recording, NVSHARE_VERSION));
  return exit_code_of(*replayed);
}

}  // namespace nvshare::cli
