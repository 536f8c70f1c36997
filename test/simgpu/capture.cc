#include "simgpu/capture.h"

#include <algorithm>
#include <unordered_set>

#include "simgpu/graph.h"

namespace simgpu {
namespace {

// Captures that have begun and not ended. Captures themselves are never deleted: events point to them.
struct Registry {
  std::mutex mutex;
  std::vector<Capture*> active;
  std::atomic<int> count{0};
  static Registry& get() {
    static auto* const kRegistry = new Registry;
    return *kRegistry;
  }
};

std::atomic<uint64_t> g_next_id{1};

// Whether the streams that joined have all been joined back: their last nodes come before the origin's.
bool all_joined(const Capture& capture) {
  std::unordered_set<const GraphNode*> reached;
  std::vector<GraphNode*> open(capture.origin.capture_tail);
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return std::all_of(capture.members.begin(), capture.members.end(), [&](const Stream* member) {
    return std::all_of(member->capture_tail.begin(), member->capture_tail.end(),
                       [&](const GraphNode* node) { return reached.count(node) != 0; });
  });
}

CUresult begin(CUstream handle, Default null_means, CUstreamCaptureMode mode, CUgraph into, const CUgraphNode* after, size_t after_count) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(stream->context->mutex);
  if (stream->capture.load() != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  Graph* graph = into != nullptr ? reinterpret_cast<Graph*>(into) : Kept<Graph>::make();
  auto* capture = Kept<Capture>::make(*stream, mode, graph, into == nullptr);
  capture->members.push_back(stream);
  stream->capture_tail.clear();
  for (size_t i = 0; i < after_count; ++i) stream->capture_tail.push_back(reinterpret_cast<GraphNode*>(after[i]));
  stream->capture.store(capture, std::memory_order_release);
  Registry& registry = Registry::get();
  std::lock_guard registry_lock(registry.mutex);
  registry.active.push_back(capture);
  registry.count.fetch_add(1);
  return CUDA_SUCCESS;
}

CUresult end(CUstream handle, Default null_means, CUgraph* out) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  std::lock_guard lock(stream->context->mutex);
  Capture* capture = stream->capture.load();
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (&capture->origin != stream) {
    capture->invalid.store(true);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && pthread_equal(capture->thread, pthread_self()) == 0) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool joined = all_joined(*capture);
  capture->finish();
  const CUresult result = capture->invalid.load() ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : joined                ? CUDA_SUCCESS
                                                  : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (result == CUDA_SUCCESS) {
    *out = reinterpret_cast<CUgraph>(capture->graph);
  } else if (capture->owns_graph) {
    Kept<Graph>::drop(capture->graph);
  }
  capture->invalid.store(true);  // nobody joins any more
  return result;
}

// Every outlet may be null but the status.
CUresult info(CUstream handle, Default null_means, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
              const CUgraphEdgeData** edges, size_t* count) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(stream->context->mutex);
  if (stream->legacy) {
    for (Stream* other : stream->context->streams) {
      if (other->blocking() && other->capture.load() != nullptr) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  const Capture* capture = stream->capture.load();
  *status = capture == nullptr        ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid.load() ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(capture->graph);
  if (nodes != nullptr) *nodes = reinterpret_cast<const CUgraphNode*>(stream->capture_tail.data());
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = stream->capture_tail.size();
  return CUDA_SUCCESS;
}

CUresult set_dependencies(CUstream handle, Default null_means, CUgraphNode* nodes, size_t count, unsigned flags) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  std::lock_guard lock(stream->context->mutex);
  const Capture* capture = stream->capture.load();
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->invalid.load()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if ((flags & 1) != 0) stream->capture_tail.clear();
  for (size_t i = 0; i < count; ++i) stream->capture_tail.push_back(reinterpret_cast<GraphNode*>(nodes[i]));
  return CUDA_SUCCESS;
}

}  // namespace

Capture::Capture(Stream& origin_, CUstreamCaptureMode mode_, Graph* graph_, bool owns_graph_)
    : id(g_next_id.fetch_add(1)), mode(mode_), origin(origin_), thread(pthread_self()), graph(graph_), owns_graph(owns_graph_) {}

void Capture::finish() {
  for (Stream* member : members) {
    member->capture.store(nullptr, std::memory_order_release);
    member->capture_tail.clear();
  }
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  std::erase(registry.active, this);
  registry.count.fetch_sub(1);
}

void Capture::lose(Stream& stream) {
  invalid.store(true);
  if (&stream == &origin) {
    finish();
    if (owns_graph) Kept<Graph>::drop(graph);
    return;
  }
  stream.capture.store(nullptr, std::memory_order_release);
  stream.capture_tail.clear();
  std::erase(members, &stream);
}

CUresult Capture::add(Stream& stream, WorkPtr work) {
  if (invalid.load()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!work) return CUDA_SUCCESS;
  stream.capture_tail = {graph->add(std::move(work), stream.capture_tail)};
  return CUDA_SUCCESS;
}

