// The program's allocations on one GPU: made and freed as the driver would answer. Small ones share slabs.
//
// An allocation reserves its address for life; how it gets memory is NewBlocks' concern. It is charged against the tenant's limit first of
// all, outside the gate; what fails is refunded. Thread-safe. Locks the mutex of Blocks. Waits with no lock held and outside the gate.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/blocks/freed_blocks.h"
#include "interposer/memory/blocks/new_blocks.h"
#include "interposer/memory/blocks/slab.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/memory/pools/stream_frees.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;

class Allocations {
 public:
  Allocations(Device& device, Blocks& blocks, MemoryUse& use, Backing& backing, FreedBlocks& freed, StreamFrees& stream_frees,
              NewBlocks& new_blocks)
      : device_(device),
        blocks_(blocks),
        use_(use),
        backing_(backing),
        freed_(freed),
        stream_frees_(stream_frees),
        new_blocks_(new_blocks) {}

  // Driver calls, as the hooks answer them. `context` is current.
  cuda::CUresult allocate(cuda::CUdeviceptr* address, size_t bytes, cuda::CUcontext context);
  // False when the address is not ours. Waits for the GPU's earlier work first, as cuMemFree does.
  bool free(cuda::CUdeviceptr address, cuda::CUresult* result);
  // In stream order (stream_frees.h).
  cuda::CUresult allocate_async(cuda::CUdeviceptr* address, size_t bytes, cuda::CUstream stream, bool per_thread, cuda::CUcontext context);
  bool free_async(cuda::CUdeviceptr address, cuda::CUstream stream, bool per_thread, cuda::CUcontext context, cuda::CUcontext green,
                  cuda::CUresult* result);
  // The program's own managed memory. It swaps by prefetches, and the program may use it on the host without the lock.
  cuda::CUresult allocate_managed(cuda::CUdeviceptr* address, size_t bytes, unsigned flags, cuda::CUcontext context);

  // Memory that the program makes by cuMemCreate; `handle` says what. It is mapped by program_vmm.
  cuda::CUresult allocate_handle(ProgramHandle* handle);
  void free_handle(Block* block);  // deletes the ProgramHandle, too

  // The context's allocations end with it, but for those from pools: they are the device's, stay where they are, and move by whatever
  // context there is. Called once the driver has destroyed it.
  void context_gone(cuda::CUcontext context);

 private:
  cuda::CUresult place(cuda::CUdeviceptr* address, size_t bytes, cuda::CUcontext context, SlabUse use);  // allocate() without the limit
  // Program bytes of the allocation that begins at address, and what its memory could hold; false: none.
  bool measure(cuda::CUdeviceptr address, size_t* requested, size_t* capacity, cuda::CUcontext* context);
  void now_of_pool(cuda::CUdeviceptr address) REQUIRES(blocks_.mutex);
  bool is_of_pool(cuda::CUdeviceptr address);
  static bool outlives_context(const Block& block);                    // with the mutex
  static size_t charged_for(const Block& block);                       // with the mutex
  static std::vector<cuda::CUdeviceptr> of_pools(const Block& block);  // what pools have handed out of it; with the mutex

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  Backing& backing_;
  FreedBlocks& freed_;
  StreamFrees& stream_frees_;
  NewBlocks& new_blocks_;
  bool slab_coming_ GUARDED_BY(blocks_.mutex) = false;  // some thread makes one: others wait for it, or many at once would make one each
  Condition slab_came_;
};

}  // namespace nvshare::interposer
