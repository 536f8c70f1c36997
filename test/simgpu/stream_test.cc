// Streams, events and the order that they promise.
#include <atomic>
#include <chrono>
#include <thread>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

constexpr uint64_t kWhileNs = 40000000;

class Stream : public GpuTest {};

TEST_F(Stream, RunsInOrder) {
  const CUdeviceptr memory = allocate(8000);
  const CUstream own = stream();
  uint64_t expected = simgpu::fill_word(5, 3);
  ASSERT_OK(launch("sim_fill", {memory, 1000, 5}, own));
  for (uint64_t round = 0; round < 50; ++round) {
    ASSERT_OK(launch("sim_mix", {memory, 1000, round}, own));
    expected = simgpu::mix_word(expected, round);
  }
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(expected, read(memory, 4)[3]);
}

TEST_F(Stream, LegacyStreamWaitsForBlockingOnesAndTheyForIt) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  const CUstream apart = stream();
  ASSERT_OK(launch("sim_spin", {kWhileNs}, blocking));
  ASSERT_OK(launch("sim_noop", {}));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  EXPECT_OK(cuStreamQuery(apart));
  ASSERT_OK(cuStreamSynchronize(nullptr));
  EXPECT_OK(cuStreamQuery(blocking));

  ASSERT_OK(launch("sim_spin", {kWhileNs}));
  ASSERT_OK(launch("sim_noop", {}, blocking));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
  ASSERT_OK(launch("sim_noop", {}, apart));
  EXPECT_OK(cuStreamSynchronize(blocking));
  EXPECT_OK(cuStreamQuery(CU_STREAM_LEGACY));
}

TEST_F(Stream, EachThreadHasADefaultStreamOfItsOwn) {
  unsigned long long ids[2] = {};
  ASSERT_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[0]));
  std::thread([&] {
    EXPECT_OK(cuCtxSetCurrent(context));
    EXPECT_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[1]));
    EXPECT_OK(launch("sim_spin", {1000}, CU_STREAM_PER_THREAD));
  }).join();
  EXPECT_NE(ids[0], ids[1]);
  unsigned long long legacy = 0;
  unsigned long long null_per_thread = 0;
  ASSERT_OK(cuStreamGetId(nullptr, &legacy));
  ASSERT_OK(cuStreamGetId_ptsz(nullptr, &null_per_thread));
  EXPECT_NE(legacy, ids[0]);
  EXPECT_EQ(null_per_thread, ids[0]);
}

TEST_F(Stream, EventsOrderStreams) {
  const CUdeviceptr memory = allocate(800);
  const CUstream first = stream();
  const CUstream second = stream();
  const CUevent filled = event();
  EXPECT_OK(cuEventQuery(filled));  // never recorded
  ASSERT_OK(launch("sim_spin", {kWhileNs}, first));
  ASSERT_OK(launch("sim_fill", {memory, 100, 1}, first));
  ASSERT_OK(cuEventRecord(filled, first));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(filled));
  ASSERT_OK(cuStreamWaitEvent(second, filled, 0));
  ASSERT_OK(launch("sim_mix", {memory, 100, 9}, second));
  ASSERT_OK(cuStreamSynchronize(second));
  EXPECT_OK(cuEventSynchronize(filled));
  EXPECT_EQ(simgpu::mix_word(simgpu::fill_word(1, 0), 9), read(memory, 1)[0]);
}

TEST_F(Stream, EventsMeasureSimulatedTime) {
  const CUstream own = stream();
  const CUevent start = event();
  const CUevent end = event();
  ASSERT_OK(cuEventRecord(start, own));
  ASSERT_OK(launch("sim_spin", {kWhileNs}, own));
  ASSERT_OK(cuEventRecord(end, own));
  float milliseconds = 0;
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, start, end));
  ASSERT_OK(cuEventSynchronize(end));
  ASSERT_OK(cuEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 39.9F);
  EXPECT_OK(cuEventDestroy_v2(start));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(start, own));
}

TEST_F(Stream, HostFunctionsRunInOrder) {
  const CUdeviceptr memory = allocate(8);
  const CUstream own = stream();
  void* pinned = nullptr;
  ASSERT_OK(cuMemAllocHost_v2(&pinned, 8));
  struct Seen {
    uint64_t* value;
    uint64_t copy;
  } seen{static_cast<uint64_t*>(pinned), 0};
  ASSERT_OK(launch("sim_fill", {memory, 1, 4}, own));
  ASSERT_OK(cuMemcpyDtoHAsync_v2(pinned, memory, 8, own));
  ASSERT_OK(cuLaunchHostFunc(
      own, [](void* data) { static_cast<Seen*>(data)->copy = *static_cast<Seen*>(data)->value; }, &seen));
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(simgpu::fill_word(4, 0), seen.copy);
}

