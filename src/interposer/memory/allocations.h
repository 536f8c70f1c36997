// The program's allocations on one GPU: made and freed as the driver would answer. Small ones share slabs; what is freed is given back at
// once, or kept mapped for the next one.
//
// An allocation reserves its address for life. While the process has the lock it gets GPU memory at once, within the budget that the
// scheduler gave; without the lock it is an address only, and the swap engine (swap.h) gives it memory in the next turn. It is charged
// against the tenant's limit first of all, outside the gate; what fails is refunded. Thread-safe. Locks the mutex of Blocks. Waits for the
// scheduler (growth) with no lock held and outside the gate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/descriptors.h"
#include "cuda/driver_api.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/blocks.h"
#include "interposer/memory/memory_use.h"
#include "interposer/memory/recent_ceilings.h"
#include "interposer/memory/residency/residency.h"
#include "interposer/memory/slab.h"
#include "interposer/swap/copies/host_copies.h"
#include "interposer/sync.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;
struct IpcToken;

class Allocations {
 public:
  Allocations(Device& device, Blocks& blocks, MemoryUse& use, BlockAccess& access, Backing& backing, HostCopies& copies,
              Residency& residency)
      : device_(device), blocks_(blocks), use_(use), access_(access), backing_(backing), copies_(copies), residency_(residency) {}

  // Driver calls, as the hooks answer them. `context` is current.
  cuda::CUresult allocate(cuda::CUdeviceptr* address, size_t bytes, cuda::CUcontext context);
  // False when the address is not ours. Waits for the GPU's earlier work first, as cuMemFree does.
  bool free(cuda::CUdeviceptr address, cuda::CUresult* result);

  // Stream-ordered: memory that a free on `stream` gave back may be reused by a later allocation on the same stream at once, by others
  // once the GPU has passed the free.
  cuda::CUresult allocate_async(cuda::CUdeviceptr* address, size_t bytes, cuda::CUstream stream, bool per_thread, cuda::CUcontext context);
  bool free_async(cuda::CUdeviceptr address, cuda::CUstream stream, bool per_thread, cuda::CUcontext context, cuda::CUresult* result);
  // What begins there was freed: in stream order, and the GPU has passed that, or during a capture. The program has it no more.
  bool is_over(const AllocationRange& range);
  // It is about to be destroyed, and its handle may name another stream soon.
  void stream_leaves(cuda::CUstream stream);

  // The program's own managed memory. It swaps by prefetches, and the program may use it on the host without the lock.
  cuda::CUresult allocate_managed(cuda::CUdeviceptr* address, size_t bytes, unsigned flags, cuda::CUcontext context);

  // Memory that the program makes by cuMemCreate; `handle` says what. It is mapped by program_vmm.
  cuda::CUresult allocate_handle(ProgramHandle* handle);
  void free_handle(Block* block);  // deletes the ProgramHandle, too

  // The context's allocations end with it, but for those from pools: they are the device's, stay where they are, and move by whatever
  // context there is. Called once the driver has destroyed it.
  void context_gone(cuda::CUcontext context);

  // Takes back what was freed in stream order and is done. The GPU has no work left, so nothing is waited for.
  void collect_done();
  // The same for all of it, waiting for the GPU: the context of some of those streams is about to end. Not while something captures.
  void finish_frees() { collect_async(true); }

  // Gives back what is freed and only kept for reuse. `gone`: a context that the driver has destroyed.
  void trim_cache(cuda::CUcontext gone = nullptr);
  // Of that, what is kept for a moment only: the oldest, until no more is left than may be kept for long.
  void trim_brief_cache();
  // That, what waits for the GPU to pass a stream-ordered free, and what the driver keeps. May wait for the GPU.
  void give_back_caches();

  // Handing memory to other processes. Waits for the lock; false: not ours to hand over. Of the token only what the block knows is filled
  // in.
  bool begin_export(cuda::CUdeviceptr address, IpcToken* token, cuda::CUresult* result);
  // Descriptors of chunks from answer->first on, as many as a message carries.
  protocol::ExportStatus export_chunks(const protocol::ExportWanted& wanted, protocol::Exported* answer, Descriptors* descriptors);

