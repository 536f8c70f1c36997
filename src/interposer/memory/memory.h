// The device memory of this process on one GPU: what the program holds, where it is, and what it may have resident.
//
// Allocations reserve their address for life. While the process has the lock (`running`) an allocation gets GPU memory at once, within
// the budget that the scheduler gave; without the lock it is an address only, and the mover (swap.h) gives it memory in the next turn.
// Thread-safe. Waits for the scheduler (growth) with no lock held and outside the gate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/descriptors.h"
#include "cuda/driver_api.h"
#include "interposer/memory/block.h"
#include "interposer/memory/host_arena.h"
#include "interposer/memory/pools.h"
#include "interposer/memory/slab.h"
#include "interposer/sync.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;
struct IpcToken;

class Memory {
 public:
  explicit Memory(Device& device) : device_(device), arena_(device) {}

  // Driver calls, as the hooks answer them. `context` is current.
  cuda::CUresult allocate(cuda::CUdeviceptr* address, size_t bytes, cuda::CUcontext context);
  // False when the address is not ours. Waits for the GPU's earlier work first, as cuMemFree does.
  bool free(cuda::CUdeviceptr address, cuda::CUresult* result);

  // Stream-ordered: memory that a free on `stream` gave back may be reused by a later allocation on the same stream at once, by others
  // once the GPU has passed the free.
  cuda::CUresult allocate_async(cuda::CUdeviceptr* address, size_t bytes, cuda::CUstream stream, bool per_thread, cuda::CUcontext context);
  bool free_async(cuda::CUdeviceptr address, cuda::CUstream stream, bool per_thread, cuda::CUcontext context, cuda::CUresult* result);
  // It is about to be destroyed, and its handle may name another stream soon.
  void stream_leaves(cuda::CUstream stream);

  // Memory that the driver allocates for the program and that cannot move (unswappable.cc; hooks/unswappable.h puts it together).
  struct Holding {
    uint64_t key;  // a handle or an address, unique among those that live
    size_t bytes;
    cuda::CUcontext context;  // with which it ends; null: with none
    bool is_store = false;    // the driver keeps it for the program's next use, and gives back what is unused when it is told to
  };
  // Waits for the lock and for room, outside the gate. Success: `bytes` are counted, and the caller is inside the gate until it has called
  // settle_unswappable. `what` is for the log.
  cuda::CUresult claim_unswappable(size_t bytes, const char* what);
  // What came of a claim: holding.bytes of it are held (0: the driver refused). Leaves the gate.
  void settle_unswappable(size_t claimed, const Holding& holding);
  // Takes a holding off the books and returns its bytes; 0: none. Before the driver frees it, because the key may come again at once.
  size_t release_unswappable(uint64_t key);
  void hold_again(const Holding& holding);  // it was not freed after all

  // Memory that the driver keeps in a store of its own, from which it serves the program, and whose size it tells: of graphs, and of the
  // pools that it serves (key: the pool's handle).
  static constexpr uint64_t kGraphs = 1;
  // After an allocation for which so much was claimed: counts what the store has now. Leaves the gate.
  void settle_driver_memory(size_t claimed, uint64_t store);
  // After the store may have shrunk.
  void measure_driver_memory(uint64_t store);
  // Gives back what no store needs at present.
  void trim_driver_memory();
  void driver_memory_trimmed(uint64_t store);
  uint64_t driver_trims() const { return driver_trims_.load(std::memory_order_acquire); }

  // The program's own managed memory (managed.cc). It swaps by prefetches, and the program may use it on the host without the lock.
  cuda::CUresult allocate_managed(cuda::CUdeviceptr* address, size_t bytes, unsigned flags, cuda::CUcontext context);
  // The program's advice on [address, address + bytes) was taken by the driver: its preferred location is the host from now on, or not.
  void advise_host(cuda::CUdeviceptr address, size_t bytes, bool host);

