// What the end of a context leaves: plain memory goes with it, memory of pools is the device's and stays, as natively.
#include "interposer/memory/allocations.h"
#include "interposer/memory/charges.h"
#include "interposer/memory/pools.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/process/synchronize.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;

bool Allocations::wait_before_free(CUcontext context, CUresult* result) {
  if (context != nullptr) return synchronize_before_free(device_.process().captures, context, result);
  // Any context of the GPU may have used it.
  return synchronize(device_.process().contexts, device_.process().captures, device_.ordinal());
}

bool Allocations::outlives_context(const Block& block) {
  if (block.kind != BlockKind::kVmm) return false;  // the driver's own allocation, which goes with the context
  return block.slab != nullptr ? SlabSet::outlives_context(block.slab) : block.notes.outlives_context();
}

void Allocations::context_gone(CUcontext context) {
  trim_cache(context);
  std::vector<Block*> dead;
  std::vector<CUdeviceptr> passed;
  std::vector<CUdeviceptr> ended;
  std::vector<CUdeviceptr> of_pools;  // that go nevertheless: these backends serve pools from the context's memory
  {
    Lock lock(blocks_.mutex);
    for (Block* block : blocks_.by_address()) {
      if (block->context != context || block->cached) continue;
      if (!outlives_context(*block)) {
        dead.push_back(block);
        continue;
      }
      block->context = nullptr;
      if (block->slab == nullptr) continue;
      for (CUdeviceptr address : SlabSet::ends_with_context(block->slab)) ended.push_back(address);
    }
    for (size_t i = async_frees_.size(); i-- > 0;) {
      AsyncFree& pending = async_frees_[i];
      if (pending.context != context && pending.stream_context != context) continue;  // its event went with the context
      const Block* block = blocks_.lookup(pending.address);
      const bool stays = pending.context != context || (block != nullptr && block->context == nullptr);
      if (stays && pending.stream_context != context) {
        pending.context = nullptr;  // the free waits for another context's stream
        continue;
      }
      if (stays) {
        passed.push_back(pending.address);
      } else {
        set_requested(pending.address, 0);  // refunded when it was freed
      }
      if (pending.event == nullptr) deferred_.fetch_sub(1, std::memory_order_relaxed);
      async_frees_.erase(async_frees_.begin() + static_cast<ptrdiff_t>(i));
    }
    for (Block* block : dead) {
      size_t charged = charged_bytes(block->requested);
      if (block->slab == nullptr && block->notes.of_pool) of_pools.push_back(block->base);
      if (block->slab != nullptr) {
        const std::vector<CUdeviceptr> within = SlabSet::of_pools(block->slab);
        of_pools.insert(of_pools.end(), within.begin(), within.end());
        charged = 0;
        for (uint32_t slot = 0; slot < block->slab->slots; ++slot) {
          if ((block->slab->occupied[slot / 64] >> (slot % 64) & 1) != 0) charged += charged_bytes(block->slab->requested[slot]);
        }
        slabs_.remove(block->slab);
      }
      if (block->kind != BlockKind::kVmm) block->context = nullptr;
      refund(device_, charged);
    }
  }
  for (CUdeviceptr address : of_pools) pools().take(address);
  for (Block* block : dead) retire(block, false);
  size_t requested = 0;
  for (CUdeviceptr address : passed) give_back(address, false, &requested);
  for (CUdeviceptr address : ended) give_back(address, true, &requested);
}

}  // namespace nvshare::interposer
