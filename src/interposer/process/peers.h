// Which GPU may use whose memory, as the program asked for. The driver keeps that by pair of contexts, virtual memory by GPU and mapping.
//
// Thread-safe. Its mutex comes before Ipc's and Blocks': one change of access after the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/process/devices_max.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Process;

class PeerAccess {
 public:
  explicit PeerAccess(Process& process) : process_(process) {}

  // The current context may use memory of the peer's GPU from now on, or no more. The driver has agreed.
  void enabled(cuda::CUcontext peer);
  void disabled(cuda::CUcontext peer);
  void context_gone(cuda::CUcontext context);
  // That context may use memory of that GPU: it asked for it. Other contexts of its GPU may not (fills and questions are refused), although
  // their kernels reach it: virtual memory is opened to a GPU.
  bool is_open(cuda::CUcontext context, int ordinal);
  // GPUs (bits) that may use that GPU's memory, itself always.
  uint32_t accessors(int ordinal) const { return accessors_[ordinal].load(std::memory_order_acquire) | 1u << ordinal; }

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  struct Pair {
    cuda::CUcontext from;  // may use memory of
    cuda::CUcontext to;
    int from_ordinal;
    int to_ordinal;
  };
  template <typename Which>
  void forget(Which which);
  void tell(uint32_t ordinals) REQUIRES(mutex_);

  Process& process_;
  Mutex mutex_;
  std::vector<Pair> pairs_ GUARDED_BY(mutex_);
  std::atomic<uint32_t> accessors_[kDevicesMax] = {};
};

}  // namespace nvshare::interposer
