// Copies of chunks that stay in host memory while the chunks are on the GPU, so that what did not change leaves without a copy, and a turn
// that has not begun can be given back without one. They are a cache.
#include <algorithm>
#include <iterator>
#include <utility>

#include "interposer/memory/memory.h"
#include "interposer/process/device.h"

namespace nvshare::interposer {

template <typename Visit>
void Memory::each_kept(Visit visit) {
  for (const std::vector<Block*>* blocks : {&handle_blocks_, &blocks_}) {
    for (auto block = blocks->rbegin(); block != blocks->rend(); ++block) {  // what leaves last comes first
      for (uint32_t i = (*block)->chunk_count; i-- > 0;) {
        KeptCopy& kept = (*block)->chunks[i].kept;
        if (kept.slot.data != nullptr && !visit(kept)) return;
      }
    }
  }
}

// Chunks that came in for a turn that has not begun: their host copies are still true, so that the turn could be given back without a copy.
// While the program runs there are none. An eviction reads such copies without the mutex.
template <typename Visit>
void Memory::each_arrived(Visit visit) {
  if (evicting_) return;
  for (const std::vector<Block*>* blocks : {&handle_blocks_, &blocks_}) {
    for (Block* block : *blocks) {
      for (uint32_t i = 0; i < block->chunk_count; ++i) {
        Chunk& chunk = block->chunks[i];
        if (chunk.state == ChunkState::kResident && chunk.host.data != nullptr) visit(chunk);
      }
    }
  }
}

void Memory::drop_kept(Block& block) {
  for (uint32_t i = 0; i < block.chunk_count; ++i) arena_.give_back(std::exchange(block.chunks[i].kept.slot, HostSlot{}));
}

bool Memory::hash_wanted(const Piece& piece) {
  const bool movable = piece.block->kind == BlockKind::kVmm || piece.block->kind == BlockKind::kHandle;
  if (!movable || piece.bytes % kHashUnitBytes != 0) return false;
  Lock lock(mutex_);
  const Chunk& chunk = piece.block->chunks[piece.index];
  return chunk.state == ChunkState::kResident && chunk.host.data == nullptr && chunk.kept.wants_hash();
}

bool Memory::adopt_kept(const Piece& piece, const ChunkHash& now) {
  Lock lock(mutex_);
  Chunk& it = chunk(piece);
  if (!it.kept.is_true(now)) return false;
  it.host = std::exchange(it.kept.slot, HostSlot{});
  return true;
}

void Memory::disown_host_copy(const Piece& piece) {
  Lock lock(mutex_);
  Chunk& it = chunk(piece);
  it.kept.slot = std::exchange(it.host, HostSlot{});
  it.kept.known = false;
}

HostSlot Memory::take_kept(const Piece& piece) {
  Lock lock(mutex_);
  return std::exchange(chunk(piece).kept.slot, HostSlot{});
}

bool Memory::has_kept(const Piece& piece) {
  Lock lock(mutex_);
  return chunk(piece).kept.slot.data != nullptr;
}

void Memory::left(const Piece& piece, bool copied, const ChunkHash* hash) {
  Lock lock(mutex_);
  if (copied) {
    chunk(piece).kept.copied(hash);
  } else if (hash != nullptr) {
    chunk(piece).kept.unchanged();
  }
}

size_t Memory::kept_bytes() {
  size_t sum = 0;
  Lock lock(mutex_);
  each_kept([&](const KeptCopy& kept) {
    sum += kept.slot.bytes;
    return true;
  });
  return sum;
}

bool Memory::drop_one_kept() {
  bool dropped = false;
  Lock lock(mutex_);
  each_kept([&](KeptCopy& kept) {
    arena_.give_back(std::exchange(kept.slot, HostSlot{}));
    dropped = true;
    return false;
  });
  return dropped;
}

void Memory::give_back_spare(size_t bytes) {
  Lock lock(mutex_);
  const std::vector<HostArena::SegmentUse> uses = arena_.segment_uses();
  std::vector<size_t> spare_in(uses.size(), 0);
  each_kept([&](const KeptCopy& kept) {
    spare_in[kept.slot.segment] += kept.slot.bytes;
    return true;
  });
  each_arrived([&](const Chunk& chunk) { spare_in[chunk.host.segment] += chunk.host.bytes; });
  // Whole segments are given back, so only those that hold nothing else.
  size_t sum = 0;
  for (const HostArena::SegmentUse& use : uses) sum += use.used == 0 ? use.bytes : 0;
  std::vector<bool> goes(uses.size(), false);
  for (size_t i = 0; i < uses.size() && sum < bytes; ++i) {
    if (uses[i].bytes == 0 || uses[i].used == 0 || spare_in[i] != uses[i].used) continue;
    goes[i] = true;
    sum += uses[i].bytes;
  }
  each_kept([&](KeptCopy& kept) {
    if (goes[kept.slot.segment]) arena_.give_back(std::exchange(kept.slot, HostSlot{}));
    return true;
  });
  each_arrived([&](Chunk& chunk) {
    if (goes[chunk.host.segment]) arena_.give_back(std::exchange(chunk.host, HostSlot{}));
  });
}

void Memory::set_evicting(bool evicting) {
  Lock lock(mutex_);
  evicting_ = evicting;
}

}  // namespace nvshare::interposer
