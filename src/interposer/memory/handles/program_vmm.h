// The program's own virtual memory management (cuMemCreate, cuMemMap and their kin), virtualised.
//
// A handle that the program holds is ours: the memory behind it is a block of kind kHandle that the swap engine takes out and brings in
// like any other. While it is on the GPU it is mapped wherever the program mapped it, with the access that the program set; while it is
// not, these calls only record. What is plainly right is recorded; whatever might be wrong waits for the lock as a submission does and goes
// to the driver, whose answer counts. A handle that somebody outside of these books may use (exported, bound to a multicast object or a
// sparse array) stays on the GPU from then on. Handles that cannot move for other reasons are the driver's own, and counted.
//
// Thread-safe. Its mutex: ../README.md. It is held over driver calls that map and unmap, never while waiting for the
// scheduler or the GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/memory/blocks/address_book.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;
class Blocks;
class Process;

class ProgramVmm {
 public:
  using Handle = cuda::CUmemGenericAllocationHandle;

  explicit ProgramVmm(Process& process) : process_(process) {}

  // Driver calls, as the hooks answer them.
  cuda::CUresult reserve(cuda::CUdeviceptr* address, size_t bytes, size_t alignment, cuda::CUdeviceptr hint, unsigned long long flags);
  cuda::CUresult free_range(cuda::CUdeviceptr address, size_t bytes);
  cuda::CUresult create(Handle* out, size_t bytes, const cuda::CUmemAllocationProp* properties, unsigned long long flags);
  cuda::CUresult release(Handle number);
  cuda::CUresult map(cuda::CUdeviceptr address, size_t bytes, size_t offset, Handle number, unsigned long long flags);
  cuda::CUresult unmap(cuda::CUdeviceptr address, size_t bytes);
  cuda::CUresult set_access(cuda::CUdeviceptr address, size_t bytes, const cuda::CUmemAccessDesc* descriptions, size_t count);
  cuda::CUresult get_access(unsigned long long* flags, const cuda::CUmemLocation* location, cuda::CUdeviceptr address);
  cuda::CUresult retain(Handle* out, void* address);
  cuda::CUresult properties_of(cuda::CUmemAllocationProp* properties, Handle number);
  cuda::CUresult export_handle(void* out, Handle number, cuda::CUmemAllocationHandleType type, unsigned long long flags);
  cuda::CUresult import_handle(Handle* out, void* os_handle, cuda::CUmemAllocationHandleType type);

  // A handle of ours as the driver knows it, for calls that we pass on: its memory is on the GPU and stays there. Inside the gate. Numbers
  // that are not ours come back unchanged.
  Handle pin(Handle number);
  // The same for all that is mapped in the range.
  void pin_range(cuda::CUdeviceptr address, size_t bytes);

  // What is mapped at an address of the program's own.
  struct View {
    cuda::CUdeviceptr base;
    size_t bytes;
    cuda::CUdeviceptr reservation;
    size_t reserved;
    int ordinal;
    cuda::CUmemAccess_flags access;  // of that GPU
    unsigned handle_types;
    bool rdma_capable;
    uint64_t mapping_id;
    uint64_t handle_id;
    bool placed;  // the driver knows it, too
  };
  // False: it is not memory of ours.
  bool find(cuda::CUdeviceptr address, View* view);

  // For the swap engine. ----
  // Gets the block's GPU memory, unless it is there, and maps it where the program has it.
  cuda::CUresult place(Block& block);
  // Takes all that away again.
  void displace(Block& block);
  // Maps the block, one of `blocks`, at its window, for copies. The block is placed. Other kinds of blocks have their own address: nothing
  // to do.
  cuda::CUresult open_window(Blocks& blocks, Block& block);

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  void take_left(Block& block) REQUIRES(mutex_);
  cuda::CUresult create_at_driver(Handle* out, size_t bytes, const cuda::CUmemAllocationProp* properties, unsigned long long flags);
  cuda::CUresult map_locked(cuda::CUdeviceptr address, size_t bytes, size_t offset, ProgramHandle* handle, unsigned long long flags)
      REQUIRES(mutex_);
  bool plain_access(const std::vector<Mapping*>& mappings, const cuda::CUmemAccessDesc* descriptions, size_t count);
  ProgramHandle* open_handle(Handle number) REQUIRES(mutex_);  // null: the program does not hold it
  bool is_hidden(Handle number) REQUIRES(mutex_);              // it names physical memory that only we know: to the program, no handle
  bool end_if_unused(ProgramHandle* handle) REQUIRES(mutex_);  // true: no reference and no mapping is left, and the books have forgotten it
  void dispose(ProgramHandle* handle);                         // of one that has ended; no lock held
  static cuda::CUresult place_mapping(Mapping& mapping, Handle driver_handle);
  Device* device_of(const ProgramHandle& handle);
  bool has_context(int ordinal);
  bool takes_turns(Device& device);  // it has a turn to wait for; without a context there it has none, and its handles are only charged
  void keep(ProgramHandle* handle);

  Process& process_;
  Mutex mutex_;
  AddressBook book_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  std::atomic<size_t> mapped_{0};  // mappings in the book: pointer queries look no further while there are none
};

}  // namespace nvshare::interposer
