// What the scheduler is told of a turn, as far as the turn itself says it. Pure.
#pragma once

#include <algorithm>

#include "interposer/turn/turn.h"

namespace nvshare::interposer::turn {

inline void introduce(const Turn& turn, protocol::Register& hello) {
  hello.has_lock = had_lock(turn) ? 1 : 0;
  hello.wants_lock = hello.has_lock == 0 && turn.wish.wanted ? 1 : 0;
}

// For SendMemory, with the memory and the budget as they stand.
inline protocol::MemUpdate memory_update(const Turn& turn, const SendMemory& effect, const protocol::MemoryReport& memory,
                                         uint64_t budget) {
  protocol::MemUpdate update{};
  update.memory = memory;
  update.budget = std::max(budget, memory.resident);
  update.budget_sequence = turn.budget_sequence;
  update.wanted = effect.wanted;
  update.request = turn.growth.request;
  return update;
}

}  // namespace nvshare::interposer::turn
