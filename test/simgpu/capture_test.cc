// Stream capture and graphs. What a helper thread may do meanwhile is as measured on a driver 580 (bench/results/h200-probe.json).
#include <thread>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

class Capture : public GpuTest {
 protected:
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec executable = nullptr;
    EXPECT_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
  }
};

TEST_F(Capture, RecordsAndReplays) {
  const CUdeviceptr memory = allocate(800);
  const CUstream own = stream();
  void* pinned = nullptr;
  ASSERT_OK(cuMemAllocHost_v2(&pinned, 8));
  *static_cast<uint64_t*>(pinned) = 0;
  ASSERT_OK(cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureStatus status{};
  ASSERT_OK(cuStreamIsCapturing(own, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
  ASSERT_OK(cuMemsetD8Async(memory, 0, 800, own));
  ASSERT_OK(launch("sim_mix", {memory, 100, 1}, own));
  ASSERT_OK(cuMemcpyDtoHAsync_v2(pinned, memory, 8, own));
  CUgraph graph = nullptr;
  ASSERT_OK(cuStreamEndCapture(own, &graph));
  size_t count = 0;
  ASSERT_OK(cuGraphGetNodes(graph, nullptr, &count));
  EXPECT_EQ(3u, count);
  EXPECT_EQ(0u, *static_cast<uint64_t*>(pinned));
  const CUgraphExec executable = instantiate(graph);
  ASSERT_OK(cuGraphDestroy(graph));
  for (int i = 0; i < 3; ++i) ASSERT_OK(cuGraphLaunch(executable, own));
  ASSERT_OK(cuGraphExecDestroy(executable));
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(simgpu::mix_word(0, 1), *static_cast<uint64_t*>(pinned));
}

TEST_F(Capture, ForksAndJoinsByEvents) {
  const CUdeviceptr memory = allocate(800);
  const CUstream origin = stream();
  const CUstream branch = stream();
  const CUevent fork = event();
  const CUevent join = event();
  ASSERT_OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(launch("sim_fill", {memory, 50, 1}, origin));
  ASSERT_OK(cuEventRecord(fork, origin));
  ASSERT_OK(cuStreamWaitEvent(branch, fork, 0));
  ASSERT_OK(launch("sim_mix", {memory, 50, 2}, branch));
  ASSERT_OK(cuEventRecord(join, branch));
  ASSERT_OK(cuStreamWaitEvent(origin, join, 0));
  ASSERT_OK(launch("sim_mix", {memory, 50, 3}, origin));
  CUgraph graph = nullptr;
  ASSERT_OK(cuStreamEndCapture(origin, &graph));
  CUstreamCaptureStatus status{};
  ASSERT_OK(cuStreamIsCapturing(branch, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status);
  ASSERT_OK(cuGraphLaunch(instantiate(graph), origin));
  ASSERT_OK(cuStreamSynchronize(origin));
  EXPECT_EQ(simgpu::mix_word(simgpu::mix_word(simgpu::fill_word(1, 0), 2), 3), read(memory, 1)[0]);
}

TEST_F(Capture, UnjoinedBranchFails) {
  const CUstream origin = stream();
  const CUstream branch = stream();
  const CUevent fork = event();
  ASSERT_OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(cuEventRecord(fork, origin));
  ASSERT_OK(cuStreamWaitEvent(branch, fork, 0));
  ASSERT_OK(launch("sim_noop", {}, branch));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(origin, &graph));
  EXPECT_EQ(nullptr, graph);
}

TEST_F(Capture, OnlyItsThreadEndsIt) {
  const CUstream own = stream();
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(own, &graph));
  ASSERT_OK(cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
  std::thread([&] { EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(own, &graph)); }).join();
  EXPECT_OK(cuStreamEndCapture(own, &graph));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

TEST_F(Capture, LegacyStreamMeetsABlockingCapture) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  ASSERT_OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, launch("sim_noop", {}));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
}

TEST_F(Capture, MemoryMayMoveUnderIt) {
  const CUdeviceptr address = reserve(2 * kMiB);
  CUmemGenericAllocationHandle handle = create(2 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, handle, 0));
  allow_access(address, 2 * kMiB);
  const CUstream own = stream();
  ASSERT_OK(cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(launch("sim_fill", {address, 10, 6}, own));
  std::thread([&] {
    ASSERT_OK(cuMemUnmap(address, 2 * kMiB));
    ASSERT_OK(cuMemRelease(handle));
    handle = create(2 * kMiB);
    ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, handle, 0));
    allow_access(address, 2 * kMiB);
  }).join();
  CUgraph graph = nullptr;
  ASSERT_OK(cuStreamEndCapture(own, &graph));
  ASSERT_OK(cuGraphLaunch(instantiate(graph), own));
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(simgpu::fill_word(6, 0), read(address, 1)[0]);
  ASSERT_OK(cuMemUnmap(address, 2 * kMiB));
  ASSERT_OK(cuMemRelease(handle));
}

