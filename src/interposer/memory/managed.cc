// The program's own managed memory: the driver's allocation, of the very size that was asked for, that swaps by prefetches. The host may
// touch it at any time; the GPU only in a turn. Its pages move by themselves if the program does that, so `resident` is the most that may
// be on the GPU.
//
// What no longer fits beside the rest under the client's ceiling is left to demand paging, as without nvshare: the driver takes pages of it
// off the GPU when anybody needs the room, so it is not counted (a program may use more managed memory than the GPU has), only charged
// against the tenant's limit.
#include <algorithm>

#include "interposer/log.h"
#include "interposer/memory/memory.h"
#include "interposer/memory/pools.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;

CUresult Memory::allocate_managed(CUdeviceptr* address, size_t bytes, unsigned flags, CUcontext context) {
  if (address == nullptr || bytes == 0 || flags == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Order order{bytes, bytes, context};
  order.managed = flags;
  Block* block = nullptr;
  CUresult result = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (allocated() + bytes <= device_.limit().ceiling()) result = allocate_block(order, &block);
  if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
    result = new_block(order, &block);
    if (result == cuda::CUDA_SUCCESS) {
      log(LogLevel::kInfo, "%zu bytes of managed memory are left to demand paging: %zu are allocated, at most %zu fit", bytes, allocated(),
          device_.limit().ceiling());
      Lock lock(mutex_);
      block->demand = true;
      insert(block);
    }
  }
  if (result != cuda::CUDA_SUCCESS) {
    refund(charged_bytes(bytes));
    return result;
  }
  *address = block->base;
  return cuda::CUDA_SUCCESS;
}

bool Memory::owns_managed(CUdeviceptr address) {
  Lock lock(mutex_);
  const Block* block = lookup(address);
  return block != nullptr && block->of_program;
}

void Memory::advise_host(CUdeviceptr address, size_t bytes, bool host) {
  Lock lock(mutex_);
  Block* block = lookup(address);
  if (block == nullptr || !block->of_program) return;
  const size_t first = address - block->base;
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    const size_t begin = chunk_offset(i);
    const bool whole = first <= begin && begin + block->chunks[i].bytes <= first + bytes;
    if (whole) block->chunks[i].host_preferred = host;
  }
}

CUresult Memory::prefetch_in(const Piece& piece, cuda::CUstream stream, bool* copying) {
  const bool ours = !piece.block->of_program;
  {
    Lock lock(mutex_);
    // Never used on the GPU, or advised to stay on the host: what the GPU touches comes by itself.
    *copying = !chunk(piece).host_preferred;
  }
  if (!*copying) return cuda::CUDA_SUCCESS;
  CUresult result = real_driver().cuMemPrefetchAsync(address_of(piece), piece.bytes, device_.ordinal(), stream);
  if (ours || result == cuda::CUDA_SUCCESS) return result;
  // Memory of another attachment, or a GPU without concurrent access: demand paging does it.
  *copying = false;
  return result == cuda::CUDA_ERROR_INVALID_VALUE || result == cuda::CUDA_ERROR_INVALID_DEVICE ? cuda::CUDA_SUCCESS : result;
}

void Memory::push_demand_out(cuda::CUstream stream) {
  struct Span {
    CUdeviceptr base;
    size_t bytes;
  };
  std::vector<Block*> pinned;
  {
    Lock lock(mutex_);
    for (Block* block : blocks_) {
      if (!block->demand) continue;
      ++block->pins;
      pinned.push_back(block);
    }
  }
  for (Block* block : pinned) {
    real_driver().cuMemPrefetchAsync(block->base, block->bytes, cuda::CU_DEVICE_CPU, stream);  // if not, the driver takes it when it must
    unpin({block, 0, 0});
  }
  for (const Pools::Placed& placed : pools().managed_of(device_.ordinal())) {
    real_driver().cuMemPrefetchAsync(placed.address, placed.bytes, cuda::CU_DEVICE_CPU, stream);  // the same
  }
}

}  // namespace nvshare::interposer
