// Allocations that the driver serves itself and that cannot move: claimed first, then allocated inside the gate, with room made where the
// driver is out of memory all the same.
#pragma once

#include "interposer/hooks/shortage.h"
#include "interposer/process/device.h"

namespace nvshare::interposer {

// `bytes`: what it takes. `call(&key)` asks the driver and says by which key the memory will be released (DriverMemory::release).
// `context`: with which it ends at the latest.
template <typename Call>
cuda::CUresult allocate_unswappable(Device& device, const char* what, size_t bytes, cuda::CUcontext context, Call call) {
  Shortage shortage(what);
  for (;;) {
    cuda::CUresult result = device.memory().driver.claim(bytes, what);
    if (result != cuda::CUDA_SUCCESS) return result;
    uint64_t key = 0;
    result = call(&key);
    device.memory().driver.settle(bytes, {key, result == cuda::CUDA_SUCCESS ? bytes : 0, context});
    if (result != cuda::CUDA_ERROR_OUT_OF_MEMORY || !shortage.make_room(device)) return result;
  }
}

}  // namespace nvshare::interposer
