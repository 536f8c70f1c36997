#include "interposer/process/green_contexts.h"

#include <algorithm>

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUgreenCtx;

void GreenContexts::made(const Green& green) {
  Lock lock(mutex_);
  greens_.push_back(green);
  any_.store(true, std::memory_order_relaxed);
}

bool GreenContexts::find(CUgreenCtx handle, Green* found) {
  Lock lock(mutex_);
  for (const Green& green : greens_) {
    if (green.handle != handle) continue;
    *found = green;
    return true;
  }
  return false;
}

void GreenContexts::gone(CUgreenCtx handle) {
  Lock lock(mutex_);
  std::erase_if(greens_, [&](const Green& green) { return green.handle == handle; });
}

bool GreenContexts::is_current() {
  CUcontext current = nullptr;
  return any() && real_driver().cuCtxGetCurrent(&current) == cuda::CUDA_SUCCESS && primary_of(current) != current;
}

CUcontext GreenContexts::look_up(CUcontext context) {
  Lock lock(mutex_);
  for (const Green& green : greens_) {
    if (green.context == context) return green.primary;
  }
  return context;
}

}  // namespace nvshare::interposer
