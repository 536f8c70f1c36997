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

inline void release_primary() { check(cuda().cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease"); }

}  // namespace nvshare::e2e
