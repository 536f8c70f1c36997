#include "interposer/swap/copies/host_copies.h"

#include <utility>
#include <vector>

namespace nvshare::interposer {

template <typename Visit>
void HostCopies::each_kept(Visit visit) {
  for (const std::vector<Block*>* blocks : {&blocks_.handles(), &blocks_.by_address()}) {
    for (auto block = blocks->rbegin(); block != blocks->rend(); ++block) {  // what leaves last comes first
      for (uint32_t i = (*block)->chunk_count; i-- > 0;) {
        RetainedCopy& kept = (*block)->chunks[i].kept;
        if (kept.slot.data != nullptr && !visit(kept)) return;
      }
    }
  }
}

// Chunks that came in for a turn that has not begun: their host copies are still true, so that the turn could be given back without a copy.
// While the program runs there are none. An eviction reads such copies without the mutex.
template <typename Visit>
void HostCopies::each_arrived(Visit visit) {
  if (evicting_) return;
  for (const std::vector<Block*>* blocks : {&blocks_.handles(), &blocks_.by_address()}) {
    for (Block* block : *blocks) {
      for (uint32_t i = 0; i < block->chunk_count; ++i) {
        Chunk& chunk = block->chunks[i];
        if (chunk.state == ChunkState::kResident && chunk.host.data != nullptr) visit(chunk);
      }
    }
  }
}

void HostCopies::forget(bool keeps) {
  std::vector<HostSlot> slots;
  {
    Lock lock(blocks_.mutex);
    blocks_.each([&](Block* block) {
      for (uint32_t i = 0; i < block->chunk_count; ++i) {
        Chunk& chunk = block->chunks[i];
        if (chunk.state != ChunkState::kResident || chunk.host.data == nullptr) continue;
        HostSlot slot = chunk.host;
        chunk.host = HostSlot{};
        if (keeps && chunk.kept.known && !block->unswappable) std::swap(slot, chunk.kept.slot);
        slots.push_back(slot);
      }
    });
  }
  for (const HostSlot& slot : slots) arena_.give_back(slot);
}

void HostCopies::drop(const Blocks&, Block& block) {
  for (uint32_t i = 0; i < block.chunk_count; ++i) arena_.give_back(std::exchange(block.chunks[i].kept.slot, HostSlot{}));
}

bool HostCopies::hash_wanted(const Piece& piece) {
  if (!is_copied(piece.block->kind) || piece.bytes % kHashUnitBytes != 0) return false;
  Lock lock(blocks_.mutex);
  const Chunk& chunk = piece.chunk();
  return chunk.state == ChunkState::kResident && chunk.host.data == nullptr && chunk.kept.wants_hash();
}

bool HostCopies::adopt_kept(const Piece& piece, const ChunkHash& now) {
  Lock lock(blocks_.mutex);
  Chunk& it = piece.chunk();
  if (!it.kept.is_true(now)) return false;
  it.host = std::exchange(it.kept.slot, HostSlot{});
  return true;
}

void HostCopies::disown(const Piece& piece) {
  Lock lock(blocks_.mutex);
  Chunk& it = piece.chunk();
  it.kept.slot = std::exchange(it.host, HostSlot{});
  it.kept.known = false;
}

HostSlot HostCopies::take_kept(const Piece& piece) {
  Lock lock(blocks_.mutex);
  return std::exchange(piece.chunk().kept.slot, HostSlot{});
}

bool HostCopies::has_kept(const Piece& piece) {
  Lock lock(blocks_.mutex);
  return piece.chunk().kept.slot.data != nullptr;
}

void HostCopies::left(const Piece& piece, bool copied, const ChunkHash* hash) {
  Lock lock(blocks_.mutex);
  if (copied) {
    piece.chunk().kept.copied(hash);
  } else if (hash != nullptr) {
    piece.chunk().kept.unchanged();
  }
}

size_t HostCopies::kept_bytes() {
  size_t sum = 0;
  Lock lock(blocks_.mutex);
  each_kept([&](const RetainedCopy& kept) {
    sum += kept.slot.bytes;
    return true;
  });
  return sum;
}

bool HostCopies::drop_one_kept() {
  bool dropped = false;
  Lock lock(blocks_.mutex);
  each_kept([&](RetainedCopy& kept) {
    arena_.give_back(std::exchange(kept.slot, HostSlot{}));
    dropped = true;
    return false;
  });
  return dropped;
}

void HostCopies::give_back_spare(size_t bytes) {
  Lock lock(blocks_.mutex);
  const std::vector<HostArena::SegmentUse> uses = arena_.segment_uses();
  std::vector<size_t> spare_in(uses.size(), 0);
  each_kept([&](const RetainedCopy& kept) {
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
  each_kept([&](RetainedCopy& kept) {
    if (goes[kept.slot.segment]) arena_.give_back(std::exchange(kept.slot, HostSlot{}));
    return true;
  });
  each_arrived([&](Chunk& chunk) {
    if (goes[chunk.host.segment]) arena_.give_back(std::exchange(chunk.host, HostSlot{}));
  });
}

void HostCopies::set_evicting(bool evicting) {
  Lock lock(blocks_.mutex);
  evicting_ = evicting;
}

}  // namespace nvshare::interposer
