// The least memory that there is: the driver is asked for it to hear whether a capture forbids that (hooks/capture_rules.h). When it takes
// memory back it waits for the GPU, which may wait for the calling thread, and where the program allocates nobody expects that. So it
// gets it back when the program waits in its cuMemFree anyway, or, if there is much, from a thread of ours once no capture is left
// (settle).
//
// Thread-safe; its mutex is a leaf.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/process/captures.h"
#include "interposer/process/contexts.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class LeastMemory {
 public:
  // Of that context. False: there is too much by now, or no host memory.
  bool keep(cuda::CUdeviceptr address, cuda::CUcontext context);
  // The program has just waited for that context. Not while something captures.
  void give_back(Captures& captures, cuda::CUcontext context);
  // For a thread of ours, once the GPU has ended what there was: of all contexts, one after the other.
  void give_back(Contexts& contexts, Captures& captures);
  // It ends, and what is of it with it.
  void forget(cuda::CUcontext context) { take(context); }

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  static constexpr size_t kMany = 256;              // drivers have 512 bytes behind each
  static constexpr size_t kMost = size_t{1} << 16;  // in captures that do not end
  struct Kept {
    cuda::CUdeviceptr address;
    cuda::CUcontext context;
  };
  std::vector<cuda::CUdeviceptr> take(cuda::CUcontext context);

  std::atomic<bool> any_{false};
  Mutex mutex_;
  Kept* kept_ GUARDED_BY(mutex_) = nullptr;  // no vector: that would be destroyed when the program ends
  size_t room_ GUARDED_BY(mutex_) = 0;
  size_t count_ GUARDED_BY(mutex_) = 0;
};

extern LeastMemory least_memory;

}  // namespace nvshare::interposer