// mode of the capture; mode of the helper's thread; what it does; what it gets. On anything but success the capture is ruined.
struct Meeting {
  const char* name;
  CUstreamCaptureMode capture;
  CUstreamCaptureMode helper;
  int step;
  CUresult result;
};
enum Step { kOwnSynchronize, kOwnRecord, kOwnEventWait, kAllocate, kCapturingQuery, kContextSynchronize, kIsCapturing, kOwnLaunch };

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
constexpr auto kRefused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
constexpr Meeting kMeetings[] = {
    {"global_relaxed_synchronize", kGlobal, kRelaxed, kOwnSynchronize, CUDA_SUCCESS},
    {"global_relaxed_record", kGlobal, kRelaxed, kOwnRecord, CUDA_SUCCESS},
    {"global_relaxed_allocate", kGlobal, kRelaxed, kAllocate, CUDA_SUCCESS},
    {"global_relaxed_is_capturing", kGlobal, kRelaxed, kIsCapturing, CUDA_SUCCESS},
    {"global_relaxed_query_capturing", kGlobal, kRelaxed, kCapturingQuery, kRefused},
    {"global_relaxed_context", kGlobal, kRelaxed, kContextSynchronize, kRefused},
    {"relaxed_relaxed_query_capturing", kRelaxed, kRelaxed, kCapturingQuery, kRefused},
    {"relaxed_relaxed_context", kRelaxed, kRelaxed, kContextSynchronize, kRefused},
    {"relaxed_global_context", kRelaxed, kGlobal, kContextSynchronize, kRefused},
    {"local_relaxed_context", kLocal, kRelaxed, kContextSynchronize, kRefused},
    {"global_global_synchronize", kGlobal, kGlobal, kOwnSynchronize, kRefused},
    {"global_global_event_wait", kGlobal, kGlobal, kOwnEventWait, kRefused},
    {"global_global_allocate", kGlobal, kGlobal, kAllocate, kRefused},
    {"global_global_launch", kGlobal, kGlobal, kOwnLaunch, CUDA_SUCCESS},
    {"global_local_synchronize", kGlobal, kLocal, kOwnSynchronize, CUDA_SUCCESS},
    {"local_global_synchronize", kLocal, kGlobal, kOwnSynchronize, CUDA_SUCCESS},
    {"relaxed_global_allocate", kRelaxed, kGlobal, kAllocate, CUDA_SUCCESS},
};

class CaptureMeets : public GpuTest, public testing::WithParamInterface<Meeting> {};