  // The allocation that `address` lies in; false when it is not ours.
  struct Range {
    cuda::CUdeviceptr base;
    size_t bytes;
    cuda::CUcontext context;
    bool resident;
    uint64_t id;  // of the allocation, unique over the process's time
    bool sync_memops;
  };
  // The attribute of the allocation that `address` lies in; false: it is not ours.
  bool set_sync_memops(cuda::CUdeviceptr address, bool wanted);
  // *within (may be null), if it is in no allocation: it lies in addresses of ours, freed ones too as long as the driver has them. It may
  // know memory there that the program does not, so it is not to be asked about them, nor told to free them.
  bool find(cuda::CUdeviceptr address, Range* range, bool* within = nullptr);
  // Some of the range is ours: memory behind an allocation of the program's, or a window for copies. To the program it is no virtual
  // memory.
  bool overlaps(cuda::CUdeviceptr address, size_t bytes);
  // The reserved addresses at which a kHandle block is copied (program_vmm.h).
  void set_window(Block& block, cuda::CUdeviceptr base, size_t bytes);
  // It names physical memory that we made, which the program does not know.
  bool owns_handle(cuda::CUmemGenericAllocationHandle handle);
  // It lies in the program's own managed memory, about which the driver answers queries itself.
  bool owns_managed(cuda::CUdeviceptr address);

  // What an allocation of so many bytes counts against the tenant's limit: what the driver would take for it. Small ones share its pages.
  static constexpr size_t kGranularity = size_t{2} << 20;
  static constexpr size_t kSmallGranularity = 512;
  static size_t charged_bytes(size_t bytes) {
    const size_t unit = bytes > SlabSet::kSlotBytesMax ? kGranularity : kSmallGranularity;
    return (bytes + unit - 1) / unit * unit;
  }
  // Charges so many bytes, with what is kept for nobody given back first where the limit is near. False, and a line in the log: past the
  // limit.
  bool charge(size_t bytes, const char* what = "an allocation");
  void refund(size_t bytes);

  // The context's allocations end with it, but for those from pools: they are the device's, stay where they are, and move by whatever
  // context there is. Called once the driver has destroyed it.
  void context_gone(cuda::CUcontext context);

  // Takes back what was freed in stream order and is done. The GPU has no work left, so nothing is waited for.
  void collect_done();
  // The same for all of it, waiting for the GPU: the context of some of those streams is about to end. Not while something captures.
  void finish_frees() { collect_async(true); }

  // Gives back what is freed and only kept for reuse.
  void trim_cache();
  // Of that, what is kept for a moment only: the oldest, until no more is left than may be kept for long.
  void trim_brief_cache();
  // That, and what waits for the GPU to pass a stream-ordered free. May wait for the GPU.
  void give_back_caches();

  // Memory that the program makes by cuMemCreate (handle_blocks.cc); `handle` says what. It is mapped by program_vmm.
  cuda::CUresult allocate_handle(ProgramHandle* handle);
  void free_handle(Block* block);  // deletes the ProgramHandle, too
  // From now on it stays on the GPU. Inside the gate, with the lock.
  void make_unswappable(Block& block);
  // Gives it GPU memory, for good, where the program has no context and so no turns. INVALID_VALUE: its bytes are on the host.
  cuda::CUresult place_without_context(Block& block);

  // Nothing leaves the GPU any more, and what is allocated from now on waits for the lock. Inside the gate. False: not all of it is there
  // yet, and nothing has changed.
  bool keep_resident();

  protocol::Memory report();
  size_t resident() const { return resident_.load(std::memory_order_relaxed); }
  size_t allocated() const { return allocated_.load(std::memory_order_relaxed); }
  HostArena& arena() { return arena_; }

  // Handing memory to other processes. Waits for the lock; false: not ours to hand over. Of the token only what the block knows is filled
  // in.
  bool begin_export(cuda::CUdeviceptr address, IpcToken* token, cuda::CUresult* result);
  // Descriptors of chunks from answer->first on, as many as a message carries.
  protocol::ExportStatus export_chunks(const protocol::ExportWanted& wanted, protocol::Exported* answer, Descriptors* descriptors);
  // Imported memory whose exporter has let go is counted here, and no more.
  void inherit(size_t bytes);
  void disinherit(size_t bytes);

  // GPUs (bits) that may use this one's memory, from now on; this one always may.
  void set_accessors(uint32_t accessors);
  // The block that `address` lies in is open to those GPUs (bits) as well, as far as they can reach it, as long as it lives. False: nothing
  // changed.
  bool open_to(cuda::CUdeviceptr address, uint32_t gpus);
  // What we serve of this GPU's pools is open to the GPUs that `reach` says of all pools' memory, and to no others.
  void follow_pools(std::span<const Pools::Reach> reach);

