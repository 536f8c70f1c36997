// What is behind a block: its addresses at the driver, the GPU memory of its chunks, and which GPUs may use that. What the program asked
// for with cuCtxEnablePeerAccess, of its pools and by copies is repeated for every mapping.
//
// Thread-safe. Driver calls are made without a lock, but for those that change access.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/driver_api.h"
#include "interposer/host_arena/host_arena.h"
#include "interposer/memory/block.h"
#include "interposer/memory/blocks.h"
#include "interposer/memory/pools.h"

namespace nvshare::interposer {

class Device;

// What a block is to be.
struct BlockOrder {
  size_t bytes;
  size_t requested;
  cuda::CUcontext context;
  ProgramHandle* handle = nullptr;  // set: memory for it
  unsigned managed = 0;             // the program's own managed memory: the flags of cuMemAllocManaged
  SlabUse use = SlabUse::kPlain;    // what is made for pools was never open to another GPU's copies
};

class Backing {
 public:
  Backing(Device& device, Blocks& blocks, HostArena& arena) : device_(device), blocks_(blocks), arena_(arena) {}

  // A block with addresses and no GPU memory, in no list; and its end: unmaps, returns addresses and host slots. No lock held.
  cuda::CUresult make(const BlockOrder& order, Block** out);
  void dispose(Block* block);

  // One chunk's GPU memory. No lock held; nobody else is at that chunk.
  cuda::CUresult map(Block& block, uint32_t index);
  void unmap(Block& block, uint32_t index);

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
  BlockKind kind_of(const BlockOrder& order) const;
  cuda::CUresult set_chunk_access(Block& block, uint32_t index);
  uint32_t accessors_of(const Block& block) const;

  Device& device_;
  Blocks& blocks_;
  HostArena& arena_;
  std::atomic<uint32_t> accessors_{0};
};

}  // namespace nvshare::interposer
