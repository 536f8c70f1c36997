// Makes a plan from a seed, out of a model of what exists. The model assumes that every call succeeds that should; what really happens does
// not change the plan, so that the same plan runs everywhere and calls can be taken out of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan.h"

namespace conformance {

struct Settings {
  uint64_t seed = 1;
  int calls = 100;     // of a sequence, about
  int cold_calls = 0;  // of sequences from kColdFirst on; 0: a third of that
  int devices = 1;     // that may be used
  uint32_t groups = ~0u;
  std::vector<bool> without;  // by operation: true where it is not to be used
  std::vector<bool> tame;     // by operation: true where it gets right arguments only
  bool managed_prefetch = true;
};

// Sequences from here on are short and begin with graphs built by hand and no work: for what comes before a program's first turn.
inline constexpr uint64_t kColdFirst = 20'000'000;
// And these all have a second process.
inline constexpr uint64_t kPartnerFirst = 30'000'000;

Plan generate(const Settings& settings, uint64_t sequence);

// Slots of each kind of object.
int slots_of(char letter);

inline constexpr int kMemorySlots = 24;
// Kinds of memory, in `+m:SLOT:KIND` and `bind`.
enum MemoryKind : int { kMemPlain, kMemPitch, kMemAsync, kMemPool, kMemManaged, kMemHost, kMemRegistered, kMemVmm, kMemIpc, kMemKinds };
inline constexpr const char* kMemoryKindNames[kMemKinds] = {"plain", "pitch",      "async", "pool", "managed",
                                                            "host",  "registered", "vmm",   "ipc"};

inline constexpr int64_t kRegionBytes = 1 << 20;
inline constexpr int64_t kReservationBytes = 8 << 20;
inline constexpr int64_t kGranule = 2 << 20;

// The strings that `name:` means.
enum NameKind : int { kNamePtx, kNameNoFile, kNameBadImage, kNameKernel, kNameNoKernel, kNameNoFolder, kNameEntry, kNames };

}  // namespace conformance
