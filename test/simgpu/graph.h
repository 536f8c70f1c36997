// A graph: work and its order.
#pragma once

#include "simgpu/core.h"

namespace simgpu {

struct GraphNode {
  Graph* graph = nullptr;
  WorkPtr work;
  std::vector<GraphNode*> after;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUDA_MEMCPY3D copy{};  // of a copy that was not captured
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  // each behind those that it depends on, unless edges were added by hand
  bool fixed = false;                             // no edge and no node of it is taken away any more
  GraphNode* add(WorkPtr work, std::vector<GraphNode*> after);
};

inline Graph* to_graph(CUgraph handle) { return reinterpret_cast<Graph*>(handle); }
inline GraphNode* to_node(CUgraphNode handle) { return reinterpret_cast<GraphNode*>(handle); }
inline CUgraphNode to_handle(const GraphNode* node) { return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(node)); }

// In stream_api.cc: the work of cuLaunchHostFunc.
WorkPtr make_host_function(CUhostFn function, void* data);

}  // namespace simgpu
