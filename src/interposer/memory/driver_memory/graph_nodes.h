// The nodes of a graph and of those within it, as the driver tells.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

constexpr int kGraphDepthMax = 8;  // of graphs within graphs

// visit(node, type) for each; those whose type the driver does not tell are left out.
template <class Visit>
void each_graph_node(cuda::CUgraph graph, const Visit& visit, int depth = 0) {
  const RealDriver& driver = real_driver();
  size_t count = 0;
  if (depth > kGraphDepthMax || driver.cuGraphGetNodes(graph, nullptr, &count) != cuda::CUDA_SUCCESS || count == 0) return;
  std::vector<cuda::CUgraphNode> nodes(count);
  if (driver.cuGraphGetNodes(graph, nodes.data(), &count) != cuda::CUDA_SUCCESS) return;
  nodes.resize(std::min(count, nodes.size()));
  for (const cuda::CUgraphNode node : nodes) {
    cuda::CUgraphNodeType type{};
    cuda::CUgraph inner = nullptr;
    if (driver.cuGraphNodeGetType(node, &type) != cuda::CUDA_SUCCESS) continue;
    visit(node, type);
    if (type == cuda::CU_GRAPH_NODE_TYPE_GRAPH && driver.cuGraphChildGraphNodeGetGraph(node, &inner) == cuda::CUDA_SUCCESS)
      each_graph_node(inner, visit, depth + 1);
  }
}

}  // namespace nvshare::interposer
