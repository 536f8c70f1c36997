// Legacy IPC inside a tenant: cuIpcGetMemHandle and its kind, for memory that the driver itself cannot hand over in this way (virtual
// memory). The handle that the program passes on is a token of ours; behind it the scheduler carries descriptors of the physical memory
// from the exporter to the importer, if both are of one tenant or both single programs of one user. Exported memory stays on the GPU from
// then on.
//
// This is the process's part: what it has imported. What it exports is DeviceMemory's (memory/handles/exports.cc). Thread-safe. Its mutex
// comes after Contexts' and before Blocks'; nothing waits for the scheduler with it held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/descriptors.h"
#include "cuda/driver_api.h"
#include "interposer/memory/memory.h"
#include "interposer/sync.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;
class Process;

// What is in the 64 bytes of a handle of ours.
struct IpcToken {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t exporter;   // client id
  uint64_t export_id;  // of the block
  uint64_t offset;     // of the allocation in it
  uint64_t bytes;      // of the allocation
  uint8_t nonce[16];   // of the block: cannot be guessed
};
static_assert(sizeof(IpcToken) == sizeof(cuda::CUipcMemHandle));

class Ipc {
 public:
  explicit Ipc(Process& process) : process_(process) {}

  // Fills *handle for memory of ours. False: the memory is not ours to hand over, ask the driver.
  bool export_memory(cuda::CUipcMemHandle* handle, cuda::CUdeviceptr address, cuda::CUresult* result);
  // False: the handle is the driver's own.
  bool open(cuda::CUdeviceptr* address, const cuda::CUipcMemHandle& handle, unsigned flags, cuda::CUresult* result);
  // False: no import of ours begins or lies there. While a stream captures, the memory is let go of later (collect).
  bool close(cuda::CUdeviceptr address, cuda::CUresult* result);
  // Lets go of what was closed, when no stream captures: waits for the GPU first, for each in its own context. For a thread of ours: the
  // GPU may wait for any of the program's.
  void collect();
  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the imported allocation that `address` lies in, if it lies in one.
  void set_sync_memops(cuda::CUdeviceptr address, bool wanted);
  // The imported allocation that `address` lies in, and the GPU whose memory it is.
  bool find(cuda::CUdeviceptr address, AllocationRange* range, int* ordinal);
  // Something imported is mapped in the range, also what is closed already: its piece is mapped while another allocation in it is open.
  bool overlaps(cuda::CUdeviceptr address, size_t bytes);

  // The context is gone, and its imports with it.
  void context_gone(cuda::CUcontext context);
  // GPUs (bits) that may use that GPU's memory from now on.
  void set_accessors(int ordinal, uint32_t accessors);
  // Opens the import that `address` lies in to those GPUs (bits) as well, as far as they can reach it, until it is closed; true: to one
  // more.
  bool open_to(cuda::CUdeviceptr address, uint32_t gpus);
  // To which the import that `address` lies in is open by that alone.
  uint32_t opened_to(cuda::CUdeviceptr address);

  // From the sockets' threads. ----
  void on_export_wanted(Device& device, const protocol::ExportWanted& message);
  void on_imported(Device& device, const protocol::Imported& message, const Descriptors& descriptors);
  void on_inherited(Device& device, const protocol::ImportInherited& message);
  void on_disconnected(Device& device);  // no answer comes any more

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  struct Import {
    IpcToken token;  // of the first opening; others of the same block share the mapping
    Device* device;  // through whose link it came
    uint64_t request;
    cuda::CUcontext context;
    int user;     // the GPU of that context
    int ordinal;  // the GPU whose memory it is
    cuda::CUdeviceptr base;
    size_t bytes;
    size_t chunk_bytes;
    uint32_t references;  // of all slices
    bool inherited;
    uint32_t accessors;  // GPUs that may use the mapping
    uint32_t opened_to;  // of them: to which a copy opened it
    struct Slice {       // an allocation in it that was opened
      uint64_t id;       // of the opening: no other of this process has it
      uint64_t offset;
      uint64_t bytes;
      uint32_t references;
      bool sync_memops;
    };
    std::vector<Slice> slices;
  };
  // The one import that is under way.
  struct Pending {
    Device* device = nullptr;  // null: none
    uint64_t request = 0;
    bool done = false;
    protocol::ExportStatus status = protocol::ExportStatus::kOk;
    uint64_t bytes = 0;
    uint64_t chunk_bytes = 0;
    uint32_t chunks = 0;
    bool inherited = false;
    std::vector<cuda::CUmemGenericAllocationHandle> handles;
  };

  Import* find_import(cuda::CUdeviceptr address) REQUIRES(mutex_);
  Import* find_import(const IpcToken& token, cuda::CUcontext context) REQUIRES(mutex_);
  // Of the contexts that this process has on the GPU `user`, one opens what another process hands over of a GPU, as natively.
  bool is_open_elsewhere(const IpcToken& token, int user, cuda::CUcontext context) const REQUIRES(mutex_);
  static Import::Slice* find_slice(Import& import, cuda::CUdeviceptr address);
  // Gets the token's block and maps it; null: it could not, and *result says why. Given up while waiting.
  Import* import_block(Device& device, const IpcToken& token, cuda::CUcontext context, cuda::CUresult* result) REQUIRES(mutex_);
  void open_slice(Import& import, const IpcToken& token) REQUIRES(mutex_);
  cuda::CUresult fetch(Device& device, const IpcToken& token) REQUIRES(mutex_);  // given up while waiting
  cuda::CUresult map(Import* import, const std::vector<cuda::CUmemGenericAllocationHandle>& handles);
  static cuda::CUresult set_access(Import& import, uint32_t accessors);
  static void unmap(const Import& import);
  bool is_own(const IpcToken& token);
  void let_go(const Import& import);                        // tells the scheduler and the books; mutex not held
  void collect(uint64_t request, cuda::CUcontext context);  // that one

  Process& process_;
  Mutex mutex_;
  Condition changed_;
  std::vector<Import> imports_ GUARDED_BY(mutex_);
  std::vector<Import> leaving_ GUARDED_BY(mutex_);  // closed, and still mapped: work of this process may use them
  Pending pending_ GUARDED_BY(mutex_);
  bool opening_ GUARDED_BY(mutex_) = false;
  uint64_t last_request_ GUARDED_BY(mutex_) = 0;
  uint64_t last_slice_ GUARDED_BY(mutex_) = 0;
};

}  // namespace nvshare::interposer
