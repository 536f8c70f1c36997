#include "simgpu/kernels.h"

#include <atomic>

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
};

}  // namespace

std::span<const KernelDefinition> kernels() { return kKernels; }

}  // namespace simgpu
