// Small allocations share slabs: a slab is a block cut into slots of one size class. Slabs of a class grow from 2 MiB to 64 MiB as the
// program asks for more, so that many small allocations swap in few large copies. Guarded by the mutex of Blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

struct Block;

// What the library notes of an allocation for as long as it lives.
struct AllocationNotes {
  uint64_t id = 0;           // no other allocation of this process ever has it
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, as the program set it
  bool freed = false;        // by cuMemFreeAsync, or during a capture: it is nobody's to free again
  bool gone = false;         // by cuMemFree during a capture: it waits for that alone, and the program knows that it is not there
  bool of_pool = false;      // the device's, not its context's: it stays when that ends

  bool outlives_context() const { return of_pool && !freed; }
};
inline constinit std::atomic<uint64_t> last_allocation_id{0};
inline AllocationNotes new_notes() { return {last_allocation_id.fetch_add(1, std::memory_order_relaxed) + 1, false, false, false, false}; }

// What a slab's allocations are for. A driver opens plain memory to other GPUs and to their copies, never a pool's.
enum class SlabUse : uint8_t { kPlain, kPool };

struct Slab {
  Block* block = nullptr;
  uint32_t class_index = 0;
  SlabUse use = SlabUse::kPlain;
  uint32_t slots = 0;
  uint32_t used = 0;
  uint32_t first_free_word = 0;     // no free slot in a word before it
  std::vector<uint64_t> occupied;   // one bit a slot
  std::vector<uint32_t> requested;  // bytes that the program asked for, per slot
  std::vector<AllocationNotes> notes;
};

class SlabSet {
 public:
  static constexpr size_t kSlotBytesMax = size_t{1} << 20;  // larger allocations get blocks of their own
  static constexpr size_t kAlignment = 512;                 // of all that cuMemAlloc gives (measured); textures want it
  // No slot crosses a multiple of it: a driver maps small allocations in pieces of 2 MiB, and CU_POINTER_ATTRIBUTE_MAPPING_SIZE tells so.
  static constexpr size_t kPieceBytes = size_t{2} << 20;

  // The slot size that serves `bytes` (1 .. kSlotBytesMax).
  static size_t slot_bytes(size_t bytes);
  static uint32_t class_of(size_t bytes);

  // An address in a slab of that use that has room; 0 when a new slab is needed (then add_slab, then again).
  cuda::CUdeviceptr take(size_t bytes, cuda::CUcontext context, SlabUse use = SlabUse::kPlain);
  // For when no new slab can be had: a slot of a larger class, the smallest that is free; 0: none is.
  cuda::CUdeviceptr take_larger(size_t bytes, cuda::CUcontext context, SlabUse use = SlabUse::kPlain);
  // How large the next slab of that class is to be: at most `largest` (and kChunkBytesMax), at least 2 MiB.
  size_t next_slab_bytes(size_t bytes, size_t largest, SlabUse use = SlabUse::kPlain) const;
  void add_slab(Block* block, size_t bytes, SlabUse use = SlabUse::kPlain);

  // True when `address` is an occupied slot of `slab`; *empty: it was the last one and the slab's block is no longer in the set.
  bool give_back(Slab* slab, cuda::CUdeviceptr address, size_t* requested, bool* empty);
  static bool slot_of(const Slab* slab, cuda::CUdeviceptr address, cuda::CUdeviceptr* base, size_t* requested);
  static void set_requested(Slab* slab, cuda::CUdeviceptr address, size_t bytes);
  // Of the occupied slot that `address` lies in.
  static AllocationNotes& notes_of(Slab* slab, cuda::CUdeviceptr address);
  // Something in it stays when its context ends.
  static bool outlives_context(const Slab* slab);
  // What does not, and was not freed yet: where it begins.
  static std::vector<cuda::CUdeviceptr> ends_with_context(const Slab* slab);
  // What pools have handed out of it: where it begins.
  static std::vector<cuda::CUdeviceptr> of_pools(const Slab* slab);
  void remove(Slab* slab);
  // The slabs that nothing is in leave the set; their blocks.
  std::vector<Block*> remove_empty();

 private:
  static constexpr uint32_t kClassCount = 22;
  static constexpr uint32_t kUses = 2;
  struct Class {
    std::vector<Slab*> with_room;
    uint32_t made = 0;
  };

  Class& class_at(uint32_t index, SlabUse use) { return classes_[static_cast<uint32_t>(use)][index]; }
  cuda::CUdeviceptr take_of(Class& of, size_t bytes, cuda::CUcontext context);

  Class classes_[kUses][kClassCount];
};

}  // namespace nvshare::interposer
