// Memory that threads were granted in mid-turn and have yet to wake up for: until then the budget is not lowered below it, whoever else
// asks for memory. Not thread-safe; knows no clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "interposer/turn/events.h"

namespace nvshare::interposer::turn {

class KeptGrants {
 public:
  void keep(uint64_t bytes, Instant until) {
    // Of more than there are places for, the later ones count as one.
    Kept& place = *std::min_element(kept_.begin(), kept_.end() - 1, [](const Kept& a, const Kept& b) { return a.bytes < b.bytes; });
    Kept& taken = place.bytes == 0 ? place : kept_.back();
    taken = {taken.bytes + bytes, until};
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Kept& kept : kept_) sum += kept.bytes;
    return sum;
  }
  // kNever: nothing is kept.
  Instant next_end() const {
    Instant next = kNever;
    for (const Kept& kept : kept_) {
      if (kept.bytes > 0) next = std::min(next, kept.until);
    }
    return next;
  }
  // Those whose time is over by `now`. False: none.
  bool end_before(Instant now) {
    bool any = false;
    for (Kept& kept : kept_) {
      if (kept.bytes == 0 || kept.until > now) continue;
      kept = {};
      any = true;
    }
    return any;
  }
  void clear() { kept_ = {}; }

 private:
  struct Kept {
    uint64_t bytes = 0;  // 0: the place is free
    Instant until = 0;
  };
  std::array<Kept, 4> kept_{};
};

}  // namespace nvshare::interposer::turn
