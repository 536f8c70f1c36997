// One segment of the host arena: which of its units hold bytes, and what is happening to it. Pure; guarded by the arena's mutex.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/host_arena/host_slot.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class HostSegment {
 public:
  static constexpr size_t kUnitBytes = protocol::kArenaUnitBytes;

  static size_t round_up(size_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes; }

  // A place for so many bytes, but for its number; false: there is none in here.
  bool take(size_t bytes, HostSlot* slot);
  void give_back(const HostSlot& slot);
  size_t used_bytes() const { return size_t{used_units_} * kUnitBytes; }

  bool there() const { return data != nullptr; }
  bool may_go() const { return there() && !leaving && !busy; }  // once nothing is in it
  bool must_go() const { return there() && leaving && !busy; }
  bool may_be_pinned() const { return may_go() && pinned_in == nullptr && !unpinnable; }

  char* data = nullptr;  // null: vacant
  size_t bytes = 0;
  uint64_t id = 0;
  protocol::ArenaOwner owner = protocol::ArenaOwner::kProcess;
  cuda::CUcontext pinned_in = nullptr;
  bool busy = false;        // a worker is at it, without the mutex
  bool leaving = false;     // to be given back: no slots are handed out of it
  bool unpinnable = false;  // the driver did not want to

 private:
  uint64_t used_[2] = {0, 0};  // one bit per unit
  uint32_t used_units_ = 0;
};

}  // namespace nvshare::interposer