  // From the client: with `running`, allocations are mapped at once.
  void set_running(bool running);
  // The turn begins at once if everything is on the GPU; false: it is not, or is on its way. Only while the mover has nothing to do.
  bool run_if_complete();
  // Holds this process to what it has: sets the budget to what is resident, atomically with allocations that are under way.
  void lower_budget(std::atomic<size_t>& budget);

  // For the mover. ----
  struct Piece {
    Block* block;
    uint32_t index;
    size_t bytes;
  };
  // Pins what is to be moved: resident swappable chunks of at least `bytes` in sum (less if there is less).
  std::vector<Piece> pin_resident(size_t bytes);
  // Pins every chunk without GPU memory. Empty with `start_running`: memory now counts as running, atomically with that finding.
  std::vector<Piece> pin_absent(bool start_running);
  // The same of swapped chunks, up to so many bytes in sum, that need only their copy to be there (prefetch.cc).
  std::vector<Piece> pin_swapped(size_t bytes);
  void unpin(const Piece& piece);
  // One chunk's way. Each returns the driver's result. See swap.cc for the sequence.
  bool begin_move(const Piece& piece, ChunkState expected);  // false: freed meanwhile, or no longer in that state
  ChunkState state_of(const Piece& piece);
  bool freed(const Piece& piece);             // by the program, while pinned
  size_t arriving_bytes(const Piece& piece);  // what bringing it in adds to `resident`
  void arrived(const Piece& piece);           // adds it
  // A chunk that was copied out gives its GPU memory back, at once or with the last part of its block. Returns how much that was.
  size_t leave(const Piece& piece);
  void end_move(const Piece& piece, ChunkState now, size_t resident_less, size_t resident_more);
  cuda::CUresult map_chunk(Block& block, uint32_t index);
  void unmap_chunk(Block& block, uint32_t index);
  // The program runs again: the host copies of resident chunks are no longer known to be true. They are kept where that may be found out
  // when they leave (unchanged.h), else given back.
  void forget_host_copies();

  // Kept copies (kept.cc). They are a cache: given back before anybody waits for host memory.
  bool hash_wanted(const Piece& piece);  // it has no true copy, and it is worth finding out whether the kept one is
  // Its bytes have this hash. True: the kept copy has the same, and is the chunk's host copy from now on.
  bool adopt_kept(const Piece& piece, const ChunkHash& now);
  void disown_host_copy(const Piece& piece);  // it was not the same after all
  HostSlot take_kept(const Piece& piece);     // the place of a copy that is no longer true, for the copy that is to be made; or none
  bool has_kept(const Piece& piece);
  void left(const Piece& piece, bool copied, const ChunkHash* hash);  // hash may be null
  size_t kept_bytes();
  bool drop_one_kept();  // false: there is none
  // So that segments of so many bytes in sum hold nothing, as far as that is possible: kept copies go, and those of what has come in for a
  // turn that has not begun. A neighbour that moves out to make room for that very turn may need them.
  void give_back_spare(size_t bytes);
  // The mover moves memory out: it alone disposes of true host copies meanwhile.
  void set_evicting(bool evicting);
  // Starts a managed chunk's way in, unless it is better left to the program's own accesses.
  cuda::CUresult prefetch_in(const Piece& piece, cuda::CUstream stream, bool* copying);
  // Managed memory beyond what the books count: the driver is to take it off the GPU, in stream order.
  void push_demand_out(cuda::CUstream stream);
  cuda::CUdeviceptr address_of(const Piece& piece) const { return piece.block->base + chunk_offset(piece.index); }
  static Chunk& chunk(const Piece& piece) { return piece.block->chunks[piece.index]; }

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  // What allocate_block is to make.
  struct Order {
    size_t bytes;
    size_t requested;
    cuda::CUcontext context;
    ProgramHandle* handle = nullptr;  // set: memory for it
    unsigned managed = 0;             // the program's own managed memory: the flags of cuMemAllocManaged
    SlabUse use = SlabUse::kPlain;    // what is made for pools was never open to another GPU's copies
  };
  // Addresses of a block that is in no list any more and that the driver may still have: the mover holds it, or another thread gives it
  // back.
  struct Ending {
    cuda::CUdeviceptr base;
    size_t bytes;
  };
  // The one way to get a block: inside the gate, within the budget; waits for room outside of it.
  cuda::CUresult allocate_block(const Order& order, Block** out);
  cuda::CUresult map_block(Block& block);
  Block* take_cached(const Order& order) REQUIRES(mutex_);
  void dispose(Block* block);            // unmaps, returns addresses and host slots; no lock held, block in no list
  void retire(Block* block, bool keep);  // takes a block out of the registry: cache, dispose or doom
  void insert(Block* block) REQUIRES(mutex_);
  void erase(Block* block) REQUIRES(mutex_);
  Block* lookup(cuda::CUdeviceptr address) REQUIRES(mutex_);
  bool known_to_driver_alone(const Block* block, cuda::CUdeviceptr address) const REQUIRES(mutex_);
  cuda::CUresult new_block(const Order& order, Block** out);
  static size_t resident_bytes(const Block& block);                                                      // mutex held
  cuda::CUresult place(cuda::CUdeviceptr* address, size_t bytes, cuda::CUcontext context, SlabUse use);  // allocate() without the limit
  void changed();
  // Memory that cannot move needs the lock when it is allocated.
  bool needs_lock() const;
  cuda::CUresult set_chunk_access(Block& block, uint32_t index);
  void follow_accessors(Block& block) REQUIRES(mutex_);
  void drop_kept(Block& block) REQUIRES(mutex_);
  template <typename Visit>
  void each_kept(Visit visit) REQUIRES(mutex_);
  template <typename Visit>
  void each_arrived(Visit visit) REQUIRES(mutex_);
  uint32_t accessors_of(const Block& block) const;
  void change_unswappable(size_t from, size_t to) REQUIRES(mutex_);  // all figures of a holding that changes its size
  void forget_holdings(cuda::CUcontext context) REQUIRES(mutex_);
  void set_holding(size_t claimed, const Holding& holding) REQUIRES(mutex_);
  size_t store_bytes(uint64_t store) const;

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
  void uncache_oldest(size_t at_most, std::vector<Block*>* victims) REQUIRES(mutex_);
  void retire_uncached(const std::vector<Block*>& victims);

