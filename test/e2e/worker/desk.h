// A thread's place in the current context, and what the modes start and end with.
#pragma once

#include <memory>

#include "e2e/worker/block.h"

namespace nvshare::e2e {

inline constexpr unsigned kNonBlocking = 1;

// With a stream of its own and memory for checksums.
struct Desk {
  Workplace place{};
  CUdeviceptr scratch = 0;

  Desk() {
    place.kernels = load_kernels();
    check(cuda().cuStreamCreate(&place.stream, kNonBlocking), "cuStreamCreate");
    check(cuda().cuMemAlloc_v2(&scratch, 8), "cuMemAlloc");
  }
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;
};

inline std::unique_ptr<Block> filled(const Workplace& place, size_t bytes, uint64_t seed) {
  auto block = std::make_unique<Block>(place, bytes, Allocation::kPlain);
  block->fill(seed);
  return block;
}

// Of GPU 0. `most`: bytes; 0 for no bound.
inline CUmemoryPool make_pool(CUmemAllocationHandleType handles, size_t most = 0,
                              CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED) {
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.handleTypes = handles;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.maxSize = most;
  CUmemoryPool pool = nullptr;
  check(cuda().cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
  return pool;
}

inline void release_primary() { check(cuda().cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease"); }

}  // namespace nvshare::e2e
