#include "interposer/memory/blocks/blocks.h"

#include <algorithm>

namespace nvshare::interposer {

using cuda::CUdeviceptr;

void Blocks::insert(Block* block) {
  if (block->kind == BlockKind::kHandle) {
    handle_blocks_.push_back(block);
    return;
  }
  auto place = std::lower_bound(blocks_.begin(), blocks_.end(), block, [](const Block* a, const Block* b) { return a->base < b->base; });
  blocks_.insert(place, block);
}

void Blocks::erase(Block* block) {
  if (block->kind == BlockKind::kHandle) {
    std::erase(handle_blocks_, block);
    return;
  }
  auto place = std::lower_bound(blocks_.begin(), blocks_.end(), block, [](const Block* a, const Block* b) { return a->base < b->base; });
  if (place == blocks_.end() || *place != block) return;
  blocks_.erase(place);
  ending_.push_back({block->base, block->bytes});
}

void Blocks::ended(CUdeviceptr base) {
  Lock lock(mutex);
  auto found = std::find_if(ending_.begin(), ending_.end(), [&](const Ending& each) { return each.base == base; });
  if (found != ending_.end()) ending_.erase(found);
}

// The driver knows memory there, and would free it or tell of it: memory of ours that the program has no allocation in, or not any more.
bool Blocks::known_to_driver_alone(const Block* block, CUdeviceptr address) const {
  if (block != nullptr) return block->kind == BlockKind::kVmm || (block->kind == BlockKind::kManaged && !block->of_program);
  return std::any_of(ending_.begin(), ending_.end(), [&](const Ending& each) { return address - each.base < each.bytes; });
}

Block* Blocks::lookup(CUdeviceptr address) {
  auto after = std::upper_bound(blocks_.begin(), blocks_.end(), address, [](CUdeviceptr a, const Block* b) { return a < b->base; });
  if (after == blocks_.begin()) return nullptr;
  Block* block = *(after - 1);
  return address - block->base < block->bytes ? block : nullptr;
}

void Blocks::set_requested(CUdeviceptr address, size_t bytes) {
  Block* block = lookup(address);
  if (block == nullptr) return;
  if (block->slab == nullptr) {
    block->requested = bytes;
  } else {
    SlabSet::set_requested(block->slab, address, bytes);
  }
  notes_of(*block, address) = new_notes();
}

bool Blocks::find(CUdeviceptr address, AllocationRange* range, bool* within) {
  Lock lock(mutex);
  Block* block = lookup(address);
  if (within != nullptr) *within = known_to_driver_alone(block, address);
  if (block == nullptr || block->cached || block->of_program) return false;
  range->context = block->context;
  if (block->slab != nullptr) {
    if (!SlabSet::slot_of(block->slab, address, &range->base, &range->bytes)) return false;
  } else {
    if (address - block->base >= block->requested) return false;
    range->base = block->base;
    range->bytes = block->requested;
  }
  const AllocationNotes& notes = notes_of(*block, address);
  range->id = notes.id;
  range->sync_memops = notes.sync_memops;
  range->freed = notes.freed;
  range->gone = notes.gone;
  return true;
}

bool Blocks::set_sync_memops(CUdeviceptr address, bool wanted) {
  AllocationRange range;
  if (!find(address, &range)) return false;
  Lock lock(mutex);
  if (Block* block = lookup(address)) notes_of(*block, range.base).sync_memops = wanted;
  return true;
}

bool Blocks::overlaps(CUdeviceptr address, size_t bytes) {
  CUdeviceptr last = address + std::max<size_t>(bytes, 1) - 1;
  if (last < address) last = ~CUdeviceptr{0};
  Lock lock(mutex);
  auto after = std::upper_bound(blocks_.begin(), blocks_.end(), last, [](CUdeviceptr a, const Block* b) { return a < b->base; });
  // From the last one that begins before the range's end, backwards; they do not overlap each other.
  for (; after != blocks_.begin(); --after) {
    const Block* block = *(after - 1);
    if (block->base + block->bytes <= address) break;
    if (block->kind == BlockKind::kVmm) return true;
  }
  for (const Block* block : handle_blocks_) {
    if (block->base != 0 && block->base <= last && address < block->base + block->address_bytes) return true;
  }
  return false;
}

void Blocks::set_window(Block& block, CUdeviceptr base, size_t bytes) {
  Lock lock(mutex);  // overlaps() reads both
  block.base = base;
  block.address_bytes = bytes;
}

bool Blocks::owns_handle(cuda::CUmemGenericAllocationHandle handle) {
  if (handle == 0) return false;
  Lock lock(mutex);
  auto has = [handle](const Block* block) {
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      if (block->chunks[i].handle == handle) return true;
    }
    return false;
  };
  return std::any_of(blocks_.begin(), blocks_.end(), has) || std::any_of(handle_blocks_.begin(), handle_blocks_.end(), has);
}

bool Blocks::owns_managed(CUdeviceptr address) {
  Lock lock(mutex);
  const Block* block = lookup(address);
  return block != nullptr && block->of_program;
}

void Blocks::advise_host(CUdeviceptr address, size_t bytes, bool host) {
  Lock lock(mutex);
  Block* block = lookup(address);
  if (block == nullptr || !block->of_program) return;
  const size_t first = address - block->base;
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    const size_t begin = chunk_offset(i);
    const bool whole = first <= begin && begin + block->chunks[i].bytes <= first + bytes;
    if (whole) block->chunks[i].host_preferred = host;
  }
}

}  // namespace nvshare::interposer
