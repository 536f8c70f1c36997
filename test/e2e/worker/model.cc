#include "e2e/worker/model.h"

#include <cstring>

#include "simgpu/kernels.h"

namespace nvshare::e2e {

void model_fill(uint64_t* words, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; ++i) words[i] = simgpu::fill_word(seed, i);
}

void model_mix(uint64_t* words, size_t count, uint64_t round) {
  for (size_t i = 0; i < count; ++i) words[i] = simgpu::mix_word(words[i], round);
}

void model_add(uint64_t* words, const uint64_t* other, size_t count) {
  for (size_t i = 0; i < count; ++i) words[i] += other[i];
}

uint64_t model_checksum(const uint64_t* words, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += simgpu::checksum_term(words[i], i);
  return sum;
}

Difference difference_between(const unsigned char* a, const unsigned char* b, size_t bytes) {
  Difference found{0, 0};
  for (size_t i = 0; i < bytes; ++i) {
    uint64_t words[2];
    while (i + sizeof words[0] <= bytes) {
      std::memcpy(&words[0], a + i, sizeof words[0]);
      std::memcpy(&words[1], b + i, sizeof words[1]);
      if (words[0] != words[1]) break;
      i += sizeof words[0];
    }
    if (i == bytes || a[i] == b[i]) continue;
    if (found.count++ == 0) found.first = i;
  }
  return found;
}

}  // namespace nvshare::e2e
