// Whose memory the arena's segments are to be: this process's own, the fastest to make, or the scheduler's where this process's cgroup
// leaves too little (docs/adr/0005).
//
// Thread-safe, without a lock. Reads files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "protocol/messages.h"

namespace nvshare::interposer {

class OwnMemory {
 public:
  // Reads NVSHARE_HOST_ARENA. Before the link starts.
  void configure();

  // Whose `more` bytes are to be. The program may want its cgroup's room itself: at least half of what is left stays its own.
  protocol::ArenaOwner owner_for(size_t more);
  // There is less of it than there seemed to be: from now on it is to be the scheduler's. False: that was known, or is not to be.
  bool found_short();
  // Some of it is this process's own in a cgroup with a limit: to be looked at now and then, because the program may come to need the room.
  bool wants_watching() const { return watch_.load(std::memory_order_relaxed); }
  // What the cgroup has left, if that is too little for the program. Nothing: it is not.
  static std::optional<uint64_t> too_little();
  bool tight() const { return tight_.load(std::memory_order_relaxed); }
  void set_tight() { tight_.store(true, std::memory_order_relaxed); }

 private:
  enum class Mode : uint8_t { kAuto, kProcess, kScheduler };

  Mode mode_ = Mode::kAuto;
  std::atomic<bool> tight_{false};  // this process's cgroup leaves too little: segments are to be the scheduler's
  std::atomic<bool> watch_{false};
};

// Room for more of this process's own memory: the lesser of what the machine and its cgroups have left, minus a margin. Bytes.
size_t host_memory_available();

}  // namespace nvshare::interposer
