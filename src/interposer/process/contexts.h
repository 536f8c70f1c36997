// The contexts of this process: which there are, on which GPU, for how long the program has them, and who of ours uses one at the moment.
// One that the program destroys stays until nobody of ours is in it (pins).
//
// Thread-safe. Its mutex comes before Turns'; it is given up while waiting for a pin to go.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;

class Contexts {
 public:
  static constexpr int kAllGpus = -1;

  // The program has made it, or it was found. Of a primary one: and retained it once more.
  void made(cuda::CUcontext context, int ordinal);
  void primary_made(cuda::CUcontext context, int ordinal);
  // The primary context of that GPU as far as the program has it; null: it has none.
  cuda::CUcontext primary(int ordinal);
  // Counts one release of the primary context; true when it cannot be the last.
  bool release_keeps_primary(int ordinal);
  // cuCtxAttach counted one use of the context more, which keeps it if cuCtxCreate made it.
  void attached(cuda::CUcontext context);
  // Takes one use back; true when it cannot be the last.
  bool detach_keeps(cuda::CUcontext context);

  // Around the driver's destroying it. Before: nobody pins it any more, and nobody has it pinned on return. Its GPU, or -1.
  int leaves(cuda::CUcontext context);
  void stays(cuda::CUcontext context);
  int left(cuda::CUcontext context);
  // The turns of that GPU hear whether the program has a context there. In order with made and left; `only_if` (may be null): if there is
  // that context.
  void tell(Device& device, cuda::CUcontext only_if);

  // Counts contexts that were destroyed: handles made before may be of a dead context even if its address is in use again.
  uint32_t destroyed() const { return destroyed_.load(std::memory_order_relaxed); }
  void count_destroyed() { destroyed_.fetch_add(1, std::memory_order_relaxed); }
  int ordinal_of(cuda::CUcontext context);  // or -1: no context that we know
  // GPUs (bits) on which the program has a context.
  uint32_t gpus();

  // A context on that GPU that stays alive until unpinned, and one that has not failed if there is any; null: none.
  cuda::CUcontext pin(int ordinal);
  // It was found to have failed for good. True: the GPU has another that has not, or is not known to have.
  bool failed(cuda::CUcontext context);
  void unpin(cuda::CUcontext context);
  // One after the other, for waits for the GPU: those that there are, and each as it is by then.
  enum class Pinned { kYes, kOnItsWayOut, kGone };
  std::vector<cuda::CUcontext> all(int ordinal);
  Pinned pin(cuda::CUcontext context);

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  friend class ContextsStay;

  struct Context {
    cuda::CUcontext handle;
    int ordinal;
    uint32_t primary_references;  // 0: made by cuCtxCreate
    uint32_t pins;
    uint32_t going;            // threads that are about to destroy it, or to find that it stays
    uint32_t attachments = 0;  // they keep one made by cuCtxCreate, and no primary one
    bool failed = false;       // it gives no other answer any more
  };
  Context* find(cuda::CUcontext context) REQUIRES(mutex_);
  bool pin_all(int ordinal, std::vector<cuda::CUcontext>* pinned);  // false: one is on its way out, and may stay after all

  std::atomic<uint32_t> destroyed_{0};
  Mutex mutex_;
  Condition changed_;
  std::vector<Context> contexts_ GUARDED_BY(mutex_);
};

// While it lives, no context of that GPU, or of any, ends. False: one is on its way out already. Not for waits for the GPU: the program may
// end one so that another's work goes on.
class ContextsStay {
 public:
  ContextsStay(Contexts& contexts, int ordinal) : contexts_(contexts), whole_(contexts.pin_all(ordinal, &pinned_)) {}
  ~ContextsStay() {
    for (cuda::CUcontext context : pinned_) contexts_.unpin(context);
  }
  ContextsStay(const ContextsStay&) = delete;
  ContextsStay& operator=(const ContextsStay&) = delete;
  explicit operator bool() const { return whole_; }
  bool keeps(cuda::CUcontext context) const { return std::find(pinned_.begin(), pinned_.end(), context) != pinned_.end(); }

 private:
  Contexts& contexts_;
  std::vector<cuda::CUcontext> pinned_;
  const bool whole_;
};

}  // namespace nvshare::interposer