 private:
  // One attempt to get a block, inside the gate.
  struct Attempt {
    Block* block = nullptr;  // null: there was no room, or `result` says why not
    cuda::CUresult result = cuda::CUDA_SUCCESS;
    bool now = false;  // it was to get its memory at once
  };
  // The one way to get a block: inside the gate, within the budget; waits for room outside of it.
  cuda::CUresult allocate_block(const BlockOrder& order, Block** out);
  bool enter_gate(bool needs_lock);
  bool attempt(const BlockOrder& order, bool needs_lock, Attempt* made);  // false: to be made once more
  bool reserve(const BlockOrder& order, bool needs_lock, Attempt* made) REQUIRES(blocks_.mutex);
  cuda::CUresult refuse(size_t bytes, const char* why) const;
  bool ceiling_rose_again(size_t bytes, CeilingWait* wait) const;
  cuda::CUresult map_block(Block& block);
  Block* take_cached(const BlockOrder& order) REQUIRES(blocks_.mutex);
  void retire(Block* block, bool keep);  // takes a block out of the registry: cache, dispose or doom
  cuda::CUresult place(cuda::CUdeviceptr* address, size_t bytes, cuda::CUcontext context, SlabUse use);  // allocate() without the limit
  void changed();

  // Memory that the program freed in stream order and that the GPU may not have passed yet.
  struct AsyncFree {
    cuda::CUdeviceptr address;
    size_t capacity;        // what a reuse may ask for at most
    cuda::CUstream stream;  // with `thread` and its context, where the free stands
    uint64_t thread;        // of a per-thread default stream, else 0
    cuda::CUcontext stream_context;
    cuda::CUevent event;  // null: unknown, wait for the whole context
    cuda::CUcontext context;
    bool reusable = true;  // by a later allocation on the same stream
    bool at_once = false;  // by cuMemFree
  };
  // False: it is there already (freed twice).
  bool defer(const AsyncFree& pending);
  // Frees what the GPU has passed; with `wait`, all of it.
  void collect_async(bool wait);
  // Gives one allocation back to slabs, cache or driver; its earlier work is done. False: the address begins no allocation.
  bool give_back(cuda::CUdeviceptr address, bool charged, size_t* requested);
  // Program bytes of the allocation that begins at address, and what its memory could hold; false: none.
  bool measure(cuda::CUdeviceptr address, size_t* requested, size_t* capacity, cuda::CUcontext* context);
  size_t lasting_cache_max() const;
  void uncache_oldest(size_t at_most, std::vector<Block*>* victims) REQUIRES(blocks_.mutex);
  void retire_uncached(const std::vector<Block*>& victims);

  void set_requested(cuda::CUdeviceptr address, size_t bytes) REQUIRES(blocks_.mutex);
  void now_of_pool(cuda::CUdeviceptr address) REQUIRES(blocks_.mutex);
  bool is_of_pool(cuda::CUdeviceptr address);
  // Earlier GPU work on memory of that context (null: of the device) is done on return. False: something captures.
  bool wait_before_free(cuda::CUcontext context, cuda::CUresult* result);
  static bool outlives_context(const Block& block);  // with the mutex

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  BlockAccess& access_;
  Backing& backing_;
  HostCopies& copies_;
  Residency& residency_;
  std::vector<Block*> cache_ GUARDED_BY(blocks_.mutex);  // freed, mapped, oldest first
  size_t cached_bytes_ GUARDED_BY(blocks_.mutex) = 0;
  std::vector<AsyncFree> async_frees_ GUARDED_BY(blocks_.mutex);
  std::atomic<uint32_t> deferred_{0};  // of them without an event
  SlabSet slabs_ GUARDED_BY(blocks_.mutex);
  bool slab_coming_ GUARDED_BY(blocks_.mutex) = false;  // some thread makes one: others wait for it, or many at once would make one each
  Condition slab_came_;
  uint64_t last_export_ GUARDED_BY(blocks_.mutex) = 0;
};

}  // namespace nvshare::interposer
