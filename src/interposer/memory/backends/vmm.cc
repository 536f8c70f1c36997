#include "interposer/memory/backends/vmm.h"

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;

CUresult VmmBackend::reserve(Block& block, const BlockOrder&) {
  block.address_bytes = block.bytes;
  return real_driver().cuMemAddressReserve(&block.base, block.bytes, 0, 0, 0);
}

CUresult VmmBackend::give_back(Block& block) { return real_driver().cuMemAddressFree(block.base, block.address_bytes); }

CUresult VmmBackend::take_left(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  if (!chunk.left_mapped) return cuda::CUDA_SUCCESS;
  const CUresult result = real_driver().cuMemUnmap(block.base + chunk_offset(index), chunk.bytes);
  chunk.left_mapped = result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_DEINITIALIZED;
  return result;
}

CUresult VmmBackend::map(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  const RealDriver& driver = real_driver();
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_.ordinal();
  // So that any of it can be handed to another process later: see docs/adr/0004.
  if (device_.exportable()) properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  // First of all, as it may be what leaves no room.
  CUresult result = take_left(block, index);
  if (result != cuda::CUDA_SUCCESS) return result;
  result = driver.cuMemCreate(&chunk.handle, chunk.bytes, &properties, 0);
  if (result != cuda::CUDA_SUCCESS) {
    chunk.handle = 0;
    return result;
  }
  CUdeviceptr address = block.base + chunk_offset(index);
  result = driver.cuMemMap(address, chunk.bytes, 0, chunk.handle, 0);
  if (result == cuda::CUDA_SUCCESS) {
    chunk.accessors = 0;
    result = access_.grant(block, index);
    if (result == cuda::CUDA_SUCCESS) return result;
    chunk.left_mapped = driver.cuMemUnmap(address, chunk.bytes) != cuda::CUDA_SUCCESS;
  }
  driver.cuMemRelease(chunk.handle);
  chunk.handle = 0;
  return result;
}

void VmmBackend::unmap(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  take_left(block, index);
  if (chunk.handle == 0) return;
  CUresult unmapped = real_driver().cuMemUnmap(block.base + chunk_offset(index), chunk.bytes);
  CUresult released = real_driver().cuMemRelease(chunk.handle);
  // A driver that has gone (the program frees in its last exit handlers) took the memory with it.
  const bool gone = unmapped == cuda::CUDA_ERROR_DEINITIALIZED;
  if (!gone && (unmapped != cuda::CUDA_SUCCESS || released != cuda::CUDA_SUCCESS)) {
    log(LogLevel::kError, "giving back %u bytes of GPU memory failed (CUDA errors %d, %d)", chunk.bytes, static_cast<int>(unmapped),
        static_cast<int>(released));
  }
  chunk.left_mapped = !gone && unmapped != cuda::CUDA_SUCCESS;
  chunk.handle = 0;
}

CUresult VmmBackend::start_in(const Piece& piece, cuda::CUstream stream, bool* copying) {
  *copying = piece.chunk().host.data != nullptr;
  return *copying ? copy_in(piece, stream) : cuda::CUDA_SUCCESS;
}

CUresult VmmBackend::start_out(const Piece& piece, cuda::CUstream stream) { return copy_out(piece, stream); }

}  // namespace nvshare::interposer
