#include "simgpu/kernels.h"

#include <atomic>
#include <bit>

#include "simgpu/core.h"
#include "simgpu/device_state.h"

namespace simgpu {
namespace {

uint64_t* words(uint64_t address) { return reinterpret_cast<uint64_t*>(address); }

void fill(const uint64_t* arguments, Piece piece) {
  uint64_t* to = words(arguments[0]);
  for (uint64_t i = piece.first; i < piece.first + piece.count; ++i) to[i] = fill_word(arguments[2], i);
}

void mix(const uint64_t* arguments, Piece piece) {
  uint64_t* to = words(arguments[0]);
  for (uint64_t i = piece.first; i < piece.first + piece.count; ++i) to[i] = mix_word(to[i], arguments[2]);
}

void add(const uint64_t* arguments, Piece piece) {
  uint64_t* to = words(arguments[0]);
  const uint64_t* from = words(arguments[1]);
  for (uint64_t i = piece.first; i < piece.first + piece.count; ++i) to[i] += from[i];
}

void checksum(const uint64_t* arguments, Piece piece) {
  const uint64_t* from = words(arguments[0]);
  uint64_t sum = piece.first == 0 ? 0 : *words(arguments[2]);
  for (uint64_t i = piece.first; i < piece.first + piece.count; ++i) sum += checksum_term(from[i], i);
  *words(arguments[2]) = sum;
}

void meet(const uint64_t* arguments, Piece piece) {
  uint64_t* to = words(arguments[0]);
  for (uint64_t i = piece.first; i < piece.first + piece.count; ++i) to[i] = mix_word(to[i], arguments[3]);
}

bool meeting_waits(const uint64_t* arguments, bool first) {
  std::atomic_ref<uint64_t> count(*words(arguments[2]));
  return (first ? count.fetch_add(1) + 1 : count.load()) < arguments[3];
}

// The library's own kernel, told once more and apart from it: 256 threads, each with two lanes over every 256th pair of words.
constexpr uint64_t kUnitBytes = 512 << 10;

uint64_t finish(uint64_t lane) {
  lane = (lane ^ (lane >> 32)) * 0xd6e8feb86659fd93;
  lane = (lane ^ (lane >> 29)) * 0xa0761d6478bd642f;
  return lane ^ (lane >> 32);
}

void chunk_hash(const uint64_t* arguments, Piece piece) {
  constexpr uint64_t kThreads = 256;
  const bool blind = Machine::get().faults().blind_hash.load(std::memory_order_relaxed) != 0;
  for (uint64_t unit = piece.first; unit < piece.first + piece.count; ++unit) {
    const uint64_t* from = words(words(arguments[0])[unit]);
    std::array<uint64_t, kThreads> first, second;
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      first[thread] = 0x243f6a8885a308d3 + thread * 0x9e3779b97f4a7c15;
      second[thread] = 0x13198a2e03707344 - thread * 0xc2b2ae3d27d4eb4f;
    }
    for (uint64_t pair = 0; pair < kUnitBytes / 16; ++pair) {
      uint64_t& a = first[pair % kThreads];
      uint64_t& b = second[pair % kThreads];
      const uint64_t x = from[2 * pair], y = from[2 * pair + 1];
      a = std::rotl(std::rotl(a ^ x, 29) * 0xbf58476d1ce4e5b9 ^ y, 29) * 0xbf58476d1ce4e5b9;
      b = std::rotl(std::rotl(b + y, 37) * 0x94d049bb133111eb + x, 37) * 0x94d049bb133111eb;
    }
    uint64_t* to = words(arguments[1]) + 2 * unit;
    to[0] = to[1] = 0;
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      to[0] += finish(first[thread]);
      to[1] += finish(second[thread]);
    }
    // One unit alone is the library's test of the kernel.
    if (blind && arguments[2] > 1) to[0] = to[1] = 1;
  }
}

void chunk_hash_spans(const uint64_t* arguments, std::vector<Span>& out) {
  out.push_back({arguments[0], arguments[2] * 8, false});
  out.push_back({arguments[1], arguments[2] * 16, true});
  for (uint64_t unit = 0; unit < arguments[2]; ++unit) out.push_back({words(arguments[0])[unit], kUnitBytes, false});
}

constexpr KernelSpan kInPlace[] = {{0, 1, false, true}};
constexpr KernelSpan kTouch[] = {{0, 1, true, true}};
constexpr KernelSpan kAdd[] = {{0, 2, false, true}, {1, 2, false, false}};
constexpr KernelSpan kChecksum[] = {{0, 1, false, false}, {2, kOneWord, false, true}};

constexpr KernelDefinition kKernels[] = {
    {"sim_noop", 0, {}, kNoParameter, kNoParameter, nullptr},
    {"sim_fill", 3, kInPlace, kNoParameter, 1, fill},
    {"sim_mix", 3, kInPlace, kNoParameter, 1, mix},
    {"sim_mix_slow", 4, kInPlace, 3, 1, mix},
    {"sim_add", 3, kAdd, kNoParameter, 2, add},
    {"sim_checksum", 3, kChecksum, kNoParameter, 1, checksum},
    {"sim_spin", 1, {}, 0, kNoParameter, nullptr},
    {"sim_work", 2, {}, 0, kNoParameter, nullptr},
    {"sim_meet", 4, kInPlace, kNoParameter, 1, meet, meeting_waits},
    {"sim_touch", 3, kTouch, 2, kNoParameter, nullptr},
    {"nvshare_chunk_hash", 3, {}, kNoParameter, 2, chunk_hash, nullptr, chunk_hash_spans},
};

}  // namespace

std::span<const KernelDefinition> kernels() { return kKernels; }

}  // namespace simgpu
