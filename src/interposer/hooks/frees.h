// Freeing: whose an address is, and what goes with the driver's free of memory that is not ours.
#pragma once

#include "interposer/hooks/nowhere.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

using namespace cuda;

// The GPU whose allocation the address lies in. Null: the driver is to free it, or to refuse: *address is one without memory then where the
// program has none but the driver does, for others of the program's allocations may be in it.
inline Device* owner_for_free(Process& process, CUdeviceptr* address) {
  if (*address == 0 || !process.active()) return nullptr;
  AllocationRange range;
  bool within = false;
  Device* owner = process.owner(*address, &range, &within);
  if (owner == nullptr && within) *address = kNowhere;
  return owner;
}

// An allocation from a pool of managed memory is charged when the driver makes it (stream_memory_hooks.cc).
inline void refund_managed(Process& process, const Pools::Placed& placed) {
  if (placed.pool == nullptr || placed.charged_to < 0) return;
  if (Device* device = process.device(placed.charged_to)) refund(*device, charged_bytes(placed.bytes));
}

// `call`: the driver's free of memory that is not ours.
template <typename Call>
CUresult free_of_driver(Process& process, CUdeviceptr address, Call call) {
  const Pools::Placed placed = process.pools.placed_managed_any() ? process.pools.take(address) : Pools::Placed{};
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    refund_managed(process, placed);
  } else {
    process.pools.put_back(placed);
  }
  return result;
}

}  // namespace nvshare::interposer
