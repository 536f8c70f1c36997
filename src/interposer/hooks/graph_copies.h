// Copies of executable graphs. Each side of one stays with memory of the kind that it had when the graph was instantiated: with a context
// of its own (plain, managed), or without (of a pool, virtual). Else a driver refuses the change (measured), whatever has become of the
// node and of that memory since (seen on an H200). To it, ours is always virtual: so the kinds are kept here.
//
// Thread-safe; its mutex is a leaf (calls of the driver are made without it).
#pragma once

#include <vector>

#include "cuda/driver_api.h"
#include "interposer/hooks/memory_kinds.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class GraphCopies {
 public:
  void instantiated(Process& process, CUgraphExec executable, CUgraph graph);
  void destroyed(CUgraphExec executable);
  // False also where a side is not known.
  bool changes_kind(Process& process, CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy);

  void reset_after_fork() { mutex_.reset_after_fork(); }

  struct Copy {
    CUgraphNode node;
    MemoryKind target, source;
  };

 private:
  struct Executable {
    CUgraphExec handle;
    std::vector<Copy> copies;  // by node
  };
  std::vector<Executable>::iterator place_of(CUgraphExec executable) REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Executable> executables_ GUARDED_BY(mutex_);  // that copy such memory; by handle
};

}  // namespace nvshare::interposer
