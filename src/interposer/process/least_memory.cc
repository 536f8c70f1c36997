#include "interposer/process/least_memory.h"

#include <stdlib.h>

#include <algorithm>

#include "interposer/process/synchronize.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;

constinit LeastMemory least_memory;

bool LeastMemory::keep(CUdeviceptr address, CUcontext context) {
  Lock lock(mutex_);
  if (count_ == kMost) return false;
  if (count_ == room_) {
    const size_t room = std::max(kMany, 2 * room_);
    auto* const more = static_cast<Kept*>(realloc(kept_, room * sizeof(Kept)));
    if (more == nullptr) return false;
    kept_ = more;
    room_ = room;
  }
  kept_[count_++] = {address, context};
  any_.store(true, std::memory_order_relaxed);
  if (count_ >= kMany) imports_leave.store(true, std::memory_order_seq_cst);
  return true;
}

void LeastMemory::give_back(Captures& captures, CUcontext context) {
  if (!any_.load(std::memory_order_relaxed)) return;
  const NotCancelled whole;
  const CapturesHeldOff held_off(captures);
  if (!held_off) return;
  for (CUdeviceptr address : take(context)) real_driver().cuMemFree_v2(address);
}

void LeastMemory::give_back(Contexts& contexts, Captures& captures) {
  if (!any_.load(std::memory_order_relaxed)) return;
  for (CUcontext context : contexts.all(Contexts::kAllGpus)) {
    if (contexts.pin(context) != Contexts::Pinned::kYes) continue;
    if (real_driver().cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
      give_back(captures, context);
      CUcontext popped = nullptr;
      real_driver().cuCtxPopCurrent_v2(&popped);
    }
    contexts.unpin(context);
  }
}

std::vector<CUdeviceptr> LeastMemory::take(CUcontext context) {
  std::vector<CUdeviceptr> taken;
  Lock lock(mutex_);
  const auto end = std::remove_if(kept_, kept_ + count_, [&](const Kept& each) {
    if (each.context == context) taken.push_back(each.address);
    return each.context == context;
  });
  count_ = static_cast<size_t>(end - kept_);
  any_.store(count_ > 0, std::memory_order_relaxed);
  return taken;
}

void LeastMemory::reset_after_fork() {
  mutex_.reset_after_fork();
  count_ = 0;
  any_.store(false, std::memory_order_relaxed);
}

}  // namespace nvshare::interposer
