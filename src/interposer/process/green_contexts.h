// Green contexts: parts of a primary context with streams of their own. One may be current to a single thread at a time, so none of our
// threads ever uses one; to wait for the primary context is to wait for its green ones (both documented). What happens to memory that was
// allocated with one current when it is destroyed is not documented. Here it is the primary context's, and stays until that ends.
//
// Thread-safe; its mutex is a leaf, and no call of the driver is made with it held.
#pragma once

#include <atomic>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class GreenContexts {
 public:
  struct Green {
    cuda::CUgreenCtx handle = nullptr;
    cuda::CUcontext context = nullptr;  // what it converts to
    cuda::CUcontext primary = nullptr;
    int ordinal = -1;
  };
  void made(const Green& green);
  bool find(cuda::CUgreenCtx handle, Green* found);
  void gone(cuda::CUgreenCtx handle);

  // The program has made one.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // To the calling thread.
  bool is_current();
  // The primary context that `context` is a part of; any other context is its own.
  cuda::CUcontext primary_of(cuda::CUcontext context) { return any_.load(std::memory_order_relaxed) ? look_up(context) : context; }

  void reset_after_fork() { mutex_.reset_after_fork(); }

 private:
  cuda::CUcontext look_up(cuda::CUcontext context);

  Mutex mutex_;
  std::vector<Green> greens_ GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
};

}  // namespace nvshare::interposer
