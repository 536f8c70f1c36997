// Which GPUs may use the memory of our blocks, besides the one that it is on. What the program asked for with cuCtxEnablePeerAccess, of its
// pools and by copies is repeated for every mapping of a chunk.
//
// Thread-safe. Of blocks of other kinds than kVmm it says nothing. Driver calls that change access are made with the mutex of Blocks held,
// but for those of a mapping that nobody else knows yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "cuda/driver_api.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/pools/pools.h"

namespace nvshare::interposer {

class Device;

class BlockAccess {
 public:
  BlockAccess(Device& device, Blocks& blocks) : device_(device), blocks_(blocks) {}

  // Gives a mapped chunk's GPUs access.
  cuda::CUresult grant(Block& block, uint32_t index);
  // Of what is mapped, gives access to the GPUs that are to have it now. `blocks` are those that the block is one of.
  void follow(const Blocks& blocks, Block& block) REQUIRES(blocks.mutex);
  // GPUs (bits) that may use this one's memory, from now on; this one always may.
  void set_accessors(uint32_t accessors);
  // The block that `address` lies in is open to those GPUs (bits) as well, as far as they can reach it, as long as it lives. False: nothing
  // changed.
  bool open_to(cuda::CUdeviceptr address, uint32_t gpus);
  // What we serve of this GPU's pools is open to the GPUs that `reach` says of all pools' memory, and to no others.
  void follow_pools(std::span<const Pools::Reach> reach);

 private:
  uint32_t accessors_of(const Block& block) const;

  Device& device_;
  Blocks& blocks_;
  std::atomic<uint32_t> accessors_{0};
};

}  // namespace nvshare::interposer
