#include "interposer/swap/copies/chunk_hash.h"

#include <string.h>

namespace nvshare::interposer {

namespace {

constexpr uint32_t kSteps = kHashUnitBytes / kHashThreads / 16;

uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

uint64_t scramble(uint64_t value) {
  value = (value ^ value >> 32) * 0xd6e8feb86659fd93;
  value = (value ^ value >> 29) * 0xa0761d6478bd642f;
  return value ^ value >> 32;
}

}  // namespace

ChunkHash hash_unit(const void* unit) {
  ChunkHash sum;
  for (uint64_t thread = 0; thread < kHashThreads; ++thread) {
    uint64_t a = 0x243f6a8885a308d3 + thread * 0x9e3779b97f4a7c15;
    uint64_t b = 0x13198a2e03707344 - thread * 0xc2b2ae3d27d4eb4f;
    for (uint32_t step = 0; step < kSteps; ++step) {
      uint64_t pair[2];
      memcpy(pair, static_cast<const char*>(unit) + (step * kHashThreads + thread) * sizeof pair, sizeof pair);
      a = rotate(a ^ pair[0], 29) * 0xbf58476d1ce4e5b9;
      a = rotate(a ^ pair[1], 29) * 0xbf58476d1ce4e5b9;
      b = rotate(b + pair[1], 37) * 0x94d049bb133111eb;
      b = rotate(b + pair[0], 37) * 0x94d049bb133111eb;
    }
    sum.first += scramble(a);
    sum.second += scramble(b);
  }
  return sum;
}

ChunkHash join_units(const ChunkHash* units, size_t count) {
  ChunkHash joined{0xa4093822299f31d0 + count, 0x082efa98ec4e6c89 - count};
  for (size_t i = 0; i < count; ++i) {
    joined.first = scramble(rotate(joined.first, 29) + units[i].first);
    joined.second = scramble(rotate(joined.second, 37) ^ units[i].second);
  }
  return joined;
}

}  // namespace nvshare::interposer
