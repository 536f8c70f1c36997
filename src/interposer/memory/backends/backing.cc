#include "interposer/memory/backends/backing.h"

#include <algorithm>
#include <vector>

#include "interposer/log.h"
#include "interposer/memory/backends/access.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;

// ---- blocks ----

BlockKind Backing::kind_of(const BlockOrder& order) const {
  if (order.handle != nullptr) return BlockKind::kHandle;
  if (order.managed != 0) return BlockKind::kManaged;
  switch (device_.backend()) {
    case protocol::Backend::kVmm:
      return BlockKind::kVmm;
    case protocol::Backend::kManaged:
      return BlockKind::kManaged;
    case protocol::Backend::kNone:
      return BlockKind::kPlain;
  }
  return BlockKind::kPlain;
}

CUresult Backing::make(const BlockOrder& order, Block** out) {
  const RealDriver& driver = real_driver();
  const size_t bytes = order.bytes;
  Block* block = new Block;
  block->bytes = bytes;
  block->requested = order.requested;
  block->context = order.context;
  block->for_pool = order.use == SlabUse::kPool;
  block->notes = new_notes();
  block->kind = kind_of(order);
  block->handle = order.handle;
  block->of_program = order.handle == nullptr && order.managed != 0;
  CUresult result = cuda::CUDA_SUCCESS;
  switch (block->kind) {
    case BlockKind::kVmm:
      result = driver.cuMemAddressReserve(&block->base, bytes, 0, 0, 0);
      break;
    case BlockKind::kManaged:
      result = driver.cuMemAllocManaged(&block->base, bytes, block->of_program ? order.managed : cuda::CU_MEM_ATTACH_GLOBAL);
      break;
    case BlockKind::kPlain:
      result = driver.cuMemAlloc_v2(&block->base, order.requested);  // another process that opens it is told its size
      break;
    case BlockKind::kHandle:
      break;  // the program reserves its own addresses; the window comes when it is needed
  }
  if (result != cuda::CUDA_SUCCESS) {
    delete block;
    return result;
  }
  block->address_bytes = block->base == 0 ? 0 : block->kind == BlockKind::kPlain ? order.requested : bytes;
  block->chunk_count = static_cast<uint32_t>((bytes + kChunkBytesMax - 1) / kChunkBytesMax);
  block->chunks = new Chunk[block->chunk_count];
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    block->chunks[i].bytes = static_cast<uint32_t>(std::min(kChunkBytesMax, bytes - chunk_offset(i)));
  }
  *out = block;
  return cuda::CUDA_SUCCESS;
}

void Backing::dispose(Block* block) {
  for (uint32_t i = 0; i < block->chunk_count; ++i) unmap(*block, i);
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    arena_.give_back(block->chunks[i].host);
    arena_.give_back(block->chunks[i].kept.slot);
  }
  CUresult result = cuda::CUDA_SUCCESS;
  switch (block->kind) {
    case BlockKind::kVmm:
      result = real_driver().cuMemAddressFree(block->base, block->address_bytes);
      break;
    case BlockKind::kManaged:
    case BlockKind::kPlain:
      // It went with its context, and the address may be somebody else's by now.
      if (block->context != nullptr) result = real_driver().cuMemFree_v2(block->base);
      break;
    case BlockKind::kHandle:
      if (block->base != 0) result = real_driver().cuMemAddressFree(block->base, block->address_bytes);
      if (block->handle_ends) delete block->handle;
      break;
  }
  if (result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_DEINITIALIZED && result != cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    log(LogLevel::kDebug, "giving back an address range failed (CUDA error %d)", static_cast<int>(result));
  }
  blocks_.ended(block->base);
  delete[] block->chunks;
  delete block;
}

// ---- chunks ----

CUresult Backing::map(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  if (block.kind == BlockKind::kHandle) return device_.process().vmm.place(block);
  if (block.kind != BlockKind::kVmm) return cuda::CUDA_SUCCESS;
  const RealDriver& driver = real_driver();
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_.ordinal();
  // So that any of it can be handed to another process later: see docs/adr/0004.
  if (device_.exportable()) properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUresult result = driver.cuMemCreate(&chunk.handle, chunk.bytes, &properties, 0);
  if (result != cuda::CUDA_SUCCESS) {
    chunk.handle = 0;
    return result;
  }
  CUdeviceptr address = block.base + chunk_offset(index);
  result = driver.cuMemMap(address, chunk.bytes, 0, chunk.handle, 0);
  if (result == cuda::CUDA_SUCCESS) {
    chunk.accessors = 0;
    result = set_chunk_access(block, index);
    if (result == cuda::CUDA_SUCCESS) return result;
    driver.cuMemUnmap(address, chunk.bytes);
  }
  driver.cuMemRelease(chunk.handle);
  chunk.handle = 0;
  return result;
}

