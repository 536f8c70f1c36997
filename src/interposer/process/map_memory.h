// Physical memory at an address of ours, or of the program's where only we map. Thread-safe.
#pragma once

#include <cstddef>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

// Where nothing is to be mapped by now. What an unmapping of ours left there, as the driver failed in it, goes first.
cuda::CUresult map_memory(cuda::CUdeviceptr address, size_t bytes, size_t offset, cuda::CUmemGenericAllocationHandle handle);

}  // namespace nvshare::interposer
