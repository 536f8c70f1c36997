// A hash of 128 bits over a chunk of GPU memory, made on the GPU (chunk_hash.cu) in units of 512 KiB, which are joined here. This is the
// same computation on the CPU: what the GPU's is checked against before it is believed. Pure.
//
// Each of a unit's 256 threads takes every 256th pair of words into two lanes of 64 bits that begin with its number: word after word is
// xored or added, rotated and multiplied by an odd number, so a lane tells every single word that differs, and its place. The lanes' ends
// are scrambled and summed over the threads. Nobody gains by a collision (a program could lose its own memory's last change, no other's),
// so it is not a cryptographic hash. For contents that were not made to collide two that differ agree with a probability of 2^-128, and
// 2^-64 even if the lanes were as good as one: a node that compares 400 chunks a second for ten years makes 2^37 comparisons.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nvshare::interposer {

struct ChunkHash {
  uint64_t first = 0;
  uint64_t second = 0;
  bool operator==(const ChunkHash& other) const { return first == other.first && second == other.second; }
};

inline constexpr size_t kHashUnitBytes = size_t{512} << 10;
inline constexpr unsigned kHashThreads = 256;

ChunkHash hash_unit(const void* unit);
// Of a chunk, from its units' in their order.
ChunkHash join_units(const ChunkHash* units, size_t count);

}  // namespace nvshare::interposer
