// Memory nodes of graphs: the driver takes GPU memory for them when a graph is first launched and keeps it, for all graphs of a GPU
// together, until it is trimmed. It cannot move. Here: which executable graphs have such nodes, and how much they may take.
//
// Thread-safe; its mutex is a leaf (calls of the driver are made without it). A process that makes no memory node pays one relaxed load at
// a graph's launch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Process;

class GraphMemory {
 public:
  // Some graph got a memory node, by hand or by a captured allocation.
  void node_made() { any_.store(true, std::memory_order_release); }
  bool any() const { return any_.load(std::memory_order_acquire); }

  void instantiated(cuda::CUgraphExec executable, cuda::CUgraph graph);
  void destroyed(cuda::CUgraphExec executable);

  // What a launch may make the driver take on a GPU. bytes 0: nothing (more).
  struct Need {
    size_t bytes = 0;
    int ordinal = 0;
  };
  // `process`: whose GPUs know how often their graph memory was trimmed.
  Need need_of(Process& process, cuda::CUgraphExec executable);
  // It was launched: it has its memory until the next trim.
  void launched(cuda::CUgraphExec executable, uint64_t trims);

  void reset_after_fork() { mutex_.reset_after_fork(); }

 private:
  struct Executable {
    cuda::CUgraphExec handle;
    size_t bytes;
    int ordinal;
    uint64_t launched_at;  // value of trims + 1 at its last launch; 0: never
  };
  Executable* find(cuda::CUgraphExec executable) REQUIRES(mutex_);

  std::atomic<bool> any_{false};
  Mutex mutex_;
  std::vector<Executable> executables_ GUARDED_BY(mutex_);  // that have memory nodes
};

}  // namespace nvshare::interposer
