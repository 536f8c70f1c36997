// What is known of the copy of a chunk that stays in host memory while the chunk is on the GPU: whether it is still worth a hash to find
// out that it is true. Pure.
#pragma once

#include <cstdint>

#include "interposer/host_arena/host_slot.h"
#include "interposer/swap/copies/chunk_hash.h"

namespace nvshare::interposer {

struct RetainedCopy {
  static constexpr uint8_t kChangesMost = 3;  // in a row: then it is not hashed for a while
  static constexpr uint8_t kRest = 16;        // times that it leaves without

  HostSlot slot;       // where the copy is; null: it was not kept
  ChunkHash hash;      // of the bytes that left last
  bool known = false;  // that hash
  uint8_t changes = 0;
  uint8_t rest = 0;

  // It is about to leave.
  bool wants_hash() const { return rest == 0; }
  bool is_true(const ChunkHash& now) const { return slot.data != nullptr && known && hash == now; }
  // It left by a copy; `now`: with that hash, or (null) without. What was kept of it has been used or is gone.
  void copied(const ChunkHash* now) {
    if (now == nullptr) {
      known = false;
      if (rest > 0) --rest;
      return;
    }
    if (known) changes = hash == *now ? 0 : static_cast<uint8_t>(changes + 1);
    if (changes >= kChangesMost) {  // and once more after the rest
      rest = kRest;
      changes = kChangesMost - 1;
    }
    hash = *now;
    known = rest == 0;
  }
  // It left, and was what it had been.
  void unchanged() { changes = 0; }
};

}  // namespace nvshare::interposer
