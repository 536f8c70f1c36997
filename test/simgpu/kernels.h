// The kernels that every module of the stand-in has, by name; all parameters are 64-bit words. What they compute is defined here, so that a
// test can compute it on its own.
//
//   sim_noop()                             nothing, in no time: for the cost of a launch
//   sim_fill(ptr, n_words, seed)           word i = fill_word(seed, i)
//   sim_mix(ptr, n_words, round)           each word = mix_word(word, round); order matters, so lost or doubled work shows
//   sim_mix_slow(ptr, n_words, round, ns)  the same, and takes that long
//   sim_add(dst, src, n_words)             dst[i] += src[i]
//   sim_checksum(src, n_words, dst)        *dst = checksum over all words and their places
//   sim_spin(ns)                           takes that long
//   sim_work(rounds, out)                  takes a nanosecond a round; on a GPU, a fixed amount of work. Nothing is written
//   sim_meet(ptr, n_words, counter, target)  a collective: counts itself in at a word of the host's memory, waits until the count has
//   reached
//                                          the target, then mixes each word with it as round. Other programs' work goes on meanwhile
//   sim_touch(ptr, bytes, ns)              needs the memory (managed pages come to the device), takes that long
//   nvshare_chunk_hash(units, hashes, n)   hashes[i] = 128 bits over the 512 KiB at units[i], as the library's own kernel of that name
//   makes
//                                          them; under the fault `blind_hash` the same for all
//
// A kernel takes the time given, or what its memory traffic takes; never less than the CPU needs for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace simgpu {

inline uint64_t scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 27);
}
inline uint64_t fill_word(uint64_t seed, uint64_t index) { return scramble(seed * 0x9e3779b97f4a7c15 + index); }
inline uint64_t mix_word(uint64_t word, uint64_t round) { return scramble(word + (round + 1) * 0x9e3779b97f4a7c15); }
// The checksum is the sum of these.
inline uint64_t checksum_term(uint64_t word, uint64_t index) { return scramble(word ^ (index * 0x94d049bb133111eb + 1)); }

inline constexpr size_t kMaxParameters = 4;

// A contiguous part of a kernel's work: words [first, first+count).
struct Piece {
  uint64_t first;
  uint64_t count;
};

struct Span;  // core.h

struct KernelSpan {
  size_t pointer;  // the parameter that points to it
  size_t words;    // the parameter that tells its length; kOneWord: a single one
  bool bytes;      // the length is in bytes
  bool write;
};
inline constexpr size_t kOneWord = ~size_t{0};
inline constexpr size_t kNoParameter = ~size_t{0};

struct KernelDefinition {
  const char* name;
  size_t parameters;
  std::span<const KernelSpan> spans;
  size_t duration;                                                 // the parameter that tells it, or kNoParameter
  size_t words;                                                    // the parameter that tells how much to compute, or kNoParameter
  void (*compute)(const uint64_t* arguments, Piece piece);         // null: nothing to compute
  bool (*waits)(const uint64_t* arguments, bool first) = nullptr;  // asked again and again: not yet
  void (*more_spans)(const uint64_t* arguments, std::vector<Span>& out) = nullptr;
};

std::span<const KernelDefinition> kernels();

}  // namespace simgpu
