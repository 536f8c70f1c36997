#include "interposer/hooks/graph_copies.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <utility>

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

constexpr int kDepthMax = 8;  // of graphs within graphs

bool differ(MemoryKind a, MemoryKind b) { return a != MemoryKind::kUnknown && b != MemoryKind::kUnknown && a != b; }

bool comes_before(CUgraphNode a, CUgraphNode b) { return std::less<>()(a, b); }

// The copies of a graph and of those in it.
void collect(CUgraph graph, int depth, std::vector<GraphCopies::Copy>* copies) {
  const RealDriver& driver = real_driver();
  size_t count = 0;
  if (depth > kDepthMax || driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
  std::vector<CUgraphNode> nodes(count);
  if (driver.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (size_t i = 0; i < std::min(count, nodes.size()); ++i) {
    CUgraphNodeType type{};
    CUgraph inner = nullptr;
    CUDA_MEMCPY3D copy{};
    if (driver.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && driver.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS) {
      collect(inner, depth + 1, copies);
    }
    if (type != CU_GRAPH_NODE_TYPE_MEMCPY || driver.cuGraphMemcpyNodeGetParams(nodes[i], &copy) != CUDA_SUCCESS) continue;
    const MemoryKind target = kind_of(copy.dstMemoryType, copy.dstDevice);
    const MemoryKind source = kind_of(copy.srcMemoryType, copy.srcDevice);
    if (target != MemoryKind::kUnknown || source != MemoryKind::kUnknown) copies->push_back({nodes[i], target, source});
  }
}

}  // namespace

GraphCopies& graph_copies() {
  alignas(GraphCopies) static constinit unsigned char storage[sizeof(GraphCopies)] = {};
  static constinit std::atomic<GraphCopies*> instance{nullptr};
  static constinit Mutex making;
  GraphCopies* found = instance.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return *found;
  Lock lock(making);
  found = instance.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = new (storage) GraphCopies;
    instance.store(found, std::memory_order_release);
  }
  return *found;
}

std::vector<GraphCopies::Executable>::iterator GraphCopies::place_of(CUgraphExec executable) {
  return std::lower_bound(executables_.begin(), executables_.end(), executable,
                          [](const Executable& known, CUgraphExec handle) { return std::less<>()(known.handle, handle); });
}

void GraphCopies::instantiated(CUgraphExec executable, CUgraph graph) {
  if (!governs()) return;
  std::vector<Copy> copies;
  collect(graph, 0, &copies);
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

bool GraphCopies::changes_kind(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy) {
  if (!governs()) return false;
  const MemoryKind target = kind_of(copy.dstMemoryType, copy.dstDevice);
  const MemoryKind source = kind_of(copy.srcMemoryType, copy.srcDevice);
  Lock lock(mutex_);
  const auto place = place_of(executable);
  if (place == executables_.end() || place->handle != executable) return false;
  const auto was = std::lower_bound(place->copies.begin(), place->copies.end(), node,
                                    [](const Copy& known, CUgraphNode wanted) { return comes_before(known.node, wanted); });
  return was != place->copies.end() && was->node == node && (differ(was->target, target) || differ(was->source, source));
}

}  // namespace nvshare::interposer
