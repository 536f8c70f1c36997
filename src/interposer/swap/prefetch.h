// The swap engine's way in without the lock (docs/adr/0023): swapped chunks of a client whose turn comes next, within the budget that the
// scheduler gave for that. Their host copies stay, so that a chunk leaves again without a copy if the turn is another's after all. Whatever
// goes wrong leaves the chunk where it was: the turn's own load finds it. One object for each; used by the swap engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "interposer/memory/blocks/block.h"
#include "interposer/memory/memory.h"
#include "interposer/swap/context.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;

class Prefetch {
 public:
  Prefetch(Device& device, SwapContext& context, uint64_t id);
  void run();  // ends with PrefetchEnded and a finished SwapProgress

 private:
  bool wanted();
  void move();
  bool fetch(const Piece& piece);  // starts one chunk on its way in; false: all is as it was
  void finish();                   // waits for the copies under way
  void report();

  Device& device_;
  DeviceMemory& memory_;
  SwapContext& context_;
  const int64_t started_;
  bool failed_ = false;
  protocol::SwapProgress progress_{};
  std::vector<Piece> under_way_;
};

}  // namespace nvshare::interposer
