// nvsharectl replay: whether this build's policy decides as a recording says, and where it first does not.
#pragma once

#include <string>

namespace nvshare::cli {

struct ReplayOptions {
  std::string recording;
  bool json = false;
};

int replay_command(const ReplayOptions& options);

}  // namespace nvshare::cli
