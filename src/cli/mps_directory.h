// Where a program that `nvsharectl run` starts finds its trust group's MPS daemon: asks the scheduler, over the clients' socket, as each
// user may.
#pragma once

#include <string>

namespace nvshare::cli {

struct MpsDirectory {
  std::string directory;  // for CUDA_MPS_PIPE_DIRECTORY; empty: none
  std::string refusal;    // why there is none although the scheduler has them; else empty
};

// Waits until the daemon serves, or the scheduler says that it will not; 20 s at most. Nothing where the scheduler does not answer, has MPS
// off or is of a release that does not know it; but why, where a trust group is named.
MpsDirectory ask_for_mps(const std::string& runtime_directory, const std::string& trust_group);

}  // namespace nvshare::cli
