#include "interposer/memory/backends/block_access.h"

#include <vector>

#include "interposer/log.h"
#include "interposer/memory/backends/access.h"
#include "interposer/process/device.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;

// Memory of pools goes by cuMemPoolSetAccess alone (measured). A pool whose access is set is the driver's from then on; what it had given
// out is opened (follow_pools).
uint32_t BlockAccess::accessors_of(const Block& block) const {
  const uint32_t by_peers = block.for_pool ? 1u << device_.ordinal() : accessors_.load(std::memory_order_acquire);
  return by_peers | block.open_to.load(std::memory_order_acquire);
}

CUresult BlockAccess::grant(Block& block, uint32_t index) {
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
  log(LogLevel::kError, "peers get no access to %u bytes of GPU %s's memory (CUDA error %d)", chunk.bytes, device_.gpu(),
      static_cast<int>(result));
  result = grant_access(address, chunk.bytes, own, 0);
  if (result == cuda::CUDA_SUCCESS) chunk.accessors = wanted;  // not tried again
  return result;
}

void BlockAccess::follow(const Blocks&, Block& block) {
  if (block.kind != BlockKind::kVmm) return;
  const uint32_t wanted = accessors_of(block);
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    const Chunk& chunk = block.chunks[i];
    if (chunk.state == ChunkState::kResident && chunk.handle != 0 && chunk.accessors != wanted) grant(block, i);
  }
}

bool BlockAccess::open_to(CUdeviceptr address, uint32_t gpus) {
  gpus = reachable(gpus & ~(1u << device_.ordinal()), device_.ordinal());
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(address);
  if (block == nullptr || block->kind != BlockKind::kVmm || block->cached || (gpus & ~accessors_of(*block)) == 0) return false;
  block->open_to.fetch_or(gpus, std::memory_order_acq_rel);
  follow(blocks_, *block);
  return true;
}

// Slabs are of several pools: one of them opens what the others have there.
void BlockAccess::follow_pools(std::span<const Pools::Reach> reach) {
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

void BlockAccess::set_accessors(uint32_t accessors) {
  Lock lock(blocks_.mutex);
  accessors |= 1u << device_.ordinal();
  if (accessors_.exchange(accessors, std::memory_order_acq_rel) == accessors) return;
  // What is on its way in follows when it has arrived (Pieces::end), what is being made when it is entered.
  for (Block* block : blocks_.by_address()) follow(blocks_, *block);
}

}  // namespace nvshare::interposer
