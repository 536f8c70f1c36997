// The blocks of this process on one GPU: which addresses are ours, and what allocation of the program's lies there.
//
// Its mutex guards every field of every block, so that the parts of DeviceMemory (memory.h) decide and change in one section. Functions
// that say REQUIRES are for those; the others are queries, lock it themselves, and any thread may ask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

// One allocation of the program's.
struct AllocationRange {
  cuda::CUdeviceptr base;
  size_t bytes;
  cuda::CUcontext context;
  uint64_t id;  // of the allocation, unique over the process's time
  bool sync_memops;
  bool freed;  // AllocationNotes::freed
  bool gone;   // AllocationNotes::gone
};

class Blocks {
 public:
  Mutex mutex;
  // The program runs: no block is without its memory, and what is made is mapped at once. Changed by Residency.
  bool running GUARDED_BY(mutex) = false;
  SlabSet slabs GUARDED_BY(mutex);  // of small allocations, each in a block of these

  void insert(Block* block) REQUIRES(mutex);
  // Out of the books. Until ended() the driver may still have its addresses: a swap engine holds it, or a thread gives it back.
  void erase(Block* block) REQUIRES(mutex);
  void ended(cuda::CUdeviceptr base);
  // Of kHandle blocks nothing is found by address.
  Block* lookup(cuda::CUdeviceptr address) REQUIRES(mutex);
  const std::vector<Block*>& by_address() const REQUIRES(mutex) { return blocks_; }
  const std::vector<Block*>& handles() const REQUIRES(mutex) { return handle_blocks_; }
  // All of them: by address, then those behind handles.
  template <typename Visit>
  void each(Visit visit) REQUIRES(mutex) {
    for (Block* block : blocks_) visit(block);
    for (Block* block : handle_blocks_) visit(block);
  }
  // Of the allocation that `address` lies in. With the mutex.
  static AllocationNotes& notes_of(Block& block, cuda::CUdeviceptr address) {
    return block.slab != nullptr ? SlabSet::notes_of(block.slab, address) : block.notes;
  }

  // What the allocation is for now that lies there, or (0) that nothing does: a new one to the program.
  void set_requested(cuda::CUdeviceptr address, size_t bytes) REQUIRES(mutex);

  // The allocation that `address` lies in; false when it is not ours.
  // *within (may be null), if it is in no allocation: it lies in addresses of ours, freed ones too as long as the driver has them. It may
  // know memory there that the program does not, so it is not to be asked about them, nor told to free them.
  bool find(cuda::CUdeviceptr address, AllocationRange* range, bool* within = nullptr);
  // The attribute of the allocation that `address` lies in; false: it is not ours.
  bool set_sync_memops(cuda::CUdeviceptr address, bool wanted);
  // Some of the range is ours: memory behind an allocation of the program's, or a window for copies. To the program it is no virtual
  // memory.
  bool overlaps(cuda::CUdeviceptr address, size_t bytes);
  // The reserved addresses at which a kHandle block is copied (program_vmm.h).
  void set_window(Block& block, cuda::CUdeviceptr base, size_t bytes);
  // It names physical memory that we made, which the program does not know.
  bool owns_handle(cuda::CUmemGenericAllocationHandle handle);
  // It lies in the program's own managed memory, about which the driver answers queries itself.
  bool owns_managed(cuda::CUdeviceptr address);
  // The program's advice on [address, address + bytes) was taken by the driver: its preferred location is the host from now on, or not.
  void advise_host(cuda::CUdeviceptr address, size_t bytes, bool host);

 private:
  struct Ending {
    cuda::CUdeviceptr base;
    size_t bytes;
  };
  bool known_to_driver_alone(const Block* block, cuda::CUdeviceptr address) const REQUIRES(mutex);

  std::vector<Block*> blocks_ GUARDED_BY(mutex);  // by address
  std::vector<Block*> handle_blocks_ GUARDED_BY(mutex);
  std::vector<Ending> ending_ GUARDED_BY(mutex);
};

}  // namespace nvshare::interposer
