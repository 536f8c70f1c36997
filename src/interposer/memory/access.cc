// Access of other GPUs to this one's memory: what the program asked for with cuCtxEnablePeerAccess, repeated for every mapping of ours.
#include "interposer/memory/access.h"

#include "interposer/log.h"
#include "interposer/memory/memory.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;

CUresult grant_access(CUdeviceptr address, size_t bytes, uint32_t accessors, uint32_t before) {
  cuda::CUmemAccessDesc descriptions[32];
  size_t count = 0;
  const uint32_t concerned = accessors | before;
  for (int ordinal = 0; ordinal < 32; ++ordinal) {
    if ((concerned >> ordinal & 1) == 0) continue;
    descriptions[count] = {};
    descriptions[count].location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    descriptions[count].location.id = ordinal;
    descriptions[count].flags =
        (accessors >> ordinal & 1) != 0 ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE : cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ++count;
  }
  return real_driver().cuMemSetAccess(address, bytes, descriptions, count);
}

// Memory of pools goes by cuMemPoolSetAccess alone (measured). A pool whose access is set is the driver's from then on; what it had given
// out is opened (follow_pools).
uint32_t Memory::accessors_of(const Block& block) const {
  const uint32_t by_peers = block.for_pool ? 1u << device_.ordinal() : accessors_.load(std::memory_order_acquire);
  return by_peers | block.open_to.load(std::memory_order_acquire);
}

CUresult Memory::set_chunk_access(Block& block, uint32_t index) {
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

void Memory::follow_accessors(Block& block) {
  if (block.kind != BlockKind::kVmm) return;
  const uint32_t wanted = accessors_of(block);
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    const Chunk& chunk = block.chunks[i];
    if (chunk.state == ChunkState::kResident && chunk.handle != 0 && chunk.accessors != wanted) set_chunk_access(block, i);
  }
}

bool Memory::open_to(CUdeviceptr address, uint32_t gpus) {
  gpus &= ~(1u << device_.ordinal());
  for (int ordinal = 0; ordinal < 32; ++ordinal) {
    int can = 0;
    if ((gpus >> ordinal & 1) == 0) continue;
    const CUresult asked = real_driver().cuDeviceCanAccessPeer(&can, ordinal, device_.ordinal());
    if (asked != cuda::CUDA_SUCCESS || can == 0) gpus &= ~(1u << ordinal);
  }
  Lock lock(mutex_);
  Block* block = lookup(address);
  if (block == nullptr || block->kind != BlockKind::kVmm || block->cached || (gpus & ~accessors_of(*block)) == 0) return false;
  block->open_to.fetch_or(gpus, std::memory_order_acq_rel);
  follow_accessors(*block);
  return true;
}

// Slabs are of several pools: one of them opens what the others have there.
void Memory::follow_pools(std::span<const Pools::Reach> reach) {
  Lock lock(mutex_);
  std::vector<Block*> concerned;
  for (Block* block : blocks_) {
    if (!block->for_pool || block->cached) continue;
    block->open_to.store(0, std::memory_order_release);
    concerned.push_back(block);
  }
  for (const Pools::Reach& each : reach) {
    if (Block* block = lookup(each.address); block != nullptr && block->for_pool)
      block->open_to.fetch_or(each.open_to & ~(1u << device_.ordinal()), std::memory_order_acq_rel);
  }
  for (Block* block : concerned) follow_accessors(*block);
}

void Memory::set_accessors(uint32_t accessors) {
  Lock lock(mutex_);
  accessors |= 1u << device_.ordinal();
  if (accessors_.exchange(accessors, std::memory_order_acq_rel) == accessors) return;
  // What is on its way in follows when it has arrived (end_move), what is being made when it is entered (insert).
  for (Block* block : blocks_) follow_accessors(*block);
}

}  // namespace nvshare::interposer
