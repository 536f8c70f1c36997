#include "interposer/memory/driver_memory/graph_memory.h"

#include <algorithm>

#include "interposer/memory/driver_memory/graph_nodes.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUgraph;
using cuda::CUgraphExec;
using cuda::CUgraphNode;

namespace {

constexpr size_t kPageBytes = size_t{2} << 20;  // in which the driver takes memory for nodes

// Adds up the allocations of a graph and of those in it. All are on one GPU as a rule; if not, the last one's is taken.
void add_up(CUgraph graph, size_t* bytes, int* ordinal) {
  each_graph_node(graph, [&](CUgraphNode node, cuda::CUgraphNodeType type) {
    cuda::CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
    if (type != cuda::CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
    if (real_driver().cuGraphMemAllocNodeGetParams(node, &parameters) != cuda::CUDA_SUCCESS) return;
    if (parameters.poolProps.location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE) return;
    *bytes += (parameters.bytesize + kPageBytes - 1) / kPageBytes * kPageBytes;
    *ordinal = parameters.poolProps.location.id;
  });
}

}  // namespace

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
  add_up(graph, &bytes, &ordinal);
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

GraphMemory::Need GraphMemory::need_of(Process& process, CUgraphExec executable) {
  Lock lock(mutex_);
  const Executable* known = find(executable);
  if (known == nullptr) return {};
  Device* device = process.device(known->ordinal);
  const uint64_t trims = device != nullptr ? device->memory().driver.trims() : 0;
  if (known->launched_at == trims + 1) return {0, known->ordinal};
  return {known->bytes, known->ordinal};
}

void GraphMemory::launched(CUgraphExec executable, uint64_t trims) {
  Lock lock(mutex_);
  if (Executable* known = find(executable)) known->launched_at = trims + 1;
}

}  // namespace nvshare::interposer
