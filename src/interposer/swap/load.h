// The swap engine's way in: a turn is granted, and all of the program's memory that is not on the GPU gets memory there, and its bytes
// where they were swapped out. One object for each load; used by the swap engine's thread.
//
// While others still move out the client's budget is small and grows: a piece waits until it fits, with the copies before it finished.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/memory/memory.h"
#include "interposer/swap/context.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;

class Load {
 public:
  Load(Device& device, SwapContext& context, uint64_t grant);
  void run();  // ends with LoadEnded or LoadStopped, and a finished SwapProgress

 private:
  enum class Arrival : uint8_t { kIn, kCancelled, kLost };  // lost: the context has failed, the program is to see that

  bool cancelled();  // the lock is to be given back before loading has ended
  bool stopping();   // the process exits
  Arrival bring_all_in();
  Arrival move(std::vector<Piece> pieces);
  Arrival bring_in(const Piece& piece, bool* copied);
  bool wait_for_room(std::span<Piece> rest);
  cuda::CUresult finish();  // waits for the copies under way; those pieces are in, and unpinned, or doubtful
  void put_back_doubtful();
  void report();
  void end(Arrival arrival);

  Device& device_;
  DeviceMemory& memory_;
  SwapContext& context_;
  const int64_t started_;
  int64_t stalled_ns_ = 0;  // since then, waiting for others to make room
  protocol::SwapProgress progress_{};
  uint64_t reported_ = 0;  // of progress_.moved
  std::vector<Piece> under_way_;
  std::vector<Piece> doubtful_;  // copies of theirs ended with their context; pinned
};

}  // namespace nvshare::interposer