TEST_F(Stream, CallbackHearsOfTheError) {
  const CUstream own = stream();
  std::atomic<int> heard{-1};
  const CUdeviceptr nothing = reserve(2 * kMiB);
  ASSERT_OK(launch("sim_spin", {kWhileNs}, own));
  ASSERT_OK(launch("sim_fill", {nothing, 1, 1}, own));
  ASSERT_OK(cuStreamAddCallback(
      own, [](CUstream, CUresult status, void* data) { static_cast<std::atomic<int>*>(data)->store(status); }, &heard, 0));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(own));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, heard.load());
}

TEST_F(Stream, DestroyedStreamFinishesItsWork) {
  const CUdeviceptr memory = allocate(8);
  const CUstream own = stream();
  ASSERT_OK(launch("sim_spin", {kWhileNs}, own));
  ASSERT_OK(launch("sim_fill", {memory, 1, 4}, own));
  const CUevent end = event();
  ASSERT_OK(cuEventRecord(end, own));
  ASSERT_OK(cuStreamDestroy_v2(own));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(own));
  ASSERT_OK(cuEventSynchronize(end));
  EXPECT_EQ(simgpu::fill_word(4, 0), read(memory, 1)[0]);
}

// Whoever remembers something by a stream's handle meets another stream.
TEST_F(Stream, HandleIsGivenOutAgainWhileTheOldWorkGoesOn) {
  const CUdeviceptr memory = allocate(8);
  const CUstream old = stream();
  ASSERT_OK(launch("sim_spin", {kWhileNs}, old));
  ASSERT_OK(launch("sim_fill", {memory, 1, 4}, old));
  ASSERT_OK(cuStreamDestroy_v2(old));
  const CUstream other = stream();
  EXPECT_EQ(old, other);
  EXPECT_OK(cuStreamQuery(other));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(simgpu::fill_word(4, 0), read(memory, 1)[0]);
}

TEST_F(Stream, SubmissionIsBoundedByTheQueue) {
  const CUstream own = stream();
  ASSERT_OK(launch("sim_spin", {20000000}, own));
  for (int i = 0; i < 3000; ++i) ASSERT_OK(launch("sim_spin", {100}, own));
  EXPECT_OK(cuStreamSynchronize(own));
}

TEST_F(Stream, SubmissionsAreCountedAndLateOnesFound) {
  const CUdeviceptr memory = allocate(8);
  const uint64_t submissions = control("submissions");
  const uint64_t violations = control("violations");
  ASSERT_OK(launch("sim_noop", {}));
  ASSERT_OK(cuMemsetD8_v2(memory, 0, 8));
  EXPECT_EQ(submissions + 2, control("submissions"));
  ASSERT_EQ(0, simgpu_control("forbid_kernels", nullptr));
  ASSERT_OK(cuMemsetD8_v2(memory, 0, 8));
  EXPECT_EQ(violations, control("violations"));
  ASSERT_OK(launch("sim_noop", {}));
  EXPECT_EQ(violations + 1, control("violations"));
  ASSERT_EQ(0, simgpu_control("forbid_submissions", nullptr));
  ASSERT_OK(cuMemsetD8_v2(memory, 0, 8));
  ASSERT_OK(cuEventRecord(event(), nullptr));
  EXPECT_EQ(violations + 2, control("violations"));
  EXPECT_EQ(500, simgpu_control("no such command", nullptr));
}

TEST_F(Stream, ManyThreadsOnTheirOwnStreams) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&, seed] {
      cuCtxSetCurrent(context);
      const CUdeviceptr memory = allocate(8000);
      const CUstream own = stream();
      uint64_t expected = simgpu::fill_word(seed, 999);
      launch("sim_fill", {memory, 1000, seed}, own);
      for (uint64_t round = 0; round < 100; ++round) {
        launch("sim_mix", {memory, 1000, round}, own);
        expected = simgpu::mix_word(expected, round);
        if (round % 10 == 0) cuStreamSynchronize(own);
      }
      cuStreamSynchronize(own);
      if (read(memory, 1000)[999] != expected) ++wrong;
      cuStreamDestroy_v2(own);
      cuMemFree_v2(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0, wrong.load());
}

}  // namespace
}  // namespace simgpu_testing
