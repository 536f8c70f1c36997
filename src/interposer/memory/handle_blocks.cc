// Blocks behind the handles that the program makes by cuMemCreate: one driver handle each, moved as a whole though copied in parts. Where
// the program has it mapped is program_vmm's concern.
#include "interposer/memory/address_book.h"
#include "interposer/memory/allocations.h"
#include "interposer/memory/charges.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

using cuda::CUresult;

CUresult Allocations::allocate_handle(ProgramHandle* handle) {
  if (!charge(device_, handle->bytes, "virtual memory")) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Block* block = nullptr;
  CUresult result = allocate_block({handle->bytes, handle->bytes, nullptr, handle}, &block);
  if (result == cuda::CUDA_SUCCESS) {
    handle->block = block;
  } else {
    refund(device_, handle->bytes);
  }
  return result;
}

void Allocations::free_handle(Block* block) {
  refund(device_, block->requested);
  {
    Lock lock(blocks_.mutex);
    block->handle_ends = true;
    if (block->unswappable) use_.drop_unswappable(block->bytes);
  }
  retire(block, false);
}

}  // namespace nvshare::interposer
