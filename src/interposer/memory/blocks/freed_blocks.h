// What was freed and what the GPU has passed: a slot goes back to its slab, a block to the driver, or it is kept mapped for the program's
// next allocation while nobody waits for the GPU.
//
// Thread-safe. Locks the mutex of Blocks.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/swap/copies/host_copies.h"

namespace nvshare::interposer {

class Device;

class FreedBlocks {
 public:
  FreedBlocks(Device& device, Blocks& blocks, MemoryUse& use, BlockAccess& access, Backing& backing, HostCopies& copies)
      : device_(device), blocks_(blocks), use_(use), access_(access), backing_(backing), copies_(copies) {}

  // Gives one allocation back; its earlier work is done. `charged`: it is refunded. False: the address begins no allocation.
  bool give_back(cuda::CUdeviceptr address, bool charged, size_t* requested);
  // Takes a block out of the books: it is kept if it may be, disposed of, or doomed.
  void retire(Block* block, bool keep);
  // One that is kept and is what was ordered; or null.
  Block* take(const Blocks& blocks, const BlockOrder& order) REQUIRES(blocks.mutex);

  // Gives back what is kept. `gone`: a context that the driver has destroyed.
  void trim(cuda::CUcontext gone = nullptr);
  // Of that, what is kept for a moment only: the oldest, until no more is left than may be kept for long.
  void trim_brief();

 private:
  size_t lasting_max() const;
  void uncache_oldest(size_t at_most, std::vector<Block*>* victims) REQUIRES(blocks_.mutex);
  void retire_uncached(const std::vector<Block*>& victims);

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  BlockAccess& access_;
  Backing& backing_;
  HostCopies& copies_;
  std::vector<Block*> cache_ GUARDED_BY(blocks_.mutex);  // freed, mapped, oldest first
  size_t cached_bytes_ GUARDED_BY(blocks_.mutex) = 0;
};

}  // namespace nvshare::interposer
