// Streams that end while something is under way on them, and streams of another context than the current one.
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <thread>
#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"
#include "simgpu/control.h"

namespace nvshare::e2e {
namespace {

CUstream make_stream() {
  CUstream stream = nullptr;
  check(cuda().cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}

// Memory that was freed on a stream with work pending, whose handle then names another stream.
void free_and_destroy(const Desk& desk, size_t bytes, uint64_t round) {
  CUstream old = make_stream();
  CUdeviceptr memory = 0;
  std::atomic<bool> go{false};
  check(cuda().cuMemAllocAsync(&memory, bytes, old), "cuMemAllocAsync");
  check(cuda().cuLaunchHostFunc(
            old,
            [](void* data) {
              while (!static_cast<std::atomic<bool>*>(data)->load()) usleep(100);
            },
            &go),
        "cuLaunchHostFunc");
  check(launch(desk.place.kernels.fill, old, memory, uint64_t{bytes / 8}, round), "sim_fill");
  CUevent done = nullptr;
  check(cuda().cuEventCreate(&done, 0), "cuEventCreate");
  check(cuda().cuEventRecord(done, old), "cuEventRecord");
  check(cuda().cuMemFreeAsync(memory, old), "cuMemFreeAsync");
  check(cuda().cuStreamDestroy_v2(old), "cuStreamDestroy");

  Workplace place{make_stream(), desk.place.kernels};
  if (place.stream != old) say("the handle is another one");
  Block block(place, bytes, Allocation::kAsync);
  block.fill(round + 1);
  go.store(true);  // and only now the old stream's work
  check(cuda().cuEventSynchronize(done), "cuEventSynchronize");
  check(cuda().cuEventDestroy_v2(done), "cuEventDestroy");
  block.verify_checksum(desk.scratch);
  block.free();
  check(cuda().cuStreamDestroy_v2(place.stream), "cuStreamDestroy");
}

// Captures that nobody ends.
void capture_and_destroy(const Desk& desk, CUcontext primary) {
  CUcontext other = nullptr;
  for (const bool with_context : {false, true}) {
    if (with_context) check(cuda().cuCtxCreate_v2(&other, 0, 0), "cuCtxCreate");
    CUstream stream = make_stream();
    check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    if (with_context) {
      check(cuda().cuCtxDestroy_v2(other), "cuCtxDestroy");
      check(cuda().cuCtxSetCurrent(primary), "cuCtxSetCurrent");
    } else {
      check(launch(desk.place.kernels.noop, stream), "sim_noop");
      check(cuda().cuStreamDestroy_v2(stream), "cuStreamDestroy");
    }
  }
}

// A capture on a thread's own default stream that ends with the thread.
void capture_and_end_thread(const Desk& desk, CUcontext primary) {
  std::thread([&] {
    check(cuda().cuCtxSetCurrent(primary), "cuCtxSetCurrent");
    check(cuda().cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    check(launch(desk.place.kernels.noop, CU_STREAM_PER_THREAD), "sim_noop");
  }).join();
}

// Memory allocated and freed in the order of another context's stream: the last GPU's.
void use_other_context(CUcontext primary) {
  int count = 0;
  check(cuda().cuDeviceGetCount(&count), "cuDeviceGetCount");
  const CUdevice device = count - 1;
  CUcontext other = nullptr;
  check(cuda().cuCtxCreate_v2(&other, 0, device), "cuCtxCreate");
  Desk desk;
  check(cuda().cuCtxSetCurrent(primary), "cuCtxSetCurrent");
  constexpr size_t kBytes = 4u << 20;
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr memory = 0;
    int ordinal = -1;
    check(cuda().cuMemAllocAsync(&memory, kBytes, desk.place.stream), "cuMemAllocAsync on another context's stream");
    check(cuda().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory), "cuPointerGetAttribute");
    if (ordinal != device) fail(kExitUnexpected, "memory of GPU %d's stream is on GPU %d", device, ordinal);
    check(cuda().cuMemsetD8Async(memory, 1, kBytes, desk.place.stream), "cuMemsetD8Async");
    check(cuda().cuMemFreeAsync(memory, desk.place.stream), "cuMemFreeAsync on another context's stream");
  }
  // Memory of this context, freed in the order of the other's stream, outlives that.
  CUdeviceptr own = 0;
  check(cuda().cuMemAlloc_v2(&own, kBytes), "cuMemAlloc");
  if (device == 0) check(cuda().cuMemFreeAsync(own, desk.place.stream), "cuMemFreeAsync of another context's memory");
  check(cuda().cuCtxDestroy_v2(other), "cuCtxDestroy");
  check(cuda().cuCtxSetCurrent(primary), "cuCtxSetCurrent");
}

}  // namespace

// All of that first; then it works like any other, which needs its drains to end.
void run_streams(const Options& options) {
  CUcontext primary = retain_primary();
  Desk desk;
  auto ballast = filled(desk.place, options.number("hold", 64u << 20), 1);
  ballast->verify_checksum(desk.scratch);
  for (uint64_t round = 0; round < options.number("steps", 3); ++round) free_and_destroy(desk, 4u << 20, 2 * round);
  capture_and_destroy(desk, primary);
  capture_and_end_thread(desk, primary);
  use_other_context(primary);
  say("streams done");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    ballast->mix_slowly(round, 2'000'000);
    ballast->verify_checksum(desk.scratch);
  }
  ballast->verify_bytes();
  release_primary();
}

// --count blocks are freed in the order of a stream that stands still; then memory is allocated 100 times in another's.
void run_pending_frees(const Options& options) {
  retain_primary();
  const CUstream stream = make_stream();
  const CUstream elsewhere = make_stream();
  std::vector<CUdeviceptr> blocks(options.number("count", 500));
  for (CUdeviceptr& block : blocks) check(cuda().cuMemAllocAsync(&block, 4096, stream), "cuMemAllocAsync");
  std::atomic<bool> go{false};
  check(cuda().cuLaunchHostFunc(
            stream,
            [](void* data) {
              while (!static_cast<std::atomic<bool>*>(data)->load()) usleep(100);
            },
            &go),
        "cuLaunchHostFunc");
  for (const CUdeviceptr block : blocks) check(cuda().cuMemFreeAsync(block, stream), "cuMemFreeAsync");
  uint64_t before = 0, after = 0;
  simgpu_control("event_queries", &before);
  std::vector<CUdeviceptr> others(100);
  for (CUdeviceptr& other : others) check(cuda().cuMemAllocAsync(&other, 4096, elsewhere), "cuMemAllocAsync");
  simgpu_control("event_queries", &after);
  std::printf("questions: %llu\n", static_cast<unsigned long long>(after - before));
  go.store(true);
  check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  for (const CUdeviceptr other : others) check(cuda().cuMemFreeAsync(other, elsewhere), "cuMemFreeAsync");
  for (const CUstream each : {stream, elsewhere}) check(cuda().cuStreamDestroy_v2(each), "cuStreamDestroy");
  release_primary();
}

}  // namespace nvshare::e2e
