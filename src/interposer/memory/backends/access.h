// Which GPUs may use a piece of virtual memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

// Gives the GPUs of `accessors` (bit n: GPU n) read and write access to whole mappings, and takes it from those of `before` that are not
// among them.
cuda::CUresult grant_access(cuda::CUdeviceptr address, size_t bytes, uint32_t accessors, uint32_t before);

// Those of `gpus` (bits) that can reach another GPU's memory.
uint32_t reachable(uint32_t gpus, int other);

}  // namespace nvshare::interposer
