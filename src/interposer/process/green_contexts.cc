#include "interposer/process/green_contexts.h"

#include <algorithm>
#include <new>

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUgreenCtx;

GreenContexts& green_contexts() {
  alignas(GreenContexts) static constinit unsigned char storage[sizeof(GreenContexts)] = {};
  static constinit std::atomic<GreenContexts*> instance{nullptr};
  static constinit Mutex making;
  GreenContexts* found = instance.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return *found;
  Lock lock(making);
  found = instance.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = new (storage) GreenContexts;
    instance.store(found, std::memory_order_release);
  }
  return *found;
}

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
