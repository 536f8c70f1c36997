// The MPS client in the stand-in driver: attaches the process to the daemon of CUDA_MPS_PIPE_DIRECTORY, for life. Thread-safe.
#pragma once

#include "simgpu/driver_calls.h"

namespace simgpu {

// As the driver does when CUDA is first initialised: where no daemon listens the process goes on without.
nvshare::cuda::CUresult attach_to_mps();
// It was attached, and the daemon or its server is gone: no call works any more.
bool mps_is_lost();

}  // namespace simgpu
