#include "simgpu/graph.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "simgpu/capture.h"
#include "simgpu/context.h"
#include "simgpu/copy.h"
#include "simgpu/graph_memory.h"
#include "simgpu/launch.h"

namespace simgpu {
namespace {

// Of each side of a copy: its memory has no context of its own. Nothing of what is not linear memory, and of other nodes.
struct CopyKinds {
  std::optional<bool> target_has_none, source_has_none;
};

// An instantiated graph: which work, in which order. A launch holds the work by itself, so destroying or changing this harms none.
struct Executable {
  std::mutex mutex;
  std::vector<const GraphNode*> nodes;
  std::vector<CopyKinds> kinds;  // of each
  std::shared_ptr<const std::vector<WorkPtr>> work;
};

// Runs a graph's work one piece after the other.
class GraphWork : public Work {
 public:
  explicit GraphWork(std::shared_ptr<const std::vector<WorkPtr>> work) : work_(std::move(work)) {}
  void run(Execution& execution) const override {
    for (const WorkPtr& each : *work_) {
      if (execution.context.error.load() != 0) break;
      each->run(execution);
    }
    graph_launch_ended(*work_);
  }
  bool always() const override { return true; }  // its memory is in use until then
  void spans(std::vector<Span>& out) const override {
    for (const WorkPtr& each : *work_) each->spans(out);
  }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_GRAPH; }
  const char* name() const override { return "a graph"; }

 private:
  const std::shared_ptr<const std::vector<WorkPtr>> work_;
};

CUresult add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* after, size_t count, WorkPtr work, CUgraphNodeType type) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || handle == nullptr || (count > 0 && after == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> dependencies;
  for (size_t i = 0; i < count; ++i) dependencies.push_back(to_node(after[i]));
  GraphNode* node = to_graph(handle)->add(std::move(work), std::move(dependencies));
  node->type = type;
  *out = to_handle(node);
  return CUDA_SUCCESS;
}

// The driver's functions are the first member of both versions of the parameters.
CUresult kernel_of(const void* parameters, WorkPtr* work) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* params = static_cast<const CUDA_KERNEL_NODE_PARAMS*>(parameters);
  if (params->func == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *work = make_kernel(*reinterpret_cast<const Function*>(params->func), params->kernelParams, params->extra, t_thread.current());
  return *work ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult add_kernel(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, const void* parameters) {
  WorkPtr work;
  if (const CUresult result = kernel_of(parameters, &work)) return result;
  return add_node(out, graph, after, count, std::move(work), CU_GRAPH_NODE_TYPE_KERNEL);
}

// Empty although the graph is not: there is a cycle.
std::vector<const GraphNode*> in_order(const Graph& graph) {
  std::vector<const GraphNode*> order;
  std::unordered_set<const GraphNode*> placed;
  bool progress = true;
  while (progress && order.size() < graph.nodes.size()) {
    progress = false;
    for (const auto& node : graph.nodes) {
      if (placed.count(node.get()) != 0) continue;
      if (!std::all_of(node->after.begin(), node->after.end(), [&](const GraphNode* before) { return placed.count(before) != 0; }))
        continue;
      order.push_back(node.get());
      placed.insert(node.get());
      progress = true;
    }
  }
  if (order.size() < graph.nodes.size()) order.clear();
  return order;
}

// The driver looks at its copies' and fills' addresses once more.
bool lacks_memory(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) { return node->work && node->work->lacks_memory(); });
}

// A graph as a node of another.
class ChildWork : public Work {
 public:
  explicit ChildWork(std::vector<WorkPtr> work) : work_(std::move(work)) {}
  void run(Execution& execution) const override {
    for (const WorkPtr& each : work_) {
      if (execution.context.error.load() != 0) break;
      each->run(execution);
    }
  }
  void spans(std::vector<Span>& out) const override {
    for (const WorkPtr& each : work_) each->spans(out);
  }
  bool lacks_memory() const override {
    return std::any_of(work_.begin(), work_.end(), [](const WorkPtr& each) { return each->lacks_memory(); });
  }
  bool refused_by_streams() const override {
    return std::any_of(work_.begin(), work_.end(), [](const WorkPtr& each) { return each->refused_by_streams(); });
  }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_GRAPH; }
  const char* name() const override { return "a graph in a graph"; }

 private:
  const std::vector<WorkPtr> work_;
};