TEST_P(CaptureMeets, HelperThread) {
  const Meeting& meeting = GetParam();
  const CUstream capturing = stream();
  const CUstream own = stream();
  const CUevent mark = event();
  ASSERT_OK(cuStreamBeginCapture_v2(capturing, meeting.capture));
  ASSERT_OK(launch("sim_noop", {}, capturing));
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    cuCtxSetCurrent(context);
    CUstreamCaptureMode mode = meeting.helper;
    EXPECT_OK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(kGlobal, mode);  // what a thread starts with
    CUdeviceptr memory = 0;
    CUstreamCaptureStatus status{};
    switch (static_cast<Step>(meeting.step)) {
      case kOwnSynchronize:
        result = cuStreamSynchronize(own);
        break;
      case kOwnRecord:
        result = cuEventRecord(mark, own);
        break;
      case kOwnEventWait:
        cuEventRecord(mark, own);
        result = cuEventSynchronize(mark);
        break;
      case kAllocate:
        result = cuMemAlloc_v2(&memory, 8);
        break;
      case kCapturingQuery:
        result = cuStreamQuery(capturing);
        break;
      case kContextSynchronize:
        result = cuCtxSynchronize();
        break;
      case kIsCapturing:
        result = cuStreamIsCapturing(capturing, &status);
        break;
      case kOwnLaunch:
        result = launch("sim_noop", {}, own);
        break;
    }
  }).join();
  EXPECT_EQ(meeting.result, result);
  const bool survives = meeting.result == CUDA_SUCCESS;
  EXPECT_EQ(survives ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch("sim_noop", {}, capturing));
  CUgraph graph = nullptr;
  EXPECT_EQ(survives ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(capturing, &graph));
}

INSTANTIATE_TEST_SUITE_P(All, CaptureMeets, testing::ValuesIn(kMeetings), [](const auto& each) { return each.param.name; });

// A blocking copy or fill goes on beside a capture that does not wait for the legacy stream, whatever its mode (an H200).
TEST_F(Capture, BlockingCopiesAreInTheWayOfBlockingStreamsOnly) {
  CUdeviceptr memory = 0;
  ASSERT_OK(cuMemAlloc_v2(&memory, 4096));
  const std::vector<char> host(4096);
  for (const CUstreamCaptureMode mode : {kGlobal, kLocal, kRelaxed}) {
    for (const unsigned flags : {0U, static_cast<unsigned>(CU_STREAM_NON_BLOCKING)}) {
      const auto calls = {+[](CUdeviceptr to, const void* from) { return cuMemcpyHtoD_v2(to, from, 4096); },
                          +[](CUdeviceptr to, const void*) { return cuMemsetD8_v2(to, 1, 4096); },
                          +[](CUdeviceptr to, const void*) { return cuMemsetD2D8_v2(to, 64, 1, 32, 8); }};
      for (const auto call : calls) {
        CUstream capturing = nullptr;
        ASSERT_OK(cuStreamCreate(&capturing, flags));
        ASSERT_OK(cuStreamBeginCapture_v2(capturing, mode));
        EXPECT_EQ(flags != 0 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, call(memory, host.data()));
        CUgraph graph = nullptr;
        EXPECT_EQ(flags != 0 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(capturing, &graph));
        ASSERT_OK(cuStreamDestroy_v2(capturing));
      }
    }
  }
  ASSERT_OK(cuMemFree_v2(memory));
}

TEST_F(Capture, EventOfACaptureIsNotForTheHost) {
  const CUstream own = stream();
  const CUevent mark = event();
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_OK(cuThreadExchangeStreamCaptureMode(&relaxed));
  ASSERT_OK(cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(cuEventRecord(mark, own));
  EXPECT_EQ(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(mark));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(own, &graph));
  ASSERT_OK(cuThreadExchangeStreamCaptureMode(&relaxed));
}

TEST_F(Capture, EndsWithTheStreamThatItBeganOn) {
  const CUstream own = stream();
  ASSERT_OK(cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
  ASSERT_OK(cuStreamDestroy_v2(own));
  EXPECT_OK(cuCtxSynchronize());
}

}  // namespace
}  // namespace simgpu_testing
