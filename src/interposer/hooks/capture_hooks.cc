// Stream capture, and the end of streams. A capture begins only with the gate open and holds off every drain until it has ended (see
// Captures::wait_for_none).
#include "interposer/generated/hooks.h"
#include "interposer/hooks/submit.h"
#include "interposer/process/process.h"
#include "interposer/process/synchronize.h"

namespace nvshare::interposer {

namespace {

void over(Process& process, CUstream stream) {
  process.captures.ended(stream);
  settle_imports(process);
}

template <auto Function, bool PerThread, typename... Arguments>
CUresult begin(Entry entry, CUstream stream, Arguments... arguments) {
  Process& process = entry.process();
  if (!process.active()) return call_real<Function>(stream, arguments...);
  // Without a stream: afterwards it captures, and no event of the pacer may land on it.
  return pass_gate(entry, Target{nullptr, false}, [&] {
    process.captures.begins(default_stream(stream, PerThread));
    CUresult result = call_real<Function>(stream, arguments...);
    if (result != CUDA_SUCCESS) over(process, default_stream(stream, PerThread));
    return result;
  });
}

template <auto Function, bool PerThread>
CUresult end(Process& process, CUstream stream, CUgraph* graph) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const RealDriver& driver = real_driver();
  bool was_capturing = process.active() && driver.cuStreamIsCapturing != nullptr &&
                       driver.cuStreamIsCapturing(default_stream(stream, PerThread), &status) == CUDA_SUCCESS &&
                       status != CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = call_real<Function>(stream, graph);
  if (!was_capturing) return result;
  // A capture that was not joined, or belongs to another thread, goes on.
  if (driver.cuStreamIsCapturing(default_stream(stream, PerThread), &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE) {
    return result;
  }
  over(process, default_stream(stream, PerThread));
  return result;
}

// A capture into another interface's command list: there is no graph to hand out.
template <auto Function, bool PerThread>
CUresult end_without_graph(Process& process, CUstream stream) {
  CUresult result = call_real<Function>(stream);
  if (result == CUDA_SUCCESS && process.active()) over(process, default_stream(stream, PerThread));
  return result;
}

// What was known of the stream must not be taken for that of the next one with this handle.
template <auto Function>
CUresult destroy(Process& process, CUstream stream) {
  if (!process.active() || stream == nullptr) return call_real<Function>(stream);
  const uint64_t capture = process.captures.leaves(stream);
  process.for_each_device([&](Device& device) { device.memory().stream_frees.stream_leaves(stream); });
  CUresult result = call_real<Function>(stream);
  if (capture == 0) return result;
  if (result == CUDA_SUCCESS) {
    process.captures.left(capture);
    settle_imports(process);
  } else {
    process.captures.stays(capture, stream);
  }
  return result;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuStreamDestroy(CUstream stream) { return destroy<&RealDriver::cuStreamDestroy>(Entry().process(), stream); }
NVSHARE_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) { return destroy<&RealDriver::cuStreamDestroy_v2>(Entry().process(), stream); }

NVSHARE_EXPORT CUresult cuStreamBeginCapture(CUstream stream) { return begin<&RealDriver::cuStreamBeginCapture, false>(Entry(), stream); }
NVSHARE_EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin<&RealDriver::cuStreamBeginCapture_ptsz, true>(Entry(), stream);
}
NVSHARE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin<&RealDriver::cuStreamBeginCapture_v2, false>(Entry(), stream, mode);
}
NVSHARE_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin<&RealDriver::cuStreamBeginCapture_v2_ptsz, true>(Entry(), stream, mode);
}
NVSHARE_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                                    const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return begin<&RealDriver::cuStreamBeginCaptureToGraph, false>(Entry(), stream, graph, dependencies, edges, count, mode);
}
NVSHARE_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                                         const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return begin<&RealDriver::cuStreamBeginCaptureToGraph_ptsz, true>(Entry(), stream, graph, dependencies, edges, count, mode);
}

NVSHARE_EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                      CUgraphRecaptureCallback callback, void* data) {
  return begin<&RealDriver::cuStreamBeginRecaptureToGraph, false>(Entry(), stream, mode, graph, callback, data);
}
NVSHARE_EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                           CUgraphRecaptureCallback callback, void* data) {
  return begin<&RealDriver::cuStreamBeginRecaptureToGraph_ptsz, true>(Entry(), stream, mode, graph, callback, data);
}
NVSHARE_EXPORT CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams* parameters) {
  return begin<&RealDriver::cuStreamBeginCaptureToCig, false>(Entry(), stream, parameters);
}
NVSHARE_EXPORT CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams* parameters) {
  return begin<&RealDriver::cuStreamBeginCaptureToCig_ptsz, true>(Entry(), stream, parameters);
}
NVSHARE_EXPORT CUresult cuStreamEndCaptureToCig(CUstream stream) {
  return end_without_graph<&RealDriver::cuStreamEndCaptureToCig, false>(Entry().process(), stream);
}
NVSHARE_EXPORT CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) {
  return end_without_graph<&RealDriver::cuStreamEndCaptureToCig_ptsz, true>(Entry().process(), stream);
}

NVSHARE_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end<&RealDriver::cuStreamEndCapture, false>(Entry().process(), stream, graph);
}
NVSHARE_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end<&RealDriver::cuStreamEndCapture_ptsz, true>(Entry().process(), stream, graph);
}

}  // extern "C"
}  // namespace nvshare::interposer
