#include "interposer/memory/blocks/freed_blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "interposer/memory/limits/charges.h"
#include "interposer/process/device.h"

namespace nvshare::interposer {

namespace {

// Freed memory that is kept mapped while nobody waits for the GPU: little of it, because neighbours count it as in use. More is kept for
// a moment only: a program that frees gigabytes often allocates as many next, and mapping them takes milliseconds.
constexpr size_t kCacheBytesMax = size_t{1} << 30;
constexpr size_t kCacheShare = 128;  // of the GPU
constexpr size_t kBriefCacheShare = 8;
constexpr int64_t kBriefly_ns = 50'000'000;

}  // namespace

Block* FreedBlocks::take(const Blocks&, const BlockOrder& order) {
  held(blocks_.mutex);
  if (order.handle != nullptr || order.managed != 0) return nullptr;
  for (size_t i = cache_.size(); i-- > 0;) {
    Block* block = cache_[i];
    if (block->bytes != order.bytes || block->context != order.context || block->pins > 0) continue;
    if (block->kind == BlockKind::kPlain && block->address_bytes != order.requested) continue;
    if (order.use == SlabUse::kPool && block->open_to.load(std::memory_order_relaxed) != 0) continue;
    cache_.erase(cache_.begin() + static_cast<ptrdiff_t>(i));
    cached_bytes_ -= block->bytes;
    block->cached = false;
    block->requested = order.requested;
    block->notes = new_notes();
    const bool for_pool = order.use == SlabUse::kPool;
    if (std::exchange(block->for_pool, for_pool) != for_pool) access_.follow(blocks_, *block);
    return block;
  }
  return nullptr;
}

bool FreedBlocks::give_back(cuda::CUdeviceptr address, bool charged, size_t* requested) {
  Block* retired = nullptr;
  {
    Lock lock(blocks_.mutex);
    Block* block = blocks_.lookup(address);
    if (block == nullptr || block->cached) return false;
    if (block->slab != nullptr) {
      bool empty = false;
      if (!blocks_.slabs.give_back(block->slab, address, requested, &empty)) return false;
      if (empty) retired = block;
    } else {
      if (block->base != address) return false;
      *requested = block->requested;
      retired = block;
    }
  }
  if (charged) refund(device_, charged_bytes(*requested));
  if (retired != nullptr) retire(retired, true);
  return true;
}

void FreedBlocks::retire(Block* block, bool keep) {
  size_t resident = 0;
  uint64_t ended_export = 0;
  bool whole = true;
  bool doomed = false;
  const size_t cache_max = device_.total() / kBriefCacheShare;
  {
    Lock lock(blocks_.mutex);
    for (uint32_t i = 0; i < block->chunk_count; ++i) whole = whole && block->chunks[i].state == ChunkState::kResident;
    // Memory that another process may still have mapped is no one else's to use.
    keep = keep && block->export_id == 0 && blocks_.running && whole && block->pins == 0 && block->kind == BlockKind::kVmm &&
           block->context != nullptr && block->bytes <= cache_max && !device_.turns().signs.others_wait_for_memory();
    if (keep) {
      std::vector<Block*> victims;
      uncache_oldest(cache_max - block->bytes, &victims);
      block->cached = true;
      copies_.drop(blocks_, *block);  // of what is no more
      cache_.push_back(block);
      cached_bytes_ += block->bytes;
      const bool briefly = cached_bytes_ > lasting_max();
      lock.unlock();
      retire_uncached(victims);
      if (briefly) device_.swap_engine().trim_cache_in(kBriefly_ns);
      return;
    }
    blocks_.erase(block);
    ended_export = block->export_id;
    if (ended_export != 0) use_.drop_unswappable(block->bytes);
    // Also when it is disposed of later: the program may have as much again at once.
    if (!block->demand) use_.drop_allocated(block->bytes);
    if (block->pins > 0) {
      block->doomed = true;
      doomed = true;
    } else {
      resident = Residency::resident_bytes(*block);
    }
  }
  if (!doomed) {
    backing_.dispose(block);
    use_.drop_resident(resident);
  }
  if (ended_export != 0) device_.link().send(protocol::ExportEnded{ended_export});
  device_.turns().memory_changed();
}

size_t FreedBlocks::lasting_max() const { return std::min(kCacheBytesMax, device_.total() / kCacheShare); }

void FreedBlocks::uncache_oldest(size_t at_most, std::vector<Block*>* victims) {
  size_t count = 0;
  while (count < cache_.size() && cached_bytes_ > at_most) {
    Block* oldest = cache_[count++];
    cached_bytes_ -= oldest->bytes;
    blocks_.erase(oldest);
    victims->push_back(oldest);
  }
  cache_.erase(cache_.begin(), cache_.begin() + static_cast<ptrdiff_t>(count));
}

void FreedBlocks::retire_uncached(const std::vector<Block*>& victims) {
  for (Block* block : victims) {
    block->cached = false;
    retire(block, false);
  }
}

void FreedBlocks::trim_brief() {
  std::vector<Block*> victims;
  {
    Lock lock(blocks_.mutex);
    uncache_oldest(lasting_max(), &victims);
  }
  retire_uncached(victims);
}

void FreedBlocks::trim(cuda::CUcontext gone) {
  std::vector<Block*> victims;
  {
    Lock lock(blocks_.mutex);
    uncache_oldest(0, &victims);
    for (Block* block : blocks_.slabs.remove_empty()) {
      block->cached = true;  // nothing of the program's is in it
      victims.push_back(block);
      blocks_.erase(block);
    }
  }
  for (Block* block : victims) {
    if (block->context == gone) block->context = nullptr;  // the driver's own memory went with it
  }
  retire_uncached(victims);
}

}  // namespace nvshare::interposer
