// What was said of Slurm jobs while no scheduler answered (src/slurm): files in <runtime>/jobs, each one admin request. Files that are not
// the scheduler's user's alone are not believed.
#pragma once

#include <string>
#include <vector>

#include "protocol/admin.h"

namespace nvshare::scheduler {

struct WaitingRequests {
  std::vector<protocol::admin::JobRequest> requests;  // in the order of the files' names, which is that of time
  std::vector<std::string> problems;                  // of files that hold none
};

// Reads and removes them all. Call it when the admin socket listens: who finds nobody there after writing a file knows that it will be
// read.
WaitingRequests take_waiting_requests(const std::string& folder);

}  // namespace nvshare::scheduler
