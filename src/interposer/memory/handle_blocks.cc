// Blocks behind the handles that the program makes by cuMemCreate: one driver handle each, moved as a whole though copied in parts. Where
// the program has it mapped is program_vmm's concern.
#include "interposer/memory/address_book.h"
#include "interposer/memory/memory.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

using cuda::CUresult;

namespace {

constexpr int64_t kPatience_ns = 2'000'000'000;
constexpr int64_t kPause_ns = 5'000'000;

}  // namespace

CUresult Memory::allocate_handle(ProgramHandle* handle) {
  if (!charge(handle->bytes, "virtual memory")) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Block* block = nullptr;
  CUresult result = allocate_block({handle->bytes, handle->bytes, nullptr, handle}, &block);
  if (result == cuda::CUDA_SUCCESS) {
    handle->block = block;
  } else {
    refund(handle->bytes);
  }
  return result;
}

void Memory::free_handle(Block* block) {
  refund(block->requested);
  {
    Lock lock(mutex_);
    block->handle_ends = true;
    if (block->unswappable) unswappable_.fetch_sub(block->bytes, std::memory_order_relaxed);
  }
  retire(block, false);
}

void Memory::make_unswappable(Block& block) {
  {
    Lock lock(mutex_);
    if (block.unswappable) return;
    block.unswappable = true;
    drop_kept(block);
    unswappable_.fetch_add(block.bytes, std::memory_order_relaxed);
  }
  changed();
}

CUresult Memory::place_without_context(Block& block) {
  {
    Lock lock(mutex_);
    if (block.in_resident) return cuda::CUDA_SUCCESS;
    for (uint32_t i = 0; i < block.chunk_count; ++i) {
      if (block.chunks[i].state != ChunkState::kFresh) return cuda::CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < block.chunk_count; ++i) block.chunks[i].state = ChunkState::kMoving;
    ++block.pins;
    block.in_resident = true;
    resident_.fetch_add(block.bytes, std::memory_order_relaxed);
  }
  CUresult result = map_chunk(block, 0);
  for (const int64_t start = now_ns(); result == cuda::CUDA_ERROR_OUT_OF_MEMORY && now_ns() - start < kPatience_ns;) {
    sleep_ns(kPause_ns);  // neighbours that move out make room
    result = map_chunk(block, 0);
  }
  {
    Lock lock(mutex_);
    const bool placed = result == cuda::CUDA_SUCCESS;
    for (uint32_t i = 0; i < block.chunk_count; ++i) block.chunks[i].state = placed ? ChunkState::kResident : ChunkState::kFresh;
    if (!placed) {
      block.in_resident = false;
      resident_.fetch_sub(block.bytes, std::memory_order_relaxed);
    }
  }
  if (result == cuda::CUDA_SUCCESS) make_unswappable(block);
  unpin({&block, 0, block.bytes});
  changed();
  return result;
}

size_t Memory::arriving_bytes(const Piece& piece) {
  if (piece.block->kind != BlockKind::kHandle) return piece.bytes;
  Lock lock(mutex_);
  return piece.block->in_resident ? 0 : piece.block->bytes;
}

void Memory::arrived(const Piece& piece) {
  Lock lock(mutex_);
  size_t bytes = piece.bytes;
  if (piece.block->kind == BlockKind::kHandle) {
    bytes = piece.block->in_resident ? 0 : piece.block->bytes;
    piece.block->in_resident = true;
  }
  resident_.fetch_add(bytes, std::memory_order_relaxed);
}

size_t Memory::leave(const Piece& piece) {
  Block& block = *piece.block;
  if (block.kind != BlockKind::kHandle) {
    unmap_chunk(block, piece.index);
    end_move(piece, ChunkState::kSwapped, piece.bytes, 0);
    return piece.bytes;
  }
  {
    Lock lock(mutex_);
    chunk(piece).state = ChunkState::kResident;  // with a host copy that is true until the program runs
    if (block.doomed) return 0;
    for (uint32_t i = 0; i < block.chunk_count; ++i) {
      const Chunk& part = block.chunks[i];
      const bool copied = part.state == ChunkState::kSwapped || (part.state == ChunkState::kResident && part.host.data != nullptr);
      if (!copied) return 0;
    }
    for (uint32_t i = 0; i < block.chunk_count; ++i) block.chunks[i].state = ChunkState::kMoving;
  }
  process().vmm().displace(block);
  Lock lock(mutex_);
  for (uint32_t i = 0; i < block.chunk_count; ++i) block.chunks[i].state = ChunkState::kSwapped;
  block.in_resident = false;
  resident_.fetch_sub(block.bytes, std::memory_order_relaxed);
  return block.bytes;
}

}  // namespace nvshare::interposer
