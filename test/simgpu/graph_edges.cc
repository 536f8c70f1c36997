// The nodes of a graph, and what comes after what.
#include <algorithm>

#include "simgpu/core.h"
#include "simgpu/graph.h"

namespace simgpu {
namespace {

// Lists through the driver's two-call protocol: with no place for them, only their number.
template <typename List>
CUresult put_list(const List& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr) {
    for (size_t i = 0; i < std::min(*count, nodes.size()); ++i) out[i] = to_handle(nodes[i]);
  }
  *count = out == nullptr ? nodes.size() : std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

std::vector<const GraphNode*> all_nodes(const Graph& graph, bool roots_only) {
  std::vector<const GraphNode*> result;
  for (const auto& node : graph.nodes) {
    if (!roots_only || node->after.empty()) result.push_back(node.get());
  }
  return result;
}

CUresult edges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  if (const CUresult result = enter_process()) return result;
  if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<const GraphNode*> sources;
  std::vector<const GraphNode*> targets;
  for (const auto& node : to_graph(graph)->nodes) {
    for (const GraphNode* before : node->after) {
      sources.push_back(before);
      targets.push_back(node.get());
    }
  }
  size_t again = *count;
  put_list(sources, from, count);
  return put_list(targets, to, &again);
}

CUresult add_edges(const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  if (const CUresult result = enter_process()) return result;
  for (size_t i = 0; i < count; ++i) to_node(to[i])->after.push_back(to_node(from[i]));
  return CUDA_SUCCESS;
}

CUresult remove_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  if (const CUresult result = enter_process()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Recorded: nothing is taken from a graph with memory of its own.
  const auto is_of_memory = [](const std::unique_ptr<GraphNode>& node) {
    return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
  };
  const Graph& graph = *to_graph(handle);
  if (graph.fixed || std::any_of(graph.nodes.begin(), graph.nodes.end(), is_of_memory)) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < count; ++i) {
    if (std::erase(to_node(to[i])->after, to_node(from[i])) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

SIM_API CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return add_edges(from, to, count);
}
SIM_API CUresult cuGraphAddDependencies_v2(CUgraph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*, size_t count) {
  return add_edges(from, to, count);
}
SIM_API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return remove_edges(graph, from, to, count);
}
SIM_API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*,
                                              size_t count) {
  return remove_edges(graph, from, to, count);
}

SIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (const CUresult result = enter_process()) return result;
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : put_list(all_nodes(*to_graph(graph), false), nodes, count);
}
SIM_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (const CUresult result = enter_process()) return result;
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : put_list(all_nodes(*to_graph(graph), true), nodes, count);
}
SIM_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) { return edges(graph, from, to, count); }
SIM_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  const CUresult result = edges(graph, from, to, count);
  for (size_t i = 0; result == CUDA_SUCCESS && data != nullptr && i < *count; ++i) data[i] = {};
  return result;
}
SIM_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, size_t* count) {
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE : put_list(to_node(node)->after, out, count);
}
SIM_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData*, size_t* count) {
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE : put_list(to_node(node)->after, out, count);
}

}  // namespace simgpu