CUresult Capture::join(Stream& stream, const std::vector<GraphNode*>& nodes) {
  if (invalid.load()) return CUDA_ERROR_CAPTURED_EVENT;
  if (stream.legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream.capture.load() == nullptr) {
    stream.capture_tail.clear();
    members.push_back(&stream);
    stream.capture.store(this, std::memory_order_release);
  }
  for (GraphNode* node : nodes) {
    if (std::find(stream.capture_tail.begin(), stream.capture_tail.end(), node) == stream.capture_tail.end()) {
      stream.capture_tail.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

CUresult check_unsafe_call() {
  Registry& registry = Registry::get();
  if (registry.count.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  const CUstreamCaptureMode caller = t_thread.capture_mode;
  if (caller == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool forbidden = false;
  std::lock_guard lock(registry.mutex);
  for (Capture* capture : registry.active) {
    const bool own = pthread_equal(capture->thread, pthread_self()) != 0 && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = caller == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    if (capture->invalid.exchange(true)) continue;  // one that has failed forbids nothing (recorded)
    forbidden = true;
  }
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// The legacy stream waits for those that capture.
static CUresult check_implicit(Stream& stream) {
  if (!stream.legacy) return CUDA_SUCCESS;
  std::lock_guard lock(stream.context->mutex);
  for (Stream* other : stream.context->streams) {
    Capture* capture = other->blocking() ? other->capture.load() : nullptr;
    if (capture == nullptr) continue;
    capture->invalid.store(true);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return CUDA_SUCCESS;
}

CUresult check_blocking_copy(Stream& stream) {
  if (Registry::get().count.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  if (Capture* capture = stream.capture.load(std::memory_order_acquire)) {
    capture->invalid.store(true);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return check_implicit(stream);
}

CUresult check_synchronisation(Stream& stream) {
  const CUresult result = check_blocking_copy(stream);
  return result != CUDA_SUCCESS ? result : check_unsafe_call();
}

CUresult check_memory_in_order(Stream& stream) {
  if (Registry::get().count.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  const CUresult result = check_implicit(stream);
  return result != CUDA_SUCCESS ? result : check_unsafe_call();
}

CUresult check_synchronisation(Context& context) {
  if (Registry::get().count.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  {
    bool capturing = false;
    std::lock_guard lock(context.mutex);
    for (Stream* stream : context.streams) {
      if (Capture* capture = stream->capture.load()) {
        capture->invalid.store(true);
        capturing = true;
      }
    }
    if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return check_unsafe_call();
}

SIM_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (const CUresult result = enter_process()) return result;
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, t_thread.capture_mode);
  return CUDA_SUCCESS;
}

// Without a mode, it forbids nothing (recorded).
SIM_API CUresult cuStreamBeginCapture(CUstream stream) {
  return begin(stream, Default::kLegacy, CU_STREAM_CAPTURE_MODE_RELAXED, nullptr, nullptr, 0);
}
SIM_API CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin(stream, Default::kPerThread, CU_STREAM_CAPTURE_MODE_RELAXED, nullptr, nullptr, 0);
}
SIM_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, Default::kLegacy, mode, nullptr, nullptr, 0);
}
SIM_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, Default::kPerThread, mode, nullptr, nullptr, 0);
}
SIM_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*, size_t count,
                                             CUstreamCaptureMode mode) {
  return begin(stream, Default::kLegacy, mode, graph, after, count);
}
SIM_API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*,
                                                  size_t count, CUstreamCaptureMode mode) {
  return begin(stream, Default::kPerThread, mode, graph, after, count);
}
SIM_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) { return end(stream, Default::kLegacy, graph); }
SIM_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) { return end(stream, Default::kPerThread, graph); }

SIM_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return info(stream, Default::kLegacy, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
SIM_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return info(stream, Default::kPerThread, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
SIM_API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return info(stream, Default::kLegacy, status, id, nullptr, nullptr, nullptr, nullptr);
}
SIM_API CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return info(stream, Default::kPerThread, status, id, nullptr, nullptr, nullptr, nullptr);
}
SIM_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** nodes, size_t* count) {
  return info(stream, Default::kLegacy, status, id, graph, nodes, nullptr, count);
}
SIM_API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                                const CUgraphNode** nodes, size_t* count) {
  return info(stream, Default::kPerThread, status, id, graph, nodes, nullptr, count);
}
SIM_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  return info(stream, Default::kLegacy, status, id, graph, nodes, edges, count);
}
SIM_API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                                const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  return info(stream, Default::kPerThread, status, id, graph, nodes, edges, count);
}
SIM_API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  return set_dependencies(stream, Default::kLegacy, nodes, count, flags);
}
SIM_API CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  return set_dependencies(stream, Default::kPerThread, nodes, count, flags);
}
SIM_API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count,
                                                      unsigned flags) {
  return set_dependencies(stream, Default::kLegacy, nodes, count, flags);
}
SIM_API CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count,
                                                           unsigned flags) {
  return set_dependencies(stream, Default::kPerThread, nodes, count, flags);
}

}  // namespace simgpu
