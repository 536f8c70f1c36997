#include "interposer/memory/handles/exports.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/hooks/submit.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/ipc.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;
using protocol::ExportStatus;

bool Exports::begin(CUdeviceptr address, IpcToken* token, CUresult* result) {
  bool ours = true;
  // In the gate the memory is on the GPU, and does not leave it.
  *result = pass_gate(Within(device_.process()), Target{nullptr, false}, [&] {
    Lock lock(blocks_.mutex);
    Block* block = blocks_.lookup(address);
    ours = block != nullptr && !block->cached && block->kind == BlockKind::kVmm && device_.exportable();
    if (!ours) return cuda::CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr base = block->base;
    size_t bytes = block->requested;
    if (block->slab != nullptr && !SlabSet::slot_of(block->slab, address, &base, &bytes)) return cuda::CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      if (block->chunks[i].state != ChunkState::kResident) return cuda::CUDA_ERROR_INVALID_VALUE;  // never, in the gate
    }
    if (block->export_id == 0) {
      if (syscall(SYS_getrandom, block->export_nonce, sizeof block->export_nonce, 0) != sizeof block->export_nonce) {
        return cuda::CUDA_ERROR_OPERATING_SYSTEM;
      }
      block->export_id = ++last_;
      block->unswappable = true;
      copies_.drop(blocks_, *block);
      use_.add_unswappable(block->bytes);
    }
    token->export_id = block->export_id;
    token->offset = base - block->base;
    token->bytes = bytes;
    memcpy(token->nonce, block->export_nonce, sizeof token->nonce);
    return cuda::CUDA_SUCCESS;
  });
  if (ours && *result == cuda::CUDA_SUCCESS) device_.turns().memory_changed();
  return ours;
}

Block* Exports::find(const protocol::ExportWanted& wanted) {
  for (Block* block : blocks_.by_address()) {
    if (block->export_id == 0 || block->export_id != wanted.export_id) continue;
    return memcmp(block->export_nonce, wanted.nonce, sizeof wanted.nonce) == 0 ? block : nullptr;
  }
  return nullptr;
}

bool Exports::is_over(const protocol::ExportWanted& wanted) {
  CUdeviceptr base = 0;
  {
    Lock lock(blocks_.mutex);
    const Block* block = find(wanted);
    if (block == nullptr) return true;
    if (block->slab != nullptr) return false;  // which allocation of it is meant, only the importer knows
    base = block->base;
  }
  AllocationRange range;
  return !blocks_.find(base, &range) || device_.memory().stream_frees.is_over(range);
}

ExportStatus Exports::chunks(const protocol::ExportWanted& wanted, protocol::Exported* answer, Descriptors* descriptors) {
  if (is_over(wanted)) return ExportStatus::kUnknown;
  Lock lock(blocks_.mutex);
  if (Block* block = find(wanted)) {
    answer->bytes = block->bytes;
    answer->chunk_bytes = block->chunks[0].bytes;
    answer->chunks = block->chunk_count;
    for (uint32_t i = answer->first; i < block->chunk_count && descriptors->count() < protocol::kChunksPerMessage; ++i) {
      int fd = -1;
      const CUresult result =
          real_driver().cuMemExportToShareableHandle(&fd, block->chunks[i].handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      if (result != cuda::CUDA_SUCCESS) {
        log(LogLevel::kError, "GPU memory cannot be handed to another process (CUDA error %d)", static_cast<int>(result));
        return ExportStatus::kFailed;
      }
      descriptors->add(FileDescriptor(fd));
    }
    return ExportStatus::kOk;
  }
  return ExportStatus::kUnknown;
}

}  // namespace nvshare::interposer
