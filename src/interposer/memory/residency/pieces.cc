#include "interposer/memory/residency/pieces.h"

#include "interposer/process/device.h"

namespace nvshare::interposer {

using cuda::CUresult;

namespace {

constexpr int64_t kRoomPatience_ns = 2'000'000'000;
constexpr int64_t kRoomPause_ns = 5'000'000;

}  // namespace

// ---- pins ----

std::vector<Piece> Pieces::pin_resident(size_t bytes) {
  std::vector<Piece> pieces;
  Lock lock(blocks_.mutex);
  if (residency_.all_kept()) return pieces;
  size_t sum = 0;
  for (Block* block : blocks_.by_address()) {
    if (!takes_turns(*block) || block->unswappable) continue;
    for (uint32_t i = 0; i < block->chunk_count && sum < bytes; ++i) {
      if (block->chunks[i].state != ChunkState::kResident) continue;
      pieces.push_back({block, i, block->chunks[i].bytes});
      ++block->pins;
      sum += block->chunks[i].bytes;
    }
    if (sum >= bytes) break;
  }
  for (Block* block : blocks_.handles()) {
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

std::vector<Piece> Pieces::pin_absent(bool start_running) {
  std::vector<Piece> pieces;
  Lock lock(blocks_.mutex);
  blocks_.each([&](Block* block) {
    if (!takes_turns(*block)) return;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      ChunkState state = block->chunks[i].state;
      if (state != ChunkState::kFresh && state != ChunkState::kSwapped) continue;
      pieces.push_back({block, i, block->chunks[i].bytes});
      ++block->pins;
    }
  });
  if (pieces.empty() && start_running) blocks_.running = true;
  return pieces;
}

std::vector<Piece> Pieces::pin_swapped(size_t bytes) {
  std::vector<Piece> pieces;
  size_t sum = 0;
  Lock lock(blocks_.mutex);
  for (Block* block : blocks_.by_address()) {
    if (block->kind != BlockKind::kVmm) continue;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      const Chunk& chunk = block->chunks[i];
      if (chunk.state != ChunkState::kSwapped || sum + chunk.bytes > bytes) continue;
      pieces.push_back({block, i, chunk.bytes});
      ++block->pins;
      sum += chunk.bytes;
    }
    if (sum >= bytes) break;
  }
  return pieces;
}

void Pieces::unpin(const Piece& piece) {
  Block* dead = nullptr;
  size_t resident = 0;
  {
    Lock lock(blocks_.mutex);
    if (--piece.block->pins == 0 && piece.block->doomed) {
      dead = piece.block;
      resident = Residency::resident_bytes(*dead);
    }
  }
  if (dead == nullptr) return;
  backing_.dispose(dead);
  use_.drop_resident(resident);
  device_.turns().memory_changed();
}

// ---- one chunk's way ----

bool Pieces::begin(const Piece& piece, ChunkState expected) {
  Lock lock(blocks_.mutex);
  if (piece.block->doomed || piece.chunk().state != expected) return false;
  piece.chunk().state = ChunkState::kMoving;
  return true;
}

void Pieces::end(const Piece& piece, ChunkState now, size_t resident_less) {
  Lock lock(blocks_.mutex);
  piece.chunk().state = now;
  if (now == ChunkState::kResident && !piece.block->doomed) access_.follow(blocks_, *piece.block);
  use_.drop_resident(resident_less);
}

ChunkState Pieces::state_of(const Piece& piece) {
  Lock lock(blocks_.mutex);
  return piece.chunk().state;
}

bool Pieces::freed(const Piece& piece) {
  Lock lock(blocks_.mutex);
  return piece.block->doomed;
}

size_t Pieces::arriving_bytes(const Piece& piece) {
  if (piece.block->kind != BlockKind::kHandle) return piece.bytes;
  Lock lock(blocks_.mutex);
  return piece.block->in_resident ? 0 : piece.block->bytes;
}

void Pieces::arrived(const Piece& piece) {
  Lock lock(blocks_.mutex);
  size_t bytes = piece.bytes;
  if (piece.block->kind == BlockKind::kHandle) {
    bytes = piece.block->in_resident ? 0 : piece.block->bytes;
    piece.block->in_resident = true;
  }
  use_.add_resident(bytes);
}

size_t Pieces::leave(const Piece& piece) {
  Block& block = *piece.block;
  if (block.kind != BlockKind::kHandle) {
    backing_.unmap(block, piece.index);
    end(piece, ChunkState::kSwapped, piece.bytes);
    return piece.bytes;
  }
  {
    Lock lock(blocks_.mutex);
    piece.chunk().state = ChunkState::kResident;  // with a host copy that is true until the program runs
    if (block.doomed) return 0;
    for (uint32_t i = 0; i < block.chunk_count; ++i) {
      const Chunk& part = block.chunks[i];
      // A load that was given up in the middle leaves parts behind that never came.
      const bool absent = part.state == ChunkState::kSwapped || part.state == ChunkState::kFresh;
      const bool copied = part.state == ChunkState::kResident && part.host.data != nullptr;
      if (!absent && !copied) return 0;
    }
    for (uint32_t i = 0; i < block.chunk_count; ++i) {
      if (block.chunks[i].state == ChunkState::kResident) block.chunks[i].state = ChunkState::kMoving;
    }
  }
  backing_.unmap(block, 0);
  Lock lock(blocks_.mutex);
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    if (block.chunks[i].state == ChunkState::kMoving) block.chunks[i].state = ChunkState::kSwapped;
  }
  block.in_resident = false;
  use_.drop_resident(block.bytes);
  return block.bytes;
}

// ---- without a context ----

CUresult Pieces::place_without_context(Block& block) {
  {
    Lock lock(blocks_.mutex);
    if (block.in_resident) return cuda::CUDA_SUCCESS;
    for (uint32_t i = 0; i < block.chunk_count; ++i) {
      if (block.chunks[i].state != ChunkState::kFresh) return cuda::CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < block.chunk_count; ++i) block.chunks[i].state = ChunkState::kMoving;
    ++block.pins;
    block.in_resident = true;
    use_.add_resident(block.bytes);
  }
  CUresult result = backing_.map(block, 0);
  for (const int64_t start = now_ns(); result == cuda::CUDA_ERROR_OUT_OF_MEMORY && now_ns() - start < kRoomPatience_ns;) {
    sleep_ns(kRoomPause_ns);  // neighbours that move out make room
    result = backing_.map(block, 0);
  }
  {
    Lock lock(blocks_.mutex);
    const bool placed = result == cuda::CUDA_SUCCESS;
    for (uint32_t i = 0; i < block.chunk_count; ++i) block.chunks[i].state = placed ? ChunkState::kResident : ChunkState::kFresh;
    if (!placed) {
      block.in_resident = false;
      use_.drop_resident(block.bytes);
    }
  }
  if (result == cuda::CUDA_SUCCESS) residency_.make_unswappable(block);
  unpin({&block, 0, block.bytes});
  device_.turns().memory_changed();
  return result;
}

}  // namespace nvshare::interposer
