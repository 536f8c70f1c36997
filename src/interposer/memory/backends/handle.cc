#include "interposer/memory/backends/handle.h"

#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

// The program reserves its own addresses; the window comes when it is needed.
CUresult HandleBackend::reserve(Block&, const BlockOrder&) { return cuda::CUDA_SUCCESS; }

CUresult HandleBackend::give_back(Block& block) {
  const CUresult result = block.base != 0 ? real_driver().cuMemAddressFree(block.base, block.address_bytes) : cuda::CUDA_SUCCESS;
  if (block.handle_ends) delete block.handle;
  return result;
}

CUresult HandleBackend::map(Block& block, uint32_t) { return device_.process().vmm.place(block); }

void HandleBackend::unmap(Block& block, uint32_t) { device_.process().vmm.displace(block); }

CUresult HandleBackend::start_in(const Piece& piece, cuda::CUstream stream, bool* copying) {
  *copying = piece.chunk().host.data != nullptr;
  if (!*copying) return cuda::CUDA_SUCCESS;
  const CUresult opened = device_.process().vmm.open_window(blocks_, *piece.block);
  return opened == cuda::CUDA_SUCCESS ? copy_in(piece, stream) : opened;
}

CUresult HandleBackend::start_out(const Piece& piece, cuda::CUstream stream) {
  const CUresult opened = device_.process().vmm.open_window(blocks_, *piece.block);
  return opened == cuda::CUDA_SUCCESS ? copy_out(piece, stream) : opened;
}

}  // namespace nvshare::interposer
