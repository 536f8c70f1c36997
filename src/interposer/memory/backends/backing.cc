#include "interposer/memory/backends/backing.h"

#include <algorithm>

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

CUresult copy_in(const Piece& piece, cuda::CUstream stream) {
  return real_driver().cuMemcpyHtoDAsync_v2(piece.address(), piece.chunk().host.data, piece.bytes, stream);
}

CUresult copy_out(const Piece& piece, cuda::CUstream stream) {
  return real_driver().cuMemcpyDtoHAsync_v2(piece.chunk().host.data, piece.address(), piece.bytes, stream);
}

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

Backend& Backing::of(const Block& block) {
  switch (block.kind) {
    case BlockKind::kVmm:
      return vmm_;
    case BlockKind::kManaged:
      return managed;
    case BlockKind::kPlain:
      return plain_;
    case BlockKind::kHandle:
      return handle_;
  }
  return plain_;
}

CUresult Backing::make(const BlockOrder& order, Block** out) {
  Block* block = new Block;
  block->bytes = order.bytes;
  block->requested = order.requested;
  block->context = order.context;
  block->for_pool = order.use == SlabUse::kPool;
  block->notes = new_notes();
  block->kind = kind_of(order);
  block->handle = order.handle;
  block->of_program = order.handle == nullptr && order.managed != 0;
  const CUresult result = of(*block).reserve(*block, order);
  if (result != cuda::CUDA_SUCCESS) {
    delete block;
    return result;
  }
  block->chunk_count = static_cast<uint32_t>((block->bytes + kChunkBytesMax - 1) / kChunkBytesMax);
  block->chunks = new Chunk[block->chunk_count];
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    block->chunks[i].bytes = static_cast<uint32_t>(std::min(kChunkBytesMax, block->bytes - chunk_offset(i)));
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
  const CUresult result = of(*block).give_back(*block);
  if (result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_DEINITIALIZED && result != cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    log(LogLevel::kDebug, "giving back an address range failed (CUDA error %d)", static_cast<int>(result));
  }
  blocks_.ended(block->base);
  delete[] block->chunks;
  delete block;
}

}  // namespace nvshare::interposer