void Backing::unmap(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  if (block.kind == BlockKind::kHandle) {
    device_.process().vmm.displace(block);
    return;
  }
  if (chunk.handle == 0) return;
  CUresult unmapped = real_driver().cuMemUnmap(block.base + chunk_offset(index), chunk.bytes);
  CUresult released = real_driver().cuMemRelease(chunk.handle);
  // A driver that has gone (the program frees in its last exit handlers) took the memory with it.
  const bool gone = unmapped == cuda::CUDA_ERROR_DEINITIALIZED;
  if (!gone && (unmapped != cuda::CUDA_SUCCESS || released != cuda::CUDA_SUCCESS)) {
    log(LogLevel::kError, "giving back %u bytes of GPU memory failed (CUDA errors %d, %d)", chunk.bytes, static_cast<int>(unmapped),
        static_cast<int>(released));
  }
  chunk.handle = 0;
}

// ---- access ----

// Memory of pools goes by cuMemPoolSetAccess alone (measured). A pool whose access is set is the driver's from then on; what it had given
// out is opened (follow_pools).
uint32_t Backing::accessors_of(const Block& block) const {
  const uint32_t by_peers = block.for_pool ? 1u << device_.ordinal() : accessors_.load(std::memory_order_acquire);
  return by_peers | block.open_to.load(std::memory_order_acquire);
}

CUresult Backing::set_chunk_access(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  const uint32_t wanted = accessors_of(block);
  const CUdeviceptr address = block.base + chunk_offset(index);
  CUresult result = grant_access(address, chunk.bytes, wanted, chunk.accessors);
  if (result == cuda::CUDA_SUCCESS) {
    chunk.accessors = wanted;
    return result;
  }
  const uint32_t own = 1u << device_.ordinal();
  if (wanted == own) return result;
  // Its own GPU at least: the program computes on, a peer's access will fault as without the driver's consent.
  log(LogLevel::kError, "peers get no access to %u bytes of GPU %d's memory (CUDA error %d)", chunk.bytes, device_.ordinal(),
      static_cast<int>(result));
  result = grant_access(address, chunk.bytes, own, 0);
  if (result == cuda::CUDA_SUCCESS) chunk.accessors = wanted;  // not tried again
  return result;
}

void Backing::follow(const Blocks&, Block& block) {
  if (block.kind != BlockKind::kVmm) return;
  const uint32_t wanted = accessors_of(block);
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    const Chunk& chunk = block.chunks[i];
    if (chunk.state == ChunkState::kResident && chunk.handle != 0 && chunk.accessors != wanted) set_chunk_access(block, i);
  }
}

bool Backing::open_to(CUdeviceptr address, uint32_t gpus) {
  gpus = reachable(gpus & ~(1u << device_.ordinal()), device_.ordinal());
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(address);
  if (block == nullptr || block->kind != BlockKind::kVmm || block->cached || (gpus & ~accessors_of(*block)) == 0) return false;
  block->open_to.fetch_or(gpus, std::memory_order_acq_rel);
  follow(blocks_, *block);
  return true;
}

// Slabs are of several pools: one of them opens what the others have there.
void Backing::follow_pools(std::span<const Pools::Reach> reach) {
  Lock lock(blocks_.mutex);
  std::vector<Block*> concerned;
  for (Block* block : blocks_.by_address()) {
    if (!block->for_pool || block->cached) continue;
    block->open_to.store(0, std::memory_order_release);
    concerned.push_back(block);
  }
  for (const Pools::Reach& each : reach) {
    if (Block* block = blocks_.lookup(each.address); block != nullptr && block->for_pool)
      block->open_to.fetch_or(each.open_to & ~(1u << device_.ordinal()), std::memory_order_acq_rel);
  }
  for (Block* block : concerned) follow(blocks_, *block);
}

void Backing::set_accessors(uint32_t accessors) {
  Lock lock(blocks_.mutex);
  accessors |= 1u << device_.ordinal();
  if (accessors_.exchange(accessors, std::memory_order_acq_rel) == accessors) return;
  // What is on its way in follows when it has arrived (Residency::end), what is being made when it is entered.
  for (Block* block : blocks_.by_address()) follow(blocks_, *block);
}

}  // namespace nvshare::interposer
