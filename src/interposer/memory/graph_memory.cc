#include "interposer/memory/graph_memory.h"

#include <algorithm>
#include <new>

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUgraph;
using cuda::CUgraphExec;
using cuda::CUgraphNode;

namespace {

constexpr size_t kPageBytes = size_t{2} << 20;  // in which the driver takes memory for nodes
constexpr int kPoolDepthMax = 8;                // of graphs within graphs

// Adds up the allocations of a graph and of those in it. All are on one GPU as a rule; if not, the last one's is taken.
void add_up(CUgraph graph, int depth, size_t* bytes, int* ordinal) {
  const RealDriver& driver = real_driver();
  size_t count = 0;
  if (depth > kPoolDepthMax || driver.cuGraphGetNodes(graph, nullptr, &count) != cuda::CUDA_SUCCESS || count == 0) return;
  std::vector<CUgraphNode> nodes(count);
  if (driver.cuGraphGetNodes(graph, nodes.data(), &count) != cuda::CUDA_SUCCESS) return;
  for (size_t i = 0; i < std::min(count, nodes.size()); ++i) {
    cuda::CUgraphNodeType type{};
    if (driver.cuGraphNodeGetType(nodes[i], &type) != cuda::CUDA_SUCCESS) continue;
    if (type == cuda::CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph inner = nullptr;
      if (driver.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == cuda::CUDA_SUCCESS) add_up(inner, depth + 1, bytes, ordinal);
    } else if (type == cuda::CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      cuda::CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
      if (driver.cuGraphMemAllocNodeGetParams(nodes[i], &parameters) != cuda::CUDA_SUCCESS) continue;
      if (parameters.poolProps.location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE) continue;
      *bytes += (parameters.bytesize + kPageBytes - 1) / kPageBytes * kPageBytes;
      *ordinal = parameters.poolProps.location.id;
    }
  }
}

}  // namespace

GraphMemory& graph_memory() {
  alignas(GraphMemory) static constinit unsigned char storage[sizeof(GraphMemory)] = {};
  static constinit std::atomic<GraphMemory*> instance{nullptr};
  static constinit Mutex making;
  GraphMemory* found = instance.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return *found;
  Lock lock(making);
  found = instance.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = new (storage) GraphMemory;
    instance.store(found, std::memory_order_release);
  }
  return *found;
}

GraphMemory::Executable* GraphMemory::find(CUgraphExec executable) {
  for (Executable& known : executables_) {
    if (known.handle == executable) return &known;
  }
  return nullptr;
}

void GraphMemory::instantiated(CUgraphExec executable, CUgraph graph) {
  if (!any()) return;
  size_t bytes = 0;
  int ordinal = 0;
  add_up(graph, 0, &bytes, &ordinal);
  if (bytes == 0) return;
  Lock lock(mutex_);
  if (Executable* stale = find(executable)) {
    *stale = {executable, bytes, ordinal, 0};
  } else {
    executables_.push_back({executable, bytes, ordinal, 0});
  }
}

void GraphMemory::destroyed(CUgraphExec executable) {
  if (!any()) return;
  Lock lock(mutex_);
  std::erase_if(executables_, [&](const Executable& known) { return known.handle == executable; });
}

GraphMemory::Need GraphMemory::need_of(CUgraphExec executable, uint64_t (*trims)(int ordinal)) {
  Lock lock(mutex_);
  const Executable* known = find(executable);
  if (known == nullptr) return {};
  if (known->launched_at == trims(known->ordinal) + 1) return {0, known->ordinal};
  return {known->bytes, known->ordinal};
}

void GraphMemory::launched(CUgraphExec executable, uint64_t trims) {
  Lock lock(mutex_);
  if (Executable* known = find(executable)) known->launched_at = trims + 1;
}

}  // namespace nvshare::interposer
