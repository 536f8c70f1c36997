// The device memory of this process on one GPU, in parts that each own one thing. Callers use the part that they need. The order is that of
// use: a part knows those above it; what it needs of a later one it asks of Device::memory().
#pragma once

#include "interposer/host_arena/host_arena.h"
#include "interposer/memory/allocations.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/blocks/freed_blocks.h"
#include "interposer/memory/blocks/new_blocks.h"
#include "interposer/memory/driver_memory/driver_memory.h"
#include "interposer/memory/handles/exports.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/memory/pools/stream_frees.h"
#include "interposer/memory/residency/pieces.h"
#include "interposer/memory/residency/residency.h"
#include "interposer/swap/copies/host_copies.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;

struct DeviceMemory {
  explicit DeviceMemory(Device& device);

  // As the scheduler is told.
  protocol::MemoryReport report();
  // What is freed and only kept for reuse, what waits for the GPU to pass a stream-ordered free, for which it waits so long at most, and
  // what the driver keeps. The GPU may wait for the calling thread meanwhile, so no patience is endless.
  static constexpr int64_t kShortWork_ns = 200'000'000;
  static constexpr int64_t kLongWork_ns = 10'000'000'000;  // before the program is refused what it would have then
  void give_back_caches(int64_t patience_ns = kShortWork_ns);
  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

  Device& device;
  MemoryUse use;             // how much there is
  Blocks blocks;             // which addresses are ours
  HostArena arena;           // host memory for what is out
  BlockAccess access;        // which GPUs may use blocks' memory
  Backing backing;           // addresses and GPU memory behind blocks
  HostCopies copies;         // host copies of what is on the GPU
  Residency residency;       // what is on the GPU, and may be
  Pieces pieces;             // of blocks, on their way out or in
  DriverMemory driver;       // what the driver allocates for the program, and cannot move
  FreedBlocks freed;         // what is freed: kept for the next allocation, or given back
  StreamFrees stream_frees;  // what is freed in stream order, and not passed yet
  NewBlocks new_blocks;      // how a block is got
  Exports exports;           // what other processes may use
  Allocations allocations;   // what the program allocates and frees
};

}  // namespace nvshare::interposer
