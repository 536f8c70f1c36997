// The program's own managed memory: the driver's allocation, of the very size that was asked for, that swaps by prefetches. The host may
// touch it at any time; the GPU only in a turn. Its pages move by themselves if the program does that, so `resident` is the most that may
// be on the GPU.
//
// What no longer fits beside the rest under the client's ceiling is left to demand paging, as without nvshare: the driver takes pages of it
// off the GPU when anybody needs the room, so it is not counted (a program may use more managed memory than the GPU has), only charged
// against the tenant's limit.
#include "interposer/memory/backends/managed.h"

#include <algorithm>

#include "interposer/log.h"
#include "interposer/memory/allocations.h"
#include "interposer/memory/charges.h"
#include "interposer/memory/pools.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;

CUresult Allocations::allocate_managed(CUdeviceptr* address, size_t bytes, unsigned flags, CUcontext context) {
  if (address == nullptr || bytes == 0 || flags == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(device_, charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  BlockOrder order{bytes, bytes, context};
  order.managed = flags;
  Block* block = nullptr;
  CUresult result = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (use_.allocated() + bytes <= device_.limit().ceiling()) result = allocate_block(order, &block);
  if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
    result = backing_.make(order, &block);
    if (result == cuda::CUDA_SUCCESS) {
      log(LogLevel::kInfo, "%zu bytes of managed memory are left to demand paging: %zu are allocated, at most %zu fit", bytes,
          use_.allocated(), device_.limit().ceiling());
      Lock lock(blocks_.mutex);
      block->demand = true;
      blocks_.insert(block);
    }
  }
  if (result != cuda::CUDA_SUCCESS) {
    refund(device_, charged_bytes(bytes));
    return result;
  }
  *address = block->base;
  return cuda::CUDA_SUCCESS;
}

CUresult prefetch_in(Device& device, const Piece& piece, cuda::CUstream stream, bool* copying) {
  const bool ours = !piece.block->of_program;
  {
    Lock lock(device.memory().blocks.mutex);
    // Never used on the GPU, or advised to stay on the host: what the GPU touches comes by itself.
    *copying = !piece.chunk().host_preferred;
  }
  if (!*copying) return cuda::CUDA_SUCCESS;
  CUresult result = real_driver().cuMemPrefetchAsync(piece.address(), piece.bytes, device.ordinal(), stream);
  if (ours || result == cuda::CUDA_SUCCESS) return result;
  // Memory of another attachment, or a GPU without concurrent access: demand paging does it.
  *copying = false;
  return result == cuda::CUDA_ERROR_INVALID_VALUE || result == cuda::CUDA_ERROR_INVALID_DEVICE ? cuda::CUDA_SUCCESS : result;
}

void push_demand_out(Device& device, cuda::CUstream stream) {
  std::vector<Block*> pinned;
  Blocks& blocks = device.memory().blocks;
  {
    Lock lock(blocks.mutex);
    for (Block* block : blocks.by_address()) {
      if (!block->demand) continue;
      ++block->pins;
      pinned.push_back(block);
    }
  }
  for (Block* block : pinned) {
    real_driver().cuMemPrefetchAsync(block->base, block->bytes, cuda::CU_DEVICE_CPU, stream);  // if not, the driver takes it when it must
    device.memory().residency.unpin({block, 0, 0});
  }
  for (const Pools::Placed& placed : pools().managed_of(device.ordinal())) {
    real_driver().cuMemPrefetchAsync(placed.address, placed.bytes, cuda::CU_DEVICE_CPU, stream);  // the same
  }
}

}  // namespace nvshare::interposer
