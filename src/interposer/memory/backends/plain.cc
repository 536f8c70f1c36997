#include "interposer/memory/backends/plain.h"

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

CUresult PlainBackend::reserve(Block& block, const BlockOrder& order) {
  block.address_bytes = order.requested;  // another process that opens it is told its size
  return real_driver().cuMemAlloc_v2(&block.base, order.requested);
}

CUresult PlainBackend::give_back(Block& block) { return free_unless_gone(block); }

CUresult free_unless_gone(const Block& block) {
  return block.context != nullptr ? real_driver().cuMemFree_v2(block.base) : cuda::CUDA_SUCCESS;
}

}  // namespace nvshare::interposer
