// The swap engine's way out: what the scheduler asked for leaves the GPU. What did not change since it came in leaves first, without a
// copy. One object for each eviction; used by the swap engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/host_arena/host_slot.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/memory/memory.h"
#include "interposer/swap/context.h"
#include "interposer/swap/unchanged.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;

class Eviction {
 public:
  Eviction(Device& device, SwapContext& context, uint64_t id, uint64_t bytes);
  void run();  // ends with a finished SwapProgress

 private:
  struct Leaving {
    Piece piece;
    Unchanged::Finding finding;
  };
  // One whose way out has begun, and whose end may not be known yet.
  struct InFlight {
    Leaving leaving;
    cuda::CUevent event;
    bool copying;  // an event tells when its copy is done; otherwise its host copy is true
  };

  bool stopping();  // the process exits
  void report(bool finished);
  void choose();
  void prepare_arena(const std::vector<Piece>& pieces);
  bool needs_slot(const Piece& piece);
  HostSlot find_slot(const Piece& piece);
  void send(const Leaving& leaving);
  bool copy_out(const Piece& piece, const HostSlot& slot, cuda::CUevent event, bool* copying);
  void drop_host_copy(const Piece& piece);
  bool finish_out(const InFlight& moved, size_t* freed);
  void finish_oldest();
  void finish_all();

  Device& device_;
  DeviceMemory& memory_;
  SwapContext& context_;
  const uint64_t bytes_;  // that are to leave
  const int64_t started_;
  int64_t stalled_ns_ = 0;  // of that, what no copy took: waits for host memory to be made, and what leaves without one
  protocol::SwapProgress progress_{};
  uint64_t reported_ = 0;
  int64_t reported_at_ = 0;
  uint64_t copied_ = 0;
  std::vector<Leaving> leaving_;
  InFlight flight_[SwapContext::kDepth] = {};
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

}  // namespace nvshare::interposer
