// Graphs with memory nodes: the driver takes GPU memory when one is launched, so that launch waits for room as an allocation does. And what
// is known of an executable graph (graph_copies.h).
#include "interposer/generated/hooks.h"
#include "interposer/hooks/capture_rules.h"
#include "interposer/hooks/graph_copies.h"
#include "interposer/hooks/looks.h"
#include "interposer/hooks/memop_nodes.h"
#include "interposer/hooks/unswappable.h"
#include "interposer/memory/driver_memory/graph_memory.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

// A launch or an upload.
template <auto Function, bool PerThread>
CUresult launch(Entry entry, CUgraphExec graph, CUstream stream) {
  Process& process = entry.process();
  const CUstream on = default_stream(stream, PerThread);
  auto real = [&] { return call_real<Function>(graph, stream); };
  GraphMemory::Need need;
  if (process.graph_memory.any() && process.active() && !stream_captures(process, on)) need = process.graph_memory.need_of(process, graph);
  Device* device = need.bytes > 0 ? process.device(need.ordinal) : nullptr;
  if (device == nullptr || device->refused()) return pass_gate<Function>(entry, Target{on, true}, real);
  DeviceMemory& memory = device->memory();
  const uint64_t trims = memory.driver.trims();
  Shortage shortage("a graph's launch");
  for (;;) {
    CUresult result = memory.driver.claim(need.bytes, "memory for a graph");
    if (result != CUDA_SUCCESS) return result;
    result = pass_gate_once(entry, Target{on, true}, real);  // inside already: paced and counted like any other
    if (result == CUDA_SUCCESS) process.graph_memory.launched(graph, trims);
    memory.driver.settle_store(need.bytes, DriverMemory::kGraphs);
    hold_back(process, Gate::mark());
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !shortage.make_room(*device)) return result;
  }
}

template <auto Function, typename... Arguments>
CUresult instantiate(Entry entry, CUgraphExec* executable, CUgraph graph, Arguments... arguments) {
  Process& process = entry.process();
  CUresult result = look<Function>(entry, executable, graph, arguments...);
  if (result != CUDA_SUCCESS) return result;
  process.graph_memory.instantiated(*executable, graph);
  process.graph_copies.instantiated(process, *executable, graph);
  return result;
}

// A node of any kind. All versions begin its parameters with its type.
template <auto Function, typename... Place>
CUresult add_node(Entry entry, CUgraphNodeParams* parameters, Place... place) {
  Process& process = entry.process();
  if (parameters != nullptr && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) process.graph_memory.node_made();
  return look<Function>(entry, place..., NodeSeen(process, parameters).get());
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return launch<&RealDriver::cuGraphLaunch, false>(Entry(), graph, stream);
}
NVSHARE_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  return launch<&RealDriver::cuGraphLaunch_ptsz, true>(Entry(), graph, stream);
}
NVSHARE_EXPORT CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
  return launch<&RealDriver::cuGraphUpload, false>(Entry(), graph, stream);
}
NVSHARE_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) {
  return launch<&RealDriver::cuGraphUpload_ptsz, true>(Entry(), graph, stream);
}

NVSHARE_EXPORT CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, CUgraphNode* error, char* text, size_t bytes) {
  return instantiate<&RealDriver::cuGraphInstantiate>(Entry(), executable, graph, error, text, bytes);
}
NVSHARE_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode* error, char* text, size_t bytes) {
  return instantiate<&RealDriver::cuGraphInstantiate_v2>(Entry(), executable, graph, error, text, bytes);
}
NVSHARE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  return instantiate<&RealDriver::cuGraphInstantiateWithFlags>(Entry(), executable, graph, flags);
}
NVSHARE_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return instantiate<&RealDriver::cuGraphInstantiateWithParams>(Entry(), executable, graph, parameters);
}
NVSHARE_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* executable, CUgraph graph,
                                                          CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return instantiate<&RealDriver::cuGraphInstantiateWithParams_ptsz>(Entry(), executable, graph, parameters);
}
NVSHARE_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec graph, CUgraphNode node, const CUDA_MEMCPY3D* copy, CUcontext context) {
  const Entry entry;
  Process& process = entry.process();
  if (copy != nullptr &&
      (mixes_plain_and_other(process, named_by(copy)) || process.graph_copies.changes_kind(process, graph, node, *copy))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return look<&RealDriver::cuGraphExecMemcpyNodeSetParams>(entry, graph, node, copy, context);
}
NVSHARE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
  Process& process = Entry().process();
  process.graph_memory.destroyed(graph);
  process.graph_copies.destroyed(graph);
  return call_real<&RealDriver::cuGraphExecDestroy>(graph);
}

NVSHARE_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                               CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  Process& process = Entry().process();
  process.graph_memory.node_made();
  return call_real<&RealDriver::cuGraphAddMemAllocNode>(node, graph, dependencies, count, parameters);
}
NVSHARE_EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                       CUgraphNodeParams* parameters) {
  return add_node<&RealDriver::cuGraphAddNode>(Entry(), parameters, node, graph, dependencies, count);
}
NVSHARE_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                          size_t count, CUgraphNodeParams* parameters) {
  return add_node<&RealDriver::cuGraphAddNode_v2>(Entry(), parameters, node, graph, dependencies, edges, count);
}
NVSHARE_EXPORT CUresult cuGraphAddNode_v3(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                          size_t count, CUgraphNodeParams* parameters) {
  return add_node<&RealDriver::cuGraphAddNode_v3>(Entry(), parameters, node, graph, dependencies, edges, count);
}

NVSHARE_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuDeviceGraphMemTrim>(ordinal);
  Device* device = result == CUDA_SUCCESS && process.active() ? process.device(ordinal) : nullptr;
  if (device != nullptr) device->memory().driver.trimmed(DriverMemory::kGraphs);
  return result;
}

}  // extern "C"
}  // namespace nvshare::interposer
