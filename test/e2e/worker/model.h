// What the stand-in's kernels (simgpu/kernels.h) compute, done by the CPU on the expected contents of a block. Built without sanitizers,
// which would make it most of a test's time; the buffers belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nvshare::e2e {

void model_fill(uint64_t* words, size_t count, uint64_t seed);
void model_mix(uint64_t* words, size_t count, uint64_t round);
void model_add(uint64_t* words, const uint64_t* other, size_t count);
uint64_t model_checksum(const uint64_t* words, size_t count);

struct Difference {
  size_t first;
  size_t count;  // 0: none
};
Difference difference_between(const unsigned char* a, const unsigned char* b, size_t bytes);

}  // namespace nvshare::e2e
