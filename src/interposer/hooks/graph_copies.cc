#include "interposer/hooks/graph_copies.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "interposer/memory/driver_memory/graph_nodes.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

bool differ(MemoryKind a, MemoryKind b) { return a != MemoryKind::kUnknown && b != MemoryKind::kUnknown && a != b; }

bool comes_before(CUgraphNode a, CUgraphNode b) { return std::less<>()(a, b); }

// The copies of a graph and of those in it.
void collect(Process& process, CUgraph graph, std::vector<GraphCopies::Copy>* copies) {
  each_graph_node(graph, [&](CUgraphNode node, CUgraphNodeType type) {
    CUDA_MEMCPY3D copy{};
    if (type != CU_GRAPH_NODE_TYPE_MEMCPY || real_driver().cuGraphMemcpyNodeGetParams(node, &copy) != CUDA_SUCCESS) return;
    const MemoryKind target = kind_by_driver(process, copy.dstMemoryType, copy.dstDevice);
    const MemoryKind source = kind_by_driver(process, copy.srcMemoryType, copy.srcDevice);
    if (target != MemoryKind::kUnknown || source != MemoryKind::kUnknown) copies->push_back({node, target, source});
  });
}

}  // namespace

std::vector<GraphCopies::Executable>::iterator GraphCopies::place_of(CUgraphExec executable) {
  return std::lower_bound(executables_.begin(), executables_.end(), executable,
                          [](const Executable& known, CUgraphExec handle) { return std::less<>()(known.handle, handle); });
}

void GraphCopies::instantiated(Process& process, CUgraphExec executable, CUgraph graph) {
  if (!process.active()) return;
  std::vector<Copy> copies;
  collect(process, graph, &copies);
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return comes_before(a.node, b.node); });
  Lock lock(mutex_);
  const auto place = place_of(executable);
  const bool stale = place != executables_.end() && place->handle == executable;
  if (stale) {
    place->copies = std::move(copies);
  } else if (!copies.empty()) {
    executables_.insert(place, {executable, std::move(copies)});
  }
}

void GraphCopies::destroyed(CUgraphExec executable) {
  Lock lock(mutex_);
  const auto place = place_of(executable);
  if (place != executables_.end() && place->handle == executable) executables_.erase(place);
}

bool GraphCopies::changes_kind(Process& process, CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy) {
  if (!process.active()) return false;
  const MemoryKind target = kind_by_driver(process, copy.dstMemoryType, copy.dstDevice);
  const MemoryKind source = kind_by_driver(process, copy.srcMemoryType, copy.srcDevice);
  Lock lock(mutex_);
  const auto place = place_of(executable);
  if (place == executables_.end() || place->handle != executable) return false;
  const auto was = std::lower_bound(place->copies.begin(), place->copies.end(), node,
                                    [](const Copy& known, CUgraphNode wanted) { return comes_before(known.node, wanted); });
  return was != place->copies.end() && was->node == node && (differ(was->target, target) || differ(was->source, source));
}

}  // namespace nvshare::interposer
