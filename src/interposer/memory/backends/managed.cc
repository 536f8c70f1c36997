#include "interposer/memory/backends/managed.h"

#include <vector>

#include "interposer/memory/backends/plain.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

CUresult ManagedBackend::reserve(Block& block, const BlockOrder& order) {
  block.address_bytes = block.bytes;
  return real_driver().cuMemAllocManaged(&block.base, block.bytes, block.of_program ? order.managed : cuda::CU_MEM_ATTACH_GLOBAL);
}

CUresult ManagedBackend::give_back(Block& block) { return free_unless_gone(block); }

CUresult ManagedBackend::start_in(const Piece& piece, cuda::CUstream stream, bool* copying) {
  const bool ours = !piece.block->of_program;
  {
    Lock lock(device_.memory().blocks.mutex);
    // Never used on the GPU, or advised to stay on the host: what the GPU touches comes by itself.
    *copying = !piece.chunk().host_preferred;
  }
  if (!*copying) return cuda::CUDA_SUCCESS;
  CUresult result = real_driver().cuMemPrefetchAsync(piece.address(), piece.bytes, device_.ordinal(), stream);
  if (ours || result == cuda::CUDA_SUCCESS) return result;
  // Memory of another attachment, or a GPU without concurrent access: demand paging does it.
  *copying = false;
  return result == cuda::CUDA_ERROR_INVALID_VALUE || result == cuda::CUDA_ERROR_INVALID_DEVICE ? cuda::CUDA_SUCCESS : result;
}

CUresult ManagedBackend::start_out(const Piece& piece, cuda::CUstream stream) {
  return real_driver().cuMemPrefetchAsync(piece.address(), piece.bytes, cuda::CU_DEVICE_CPU, stream);
}

void ManagedBackend::push_demand_out(cuda::CUstream stream) {
  std::vector<Block*> pinned;
  DeviceMemory& memory = device_.memory();
  {
    Lock lock(memory.blocks.mutex);
    for (Block* block : memory.blocks.by_address()) {
      if (!block->demand) continue;
      ++block->pins;
      pinned.push_back(block);
    }
  }
  for (Block* block : pinned) {
    real_driver().cuMemPrefetchAsync(block->base, block->bytes, cuda::CU_DEVICE_CPU, stream);  // if not, the driver takes it when it must
    memory.pieces.unpin({block, 0, 0});
  }
  for (const Pools::Placed& placed : device_.process().pools.managed_of(device_.ordinal())) {
    real_driver().cuMemPrefetchAsync(placed.address, placed.bytes, cuda::CU_DEVICE_CPU, stream);  // the same
  }
}

}  // namespace nvshare::interposer
