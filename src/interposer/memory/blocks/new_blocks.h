// How a block is got: inside the gate, within the budget that the scheduler gave; what has no room waits for it, outside of the gate and
// with no lock held.
//
// While the process has the lock a block gets GPU memory at once; without the lock it is addresses only, and the swap engine gives it
// memory in the next turn. Thread-safe. Locks the mutex of Blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/blocks/freed_blocks.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/memory/limits/recent_ceilings.h"
#include "interposer/memory/residency/residency.h"

namespace nvshare::interposer {

class Device;

class NewBlocks {
 public:
  NewBlocks(Device& device, Blocks& blocks, MemoryUse& use, BlockAccess& access, Backing& backing, Residency& residency, FreedBlocks& freed)
      : device_(device), blocks_(blocks), use_(use), access_(access), backing_(backing), residency_(residency), freed_(freed) {}

  // The one way to get a block.
  cuda::CUresult allocate(const BlockOrder& order, Block** out);

 private:
  // One attempt to get a block, inside the gate.
  struct Attempt {
    Block* block = nullptr;  // null: there was no room, or `result` says why not
    cuda::CUresult result = cuda::CUDA_SUCCESS;
    bool now = false;  // it was to get its memory at once
  };
  bool enter_gate(bool needs_lock);
  bool attempt(const BlockOrder& order, bool needs_lock, Attempt* made);  // false: to be made once more
  bool reserve(const BlockOrder& order, bool needs_lock, Attempt* made) REQUIRES(blocks_.mutex);
  cuda::CUresult map(Block& block);
  cuda::CUresult refuse(size_t bytes, const char* why);
  bool frees_pass();
  bool ceiling_rose_again(size_t bytes, CeilingWait* wait) const;

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  BlockAccess& access_;
  Backing& backing_;
  Residency& residency_;
  FreedBlocks& freed_;
  std::atomic<int64_t> refusal_told_until_ns_{0};  // as a warning
};

}  // namespace nvshare::interposer
