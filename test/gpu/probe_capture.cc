// What a helper thread may do while the program captures a stream, and whether the kernel offers membarrier.
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "probe.h"
#include "vmm.h"

namespace gputest {
namespace {

struct HelperStep {
  const char* name;
  bool relaxed;  // after cuThreadExchangeStreamCaptureMode(RELAXED)
  std::function<CUresult(CUstream capturing, CUstream own)> call;
};

CUresult synchronize_context(CUstream, CUstream) { return driver().ctx_synchronize(); }
CUresult query_capturing(CUstream capturing, CUstream) { return driver().stream_query(capturing); }
CUresult is_capturing(CUstream capturing, CUstream) {
  int status = -1;
  const CUresult result = driver().stream_is_capturing(capturing, &status);
  return result != kSuccess ? result : (status == 1 ? kSuccess : -1);
}
CUresult synchronize_own(CUstream, CUstream own) { return driver().stream_synchronize(own); }
CUresult synchronize_legacy(CUstream, CUstream) { return driver().stream_synchronize(nullptr); }
CUresult record_own_event(CUstream, CUstream own) {
  CUevent event = nullptr;
  const CUresult result = driver().event_create(&event, 2);
  return result != kSuccess ? result : driver().event_record(event, own);
}
CUresult allocate(CUstream, CUstream) {
  CUdeviceptr pointer = 0;
  const CUresult result = driver().mem_alloc(&pointer, 1u << 20);
  return result != kSuccess ? result : driver().mem_free(pointer);
}
CUresult map_and_unmap(CUstream, CUstream) {
  VmmRange range(64u << 20);
  range.map(0, 64u << 20);
  return kSuccess;
}

// Captures one kernel in `mode`, lets a helper thread take `step` in the middle, ends the capture and runs the graph.
void try_step(int mode, const char* mode_name, const HelperStep& step) {
  const Driver& d = driver();
  CUcontext context = open_gpu();
  const CUfunction spin = kernel("sim_spin");
  CUstream capturing = nullptr;
  CUstream own = nullptr;
  require(d.stream_create(&capturing, kStreamNonBlocking), "cuStreamCreate");
  require(d.stream_create(&own, kStreamNonBlocking), "cuStreamCreate");
  require(d.stream_begin_capture(capturing, mode), "cuStreamBeginCapture");
  launch_spin(spin, 1000, capturing);
  CUresult helper = -1;
  std::thread([&] {
    d.ctx_set_current(context);
    if (step.relaxed) {
      int relaxed = kCaptureRelaxed;
      require(d.exchange_capture_mode(&relaxed), "cuThreadExchangeStreamCaptureMode");
    }
    helper = step.call(capturing, own);
  }).join();
  void* argument[] = {nullptr};
  uint64_t nanoseconds = 1000;
  argument[0] = &nanoseconds;
  const CUresult launched = d.launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, capturing, argument, nullptr);
  CUgraph graph = nullptr;
  const CUresult ended = d.stream_end_capture(capturing, &graph);
  CUresult replayed = -1;
  CUgraphExec executable = nullptr;
  if (ended == kSuccess && d.graph_instantiate(&executable, graph, 0) == kSuccess && d.graph_launch(executable, capturing) == kSuccess) {
    replayed = d.stream_synchronize(capturing);
  }
  std::printf(
      "{\"probe\": \"capture\", \"mode\": \"%s\", \"helper\": \"%s\", \"relaxed\": %s, \"helper_result\": %d, \"later_launch\": %d, "
      "\"end_capture\": %d, \"replay\": %d}\n",
      mode_name, step.name, step.relaxed ? "true" : "false", helper, launched, ended, replayed);
}

}  // namespace

void probe_capture(const Options&) {
  const HelperStep steps[] = {
      {"cuStreamIsCapturing", true, is_capturing},
      {"cuStreamSynchronize(own)", true, synchronize_own},
      {"cuEventRecord(own)", true, record_own_event},
      {"cuMemAlloc+cuMemFree", true, allocate},
      {"map+unmap", true, map_and_unmap},
      {"cuStreamQuery(capturing)", true, query_capturing},
      {"cuStreamSynchronize(legacy)", true, synchronize_legacy},
      {"cuCtxSynchronize", true, synchronize_context},
      {"cuCtxSynchronize", false, synchronize_context},
  };
  const std::pair<int, const char*> modes[] = {
      {kCaptureGlobal, "global"}, {kCaptureThreadLocal, "thread_local"}, {kCaptureRelaxed, "relaxed"}};
  for (const auto& [mode, name] : modes) {
    for (const HelperStep& step : steps) {
      try_step(mode, name, step);
    }
  }
}

void probe_membarrier(const Options&) {
  const long supported = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  const long registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 4; ++i) {
    busy.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  std::vector<double> micros;
  long result = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t begin = now_ns();
    result |= syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    micros.push_back(micros_since(begin));
  }
  stop = true;
  for (std::thread& each : busy) {
    each.join();
  }
  const Statistics s = statistics_of(micros);
  std::printf(
      "{\"probe\": \"membarrier\", \"supported\": %ld, \"registered\": %ld, \"result\": %ld, \"us_median\": %.2f, \"us_highest\": %.1f}\n",
      supported, registered, result, s.median, s.highest);
}

}  // namespace gputest
