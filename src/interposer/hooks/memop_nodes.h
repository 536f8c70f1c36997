// Memory operations of graphs. A driver takes nodes of them on memory of pools, and refuses to launch what holds one (recorded: 0, then 1
// of cuGraphLaunch each time). Such memory is virtual memory to the driver where we serve the pool, and it would launch that: so it is
// given a piece of its own pool instead, and answers about the graph as it does natively, whatever becomes of it.
#pragma once

#include <vector>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

class Process;

// What the driver is to see of a node's parameters; `parameters` themselves if they name no memory of pools, or are null.
class MemopsSeen {
 public:
  MemopsSeen(Process& process, const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters);
  MemopsSeen(Process& process, const MemopsSeen&) = delete;
  MemopsSeen& operator=(const MemopsSeen&) = delete;
  const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS* get() const { return seen_; }

 private:
  std::vector<cuda::CUstreamBatchMemOpParams> operations_;
  cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS changed_;
  const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS* seen_;
};

// The same of a node of any kind.
class NodeSeen {
 public:
  NodeSeen(Process& process, cuda::CUgraphNodeParams* parameters);
  NodeSeen(Process& process, const NodeSeen&) = delete;
  NodeSeen& operator=(const NodeSeen&) = delete;
  cuda::CUgraphNodeParams* get() { return seen_; }

 private:
  MemopsSeen memops_;
  cuda::CUgraphNodeParams changed_;
  cuda::CUgraphNodeParams* seen_;
};

}  // namespace nvshare::interposer
