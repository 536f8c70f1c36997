// Memory's side of moving: which chunks, and how their state changes. The copies themselves are the mover's (swap.cc).
#include <algorithm>
#include <utility>

#include "interposer/memory/memory.h"
#include "interposer/process/device.h"

namespace nvshare::interposer {

void Memory::set_running(bool running) {
  Lock lock(mutex_);
  running_ = running;
}

bool Memory::run_if_complete() {
  Lock lock(mutex_);
  auto complete = [](const Block* block) {
    if (block->kind == BlockKind::kPlain || block->demand) return true;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      if (block->chunks[i].state != ChunkState::kResident) return false;
    }
    return true;
  };
  for (const Block* block : blocks_) {
    if (!complete(block)) return false;
  }
  for (const Block* block : handle_blocks_) {
    if (!complete(block)) return false;
  }
  running_ = true;
  return true;
}

void Memory::lower_budget(std::atomic<size_t>& budget) {
  Lock lock(mutex_);
  if (resident() < budget.load(std::memory_order_relaxed)) budget.store(resident(), std::memory_order_release);
}

size_t Memory::resident_bytes(const Block& block) {
  if (block.kind == BlockKind::kHandle) return block.in_resident ? block.bytes : 0;
  size_t sum = 0;
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    if (block.chunks[i].state == ChunkState::kResident) sum += block.chunks[i].bytes;
  }
  return sum;
}

std::vector<Memory::Piece> Memory::pin_resident(size_t bytes) {
  std::vector<Piece> pieces;
  Lock lock(mutex_);
  if (keeps_.load(std::memory_order_relaxed)) return pieces;
  size_t sum = 0;
  for (Block* block : blocks_) {
    if (block->kind == BlockKind::kPlain || block->unswappable || block->demand) continue;
    for (uint32_t i = 0; i < block->chunk_count && sum < bytes; ++i) {
      if (block->chunks[i].state != ChunkState::kResident) continue;
      pieces.push_back({block, i, block->chunks[i].bytes});
      ++block->pins;
      sum += block->chunks[i].bytes;
    }
    if (sum >= bytes) break;
  }
  for (Block* block : handle_blocks_) {
    if (sum >= bytes) break;
    if (block->unswappable || !block->in_resident) continue;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {  // all of it, or none of its memory comes free
      if (block->chunks[i].state != ChunkState::kResident) continue;
      pieces.push_back({block, i, block->chunks[i].bytes});
      ++block->pins;
    }
    sum += block->bytes;
  }
  return pieces;
}

std::vector<Memory::Piece> Memory::pin_absent(bool start_running) {
  std::vector<Piece> pieces;
  Lock lock(mutex_);
  auto pin = [&](Block* block) {
    if (block->kind == BlockKind::kPlain || block->demand) return;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      ChunkState state = block->chunks[i].state;
      if (state != ChunkState::kFresh && state != ChunkState::kSwapped) continue;
      pieces.push_back({block, i, block->chunks[i].bytes});
      ++block->pins;
    }
  };
  for (Block* block : blocks_) pin(block);
  for (Block* block : handle_blocks_) pin(block);
  if (pieces.empty() && start_running) running_ = true;
  return pieces;
}

void Memory::unpin(const Piece& piece) {
  Block* dead = nullptr;
  size_t resident = 0;
  {
    Lock lock(mutex_);
    if (--piece.block->pins == 0 && piece.block->doomed) {
      dead = piece.block;
      resident = resident_bytes(*dead);
    }
    pins_changed_.notify_all();
  }
  if (dead == nullptr) return;
  dispose(dead);
  resident_.fetch_sub(resident, std::memory_order_relaxed);
  changed();
}

bool Memory::begin_move(const Piece& piece, ChunkState expected) {
  Lock lock(mutex_);
  if (piece.block->doomed || chunk(piece).state != expected) return false;
  chunk(piece).state = ChunkState::kMoving;
  return true;
}

ChunkState Memory::state_of(const Piece& piece) {
  Lock lock(mutex_);
  return chunk(piece).state;
}

bool Memory::freed(const Piece& piece) {
  Lock lock(mutex_);
  return piece.block->doomed;
}

void Memory::end_move(const Piece& piece, ChunkState now, size_t resident_less, size_t resident_more) {
  Lock lock(mutex_);
  chunk(piece).state = now;
  if (now == ChunkState::kResident && !piece.block->doomed) follow_accessors(*piece.block);
  resident_.fetch_add(resident_more, std::memory_order_relaxed);
  resident_.fetch_sub(resident_less, std::memory_order_relaxed);
}

void Memory::forget_host_copies() {
  const bool keeps = device_.mover().unchanged().on() && !keeps_.load(std::memory_order_relaxed);
  std::vector<HostSlot> slots;
  {
    Lock lock(mutex_);
    auto forget = [&](Block* block) {
      for (uint32_t i = 0; i < block->chunk_count; ++i) {
        Chunk& chunk = block->chunks[i];
        if (chunk.state != ChunkState::kResident || chunk.host.data == nullptr) continue;
        HostSlot slot = chunk.host;
        chunk.host = HostSlot{};
        if (keeps && chunk.kept.known && !block->unswappable) std::swap(slot, chunk.kept.slot);
        slots.push_back(slot);
      }
    };
    for (Block* block : blocks_) forget(block);
    for (Block* block : handle_blocks_) forget(block);
  }
  for (const HostSlot& slot : slots) arena_.give_back(slot);
}

}  // namespace nvshare::interposer