  void set_requested(cuda::CUdeviceptr address, size_t bytes) REQUIRES(mutex_);
  void now_of_pool(cuda::CUdeviceptr address) REQUIRES(mutex_);
  bool is_of_pool(cuda::CUdeviceptr address);
  // Earlier GPU work on memory of that context (null: of the device) is done on return. False: something captures.
  bool wait_before_free(cuda::CUcontext context, cuda::CUresult* result);
  bool outlives_context(const Block& block) REQUIRES(mutex_);
  static AllocationNotes& notes_of(Block& block, cuda::CUdeviceptr address) {  // mutex held
    return block.slab != nullptr ? SlabSet::notes_of(block.slab, address) : block.notes;
  }

  Device& device_;
  Mutex mutex_;
  Condition pins_changed_;
  std::vector<Block*> blocks_ GUARDED_BY(mutex_);  // by address
  std::vector<Block*> cache_ GUARDED_BY(mutex_);   // freed, mapped, oldest first
  std::vector<Ending> ending_ GUARDED_BY(mutex_);
  std::vector<Block*> handle_blocks_ GUARDED_BY(mutex_);
  std::vector<AsyncFree> async_frees_ GUARDED_BY(mutex_);
  std::vector<Holding> holdings_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> driver_trims_{0};
  std::atomic<uint32_t> deferred_{0};  // of them without an event
  SlabSet slabs_ GUARDED_BY(mutex_);
  bool slab_coming_ GUARDED_BY(mutex_) = false;  // some thread makes one: others wait for it, or many at once would make one each
  Condition slab_came_;
  HostArena arena_;
  bool running_ GUARDED_BY(mutex_) = false;
  bool evicting_ GUARDED_BY(mutex_) = false;
  size_t cached_bytes_ GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> allocated_{0};
  std::atomic<size_t> resident_{0};
  std::atomic<size_t> unswappable_{0};  // of resident_
  std::atomic<bool> keeps_{false};      // keep_resident() was called
  std::atomic<uint32_t> accessors_{0};
  uint64_t last_export_ GUARDED_BY(mutex_) = 0;
};

}  // namespace nvshare::interposer
