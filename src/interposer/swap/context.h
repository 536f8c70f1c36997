// The context that the swap engine's thread works in, and what it has there: streams and events of its own, the kernel that finds out what
// did not change. Non-blocking streams, relaxed capture mode: no event of ours lands on a program's stream.
//
// That thread alone enters and leaves it; any thread may say that a context goes. Its mutex is a leaf.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/swap/unchanged.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;

// Whether the context that gave this answer gives no other any more.
bool is_lost(cuda::CUresult result);

class SwapContext {
 public:
  static constexpr uint32_t kDepth = 4;  // copies under way at once

  explicit SwapContext(Device& device) : unchanged(device), device_(device) {}

  // Makes a living context current for this thread and has streams and events in it; one that has not failed, if the GPU has any. *why:
  // what the driver said against it; success where there is no context.
  bool enter(cuda::CUresult* why);
  void leave();
  // The one that it is in has failed for good. True: there is another to enter.
  bool has_another();
  // It is about to be destroyed and nobody has it pinned any more: gives up what is in it.
  void gone(cuda::CUcontext context);
  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS { mutex_.reset_after_fork(); }  // the child has one thread

  // While it is entered.
  cuda::CUcontext context() const { return context_; }
  cuda::CUstream out() const { return out_; }
  cuda::CUstream in() const { return in_; }
  cuda::CUevent event(uint32_t index) const { return events_[index]; }
  Unchanged unchanged;  // but for what of it any thread may ask

 private:
  cuda::CUresult enter_pinned(cuda::CUcontext context);
  cuda::CUresult make_streams();
  void drop_streams();
  void abandon();  // what is in the context that they belong to; with the mutex

  Device& device_;
  Mutex mutex_;
  cuda::CUcontext pinned_ = nullptr;  // by the thread, while it has entered
  // Used while it has, made and dropped under the mutex.
  cuda::CUcontext context_ = nullptr;  // that the streams and events belong to
  cuda::CUstream out_ = nullptr;
  cuda::CUstream in_ = nullptr;
  cuda::CUevent events_[kDepth] = {};
};

}  // namespace nvshare::interposer
