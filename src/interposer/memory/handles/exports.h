// Memory handed to other processes of the tenant (interposer/process/ipc.h): from then on it stays on the GPU, and is told to be
// unswappable.
//
// Thread-safe. Locks the mutex of Blocks.
#pragma once

#include <cstdint>

#include "base/descriptors.h"
#include "cuda/driver_api.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/swap/copies/host_copies.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;
struct IpcToken;

class Exports {
 public:
  Exports(Device& device, Blocks& blocks, MemoryUse& use, HostCopies& copies)
      : device_(device), blocks_(blocks), use_(use), copies_(copies) {}

  // Waits for the lock; false: not ours to hand over. Of the token only what the block knows is filled in.
  bool begin(cuda::CUdeviceptr address, IpcToken* token, cuda::CUresult* result);
  // Descriptors of chunks from answer->first on, as many as a message carries.
  protocol::ExportStatus chunks(const protocol::ExportWanted& wanted, protocol::Exported* answer, Descriptors* descriptors);

 private:
  Block* find(const protocol::ExportWanted& wanted) REQUIRES(blocks_.mutex);  // or null
  // The program has it no more, also where its free still waits for the GPU.
  bool is_over(const protocol::ExportWanted& wanted);

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  HostCopies& copies_;
  uint64_t last_ GUARDED_BY(blocks_.mutex) = 0;
};

}  // namespace nvshare::interposer
