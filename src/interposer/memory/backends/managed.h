// How managed memory comes and goes: by prefetches, and what is left to demand paging by the driver (managed.cc).
#pragma once

#include "cuda/driver_api.h"
#include "interposer/memory/block.h"

namespace nvshare::interposer {

class Device;

// Starts a managed chunk's way in, unless it is better left to the program's own accesses.
cuda::CUresult prefetch_in(Device& device, const Piece& piece, cuda::CUstream stream, bool* copying);
// Managed memory beyond what the books count: the driver is to take it off the GPU, in stream order.
void push_demand_out(Device& device, cuda::CUstream stream);

}  // namespace nvshare::interposer