// -1: none of a device.
int device_of(uint64_t address) {
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  return range != nullptr && range->on_device() ? range->device : -1;
}

// Memory that has no context of its own.
bool is_virtual_or_of_pool(uint64_t address) {
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  return range != nullptr && (range->kind == RangeKind::kMapping || range->kind == RangeKind::kPool);
}

// A thread without a context changes any copy of memory that there is, but in an executable graph none between memory with a context of
// its own and other memory (measured).
CUresult copy_node(const CUDA_MEMCPY3D* description, CUcontext handle, WorkPtr* work, bool executable = false) {
  if (const CUresult result = enter_process()) return result;
  if (description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* context = handle != nullptr ? to_context(handle) : t_thread.current();
  Transfer transfer;
  if (const CUresult result = to_transfer(*description, &transfer)) return result;
  if (executable && t_thread.current() == nullptr && is_virtual_or_of_pool(transfer.source) != is_virtual_or_of_pool(transfer.target)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto expect = [](CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE ? Expect::kDevice : Expect::kAny; };
  int device = context != nullptr ? context->device : device_of(transfer.target);
  if (device < 0) device = device_of(transfer.source);
  return make_copy(transfer, expect(description->srcMemoryType), expect(description->dstMemoryType), device, work);
}

bool is_linear(CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; }

// In an executable graph each side stays with memory that has a context of its own, or with memory that has none, as it was when it was
// instantiated (measured), whatever its node names since (seen on an H200).
CopyKinds kinds_of(const CUDA_MEMCPY3D& copy) {
  CopyKinds kinds;
  if (copy.WidthInBytes == 0) return kinds;  // captured
  if (is_linear(copy.dstMemoryType)) kinds.target_has_none = is_virtual_or_of_pool(copy.dstDevice);
  if (is_linear(copy.srcMemoryType)) kinds.source_has_none = is_virtual_or_of_pool(copy.srcDevice);
  return kinds;
}

bool differ(std::optional<bool> a, std::optional<bool> b) { return a && b && *a != *b; }

bool changes_kind(CUgraphExec handle, CUgraphNode node, const CUDA_MEMCPY3D& copy) {
  auto* executable = reinterpret_cast<Executable*>(handle);
  std::lock_guard lock(executable->mutex);
  const auto found = std::find(executable->nodes.begin(), executable->nodes.end(), to_node(node));
  if (found == executable->nodes.end()) return false;
  const CopyKinds& was = executable->kinds[static_cast<size_t>(found - executable->nodes.begin())];
  const CopyKinds now = kinds_of(copy);
  return differ(was.target_has_none, now.target_has_none) || differ(was.source_has_none, now.source_has_none);
}

// Plain memory is taken of any device. Other memory is looked for from the context that is given, else from the current one (measured).
CUresult fill_node(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext handle, WorkPtr* work) {
  if (const CUresult result = enter_process()) return result;
  if (params == nullptr || params->height == 0 || params->width == 0) return CUDA_ERROR_INVALID_VALUE;
  const Context* context = handle != nullptr ? to_context(handle) : t_thread.current();
  if (is_virtual_or_of_pool(params->dst)) {
    AddressSpace::Reading reading(here().memory);
    const Range* range = reading.find(params->dst);
    if (context == nullptr || range == nullptr || !may_use(*context, *range)) return CUDA_ERROR_INVALID_VALUE;
  }
  *work = make_fill({params->dst, params->pitch, params->value, params->elementSize, params->width, params->height});
  return (*work)->lacks_memory() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult memop_node(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, WorkPtr* work) {
  if (const CUresult result = enter_process()) return result;
  return params == nullptr ? CUDA_ERROR_INVALID_VALUE : make_memops(params->count, params->paramArray, params->flags, work);
}

CUresult set_work(CUgraphNode node, CUgraphNodeType type, WorkPtr work) {
  if (node == nullptr || to_node(node)->type != type) return CUDA_ERROR_INVALID_VALUE;
  to_node(node)->work = std::move(work);
  return CUDA_SUCCESS;
}

bool prepare(const Graph& graph, Executable* executable) {
  const std::vector<const GraphNode*> order = in_order(graph);
  if (order.empty() && !graph.nodes.empty()) return false;
  auto work = std::make_shared<std::vector<WorkPtr>>();
  executable->nodes.clear();
  executable->kinds.clear();
  for (const GraphNode* node : order) {
    if (!node->work) continue;
    executable->nodes.push_back(node);
    executable->kinds.push_back(kinds_of(node->copy));
    work->push_back(node->work);
  }
  executable->work = std::move(work);
  return true;
}

CUresult instantiate(CUgraphExec* out, CUgraph graph) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (!charge_context(*context, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (lacks_memory(*to_graph(graph))) return CUDA_ERROR_INVALID_VALUE;
  Executable* executable = Kept<Executable>::make();
  if (!prepare(*to_graph(graph), executable)) {
    Kept<Executable>::drop(executable);
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = reinterpret_cast<CUgraphExec>(executable);
  return CUDA_SUCCESS;
}

CUresult launch(CUgraphExec handle, CUstream stream_handle, Default null_means) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(stream_handle, null_means, &stream)) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto* executable = reinterpret_cast<Executable*>(handle);
  std::shared_ptr<const std::vector<WorkPtr>> work;
  {
    std::lock_guard lock(executable->mutex);
    work = executable->work;
  }
  if (stream->capture.load() == nullptr) {
    if (std::any_of(work->begin(), work->end(), [](const WorkPtr& each) { return each->refused_by_streams(); }))
      return CUDA_ERROR_INVALID_VALUE;
    if (!charge_context(*stream->context, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult result = begin_graph_launch(*work)) return result;
  }
  auto launched = std::make_shared<GraphWork>(work);
  const CUresult result = submit(*stream, Submission::kKernel, std::move(launched));
  if (result != CUDA_SUCCESS && stream->capture.load() == nullptr) graph_launch_ended(*work);
  return result;
}

CUresult upload(CUstream stream_handle, Default null_means) {
  Stream* stream = nullptr;
  return find_stream(stream_handle, null_means, &stream);
}

// Only a graph of the same shape may replace the work.
bool update(CUgraphExec handle, CUgraph graph) {
  auto* executable = reinterpret_cast<Executable*>(handle);
  Executable fresh;
  if (lacks_memory(*to_graph(graph)) || !prepare(*to_graph(graph), &fresh)) return false;
  std::lock_guard lock(executable->mutex);
  if (fresh.work->size() != executable->work->size()) return false;
  for (size_t i = 0; i < fresh.work->size(); ++i) {
    if ((*fresh.work)[i]->node_type() != (*executable->work)[i]->node_type()) return false;
  }
  executable->work = fresh.work;
  return true;
}

CUresult replace(CUgraphExec handle, CUgraphNode node, WorkPtr work) {
  if (handle == nullptr || node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto* executable = reinterpret_cast<Executable*>(handle);
  std::lock_guard lock(executable->mutex);
  const auto found = std::find(executable->nodes.begin(), executable->nodes.end(), to_node(node));
  if (found == executable->nodes.end()) return CUDA_ERROR_INVALID_VALUE;
  auto changed = std::make_shared<std::vector<WorkPtr>>(*executable->work);
  (*changed)[static_cast<size_t>(found - executable->nodes.begin())] = std::move(work);
  executable->work = std::move(changed);
  return CUDA_SUCCESS;
}

}  // namespace

GraphNode* Graph::add(WorkPtr work, std::vector<GraphNode*> after) {
  auto node = std::make_unique<GraphNode>();
  node->graph = this;
  node->type = work ? work->node_type() : CU_GRAPH_NODE_TYPE_EMPTY;
  node->work = std::move(work);
  node->after = std::move(after);
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

SIM_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraph>(Kept<Graph>::make());
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphDestroy(CUgraph graph) {
  if (const CUresult result = enter_process()) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kept<Graph>::drop(to_graph(graph));
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphClone(CUgraph* out, CUgraph original) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || original == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Graph* copy = Kept<Graph>::make();
  std::unordered_map<const GraphNode*, GraphNode*> twin;
  for (const auto& node : to_graph(original)->nodes) {
    twin[node.get()] = copy->add(node->work, {});
    twin[node.get()]->type = node->type;
  }
  for (const auto& node : to_graph(original)->nodes) {
    for (const GraphNode* before : node->after) twin[node.get()]->after.push_back(twin[before]);
  }
  *out = reinterpret_cast<CUgraph>(copy);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count) {
  return add_node(out, graph, after, count, nullptr, CU_GRAPH_NODE_TYPE_EMPTY);
}
SIM_API CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, const void* parameters) {
  return add_kernel(out, graph, after, count, parameters);
}
SIM_API CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, const void* parameters) {
  return add_kernel(out, graph, after, count, parameters);
}
SIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                      const CUDA_MEMCPY3D* description, CUcontext context) {
  if (context == nullptr && t_thread.current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  WorkPtr work;
  if (const CUresult result = copy_node(description, context, &work)) return result;
  const CUresult result = add_node(out, graph, after, count, std::move(work), CU_GRAPH_NODE_TYPE_MEMCPY);
  if (result == CUDA_SUCCESS) to_node(*out)->copy = *description;
  return result;
}
SIM_API CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                      const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  WorkPtr work;
  if (const CUresult result = fill_node(params, context, &work)) return result;
  return add_node(out, graph, after, count, std::move(work), CU_GRAPH_NODE_TYPE_MEMSET);
}
SIM_API CUresult cuGraphAddBatchMemOpNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                          const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  WorkPtr work;
  if (const CUresult result = memop_node(params, &work)) return result;
  return add_node(out, graph, after, count, std::move(work), CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
}
SIM_API CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  WorkPtr work;
  if (const CUresult result = memop_node(params, &work)) return result;
  return set_work(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, std::move(work));
}
SIM_API CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  WorkPtr work;
  if (const CUresult result = memop_node(params, &work)) return result;
  return replace(executable, node, std::move(work));
}
SIM_API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* description) {
  WorkPtr work;
  if (const CUresult result = copy_node(description, nullptr, &work)) return result;
  if (const CUresult result = set_work(node, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(work))) return result;
  to_node(node)->copy = *description;
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) {
  if (const CUresult result = enter_process()) return result;
  if (node == nullptr || out == nullptr || to_node(node)->type != CU_GRAPH_NODE_TYPE_MEMCPY) return CUDA_ERROR_INVALID_VALUE;
  if (to_node(node)->copy.WidthInBytes == 0) return CUDA_ERROR_NOT_SUPPORTED;  // of a capture's
  *out = to_node(node)->copy;
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  WorkPtr work;
  if (const CUresult result = fill_node(params, nullptr, &work)) return result;
  return set_work(node, CU_GRAPH_NODE_TYPE_MEMSET, std::move(work));
}
SIM_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* description,
                                                CUcontext context) {
  WorkPtr work;
  if (const CUresult result = copy_node(description, context, &work, true)) return result;
  if (executable != nullptr && node != nullptr && changes_kind(executable, node, *description)) return CUDA_ERROR_INVALID_VALUE;
  return replace(executable, node, std::move(work));
}
SIM_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                                                CUcontext context) {
  WorkPtr work;
  if (const CUresult result = fill_node(params, context, &work)) return result;
  return replace(executable, node, std::move(work));
}
SIM_API CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUgraph child) {
  if (const CUresult result = enter_process()) return result;
  Executable inner;
  if (child == nullptr || !prepare(*to_graph(child), &inner)) return CUDA_ERROR_INVALID_VALUE;
  return add_node(out, graph, after, count, std::make_shared<ChildWork>(*inner.work), CU_GRAPH_NODE_TYPE_GRAPH);
}
// Of the kinds that have a call of their own, copies, fills and memory operations.
SIM_API CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*, size_t count,
                                   CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUDA_MEMCPY_NODE_PARAMS*>(params->rest);
    return cuGraphAddMemcpyNode(out, graph, after, count, &copy->copyParams, copy->copyCtx);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const auto* fill = reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS*>(params->rest);
    CUcontext context = nullptr;
    std::memcpy(&context, fill + 1, sizeof context);
    return cuGraphAddMemsetNode(out, graph, after, count, fill, context);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
    return cuGraphAddBatchMemOpNode(out, graph, after, count, reinterpret_cast<const CUDA_BATCH_MEM_OP_NODE_PARAMS*>(params->rest));
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
SIM_API CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUgraphNodeParams* params) {
  return cuGraphAddNode_v2(out, graph, after, nullptr, count, params);
}
SIM_API CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                    const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add_node(out, graph, after, count, make_host_function(params->fn, params->userData), CU_GRAPH_NODE_TYPE_HOST);
}
SIM_API CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (const CUresult result = enter_process()) return result;
  if (params == nullptr || params->bytesize == 0 || params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      !valid_device(params->poolProps.location.id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto allocation = reserve_graph_allocation(params->poolProps.location.id, params->bytesize);
  if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
  params->dptr = allocation->base;
  return add_node(out, graph, after, count, make_graph_allocation(std::move(allocation)), CU_GRAPH_NODE_TYPE_MEM_ALLOC);
}
SIM_API CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUdeviceptr address) {
  if (!is_graph_allocation(address)) {
    if (graph != nullptr) to_graph(graph)->fixed = true;  // though it is refused (recorded)
    return CUDA_ERROR_INVALID_VALUE;
  }
  return add_node(out, graph, after, count, make_graph_free(address), CU_GRAPH_NODE_TYPE_MEM_FREE);
}
SIM_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (node == nullptr || params == nullptr || to_node(node)->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_ERROR_INVALID_VALUE;
  const GraphAllocation* allocation = allocation_of(*to_node(node)->work);
  *params = {};
  params->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params->poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, allocation->device};
  params->bytesize = allocation->bytes;
  params->dptr = allocation->base;
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = to_node(node)->type;
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode*, char*, size_t) { return instantiate(out, graph); }
SIM_API CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode*, char*, size_t) { return instantiate(out, graph); }
SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  constexpr unsigned long long kFlags = 0xf;  // CUDA_GRAPH_INSTANTIATE_FLAG_*
  return (flags & ~kFlags) != 0 ? CUDA_ERROR_INVALID_VALUE : instantiate(out, graph);
}
SIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = instantiate(out, graph);
  params->result_out = result == CUDA_SUCCESS ? 0 : 1;
  return result;
}
SIM_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return cuGraphInstantiateWithParams(out, graph, params);
}
SIM_API CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch(graph, stream, Default::kLegacy); }
SIM_API CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch(graph, stream, Default::kPerThread); }
SIM_API CUresult cuGraphUpload(CUgraphExec, CUstream stream) { return upload(stream, Default::kLegacy); }
SIM_API CUresult cuGraphUpload_ptsz(CUgraphExec, CUstream stream) { return upload(stream, Default::kPerThread); }
SIM_API CUresult cuGraphExecDestroy(CUgraphExec graph) {
  if (const CUresult result = enter_process()) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kept<Executable>::drop(reinterpret_cast<Executable*>(graph));
  return CUDA_SUCCESS;
}
SIM_API CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode* error_node, unsigned* update_result) {
  if (executable == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool updated = update(executable, graph);
  if (error_node != nullptr) *error_node = nullptr;
  if (update_result != nullptr) *update_result = updated ? 0 : 1;
  return updated ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
SIM_API CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  if (executable == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool updated = update(executable, graph);
  if (info != nullptr) *info = {updated ? 0u : 1u, nullptr, nullptr};
  return updated ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
SIM_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node, const void* parameters) {
  WorkPtr work;
  if (const CUresult result = kernel_of(parameters, &work)) return result;
  return replace(executable, node, std::move(work));
}
SIM_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node, const void* parameters) {
  return cuGraphExecKernelNodeSetParams(executable, node, parameters);
}

}  // namespace simgpu
