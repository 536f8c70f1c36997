// nvsharectl top: a live view of the GPUs, who has them and who waits.
#pragma once

#include <string>

namespace nvshare::cli::top {

struct TopOptions {
  double interval_s = 1;
  bool once = false;  // one picture, without control sequences
  int columns = 0;    // of that picture; 0: the terminal's, else 120
  bool colour = true;
};

int top_command(const TopOptions& options);

}  // namespace nvshare::cli::top
