// Several processes on one device, and NVML's view of them.
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "simgpu/testing.h"

extern "C" {
int nvmlInit_v2();
int nvmlShutdown();
int nvmlDeviceGetHandleByIndex_v2(unsigned, void**);
int nvmlDeviceGetHandleByUUID(const char*, void**);
int nvmlDeviceGetUUID(void*, char*, unsigned);
int nvmlDeviceGetMemoryInfo(void*, void*);
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned*, void*);
}

namespace simgpu_testing {
namespace {

class Processes : public GpuTest {
 protected:
  // Waits for the memory to be there again; the kernel takes its time to end a process.
  bool comes_back(uint64_t bytes) {
    for (int i = 0; i < 1000 && free_bytes() < bytes; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return free_bytes() == bytes;
  }
};

// Holds 20 MiB, says so, and does what it is told to.
int hold() {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS || cuMemAlloc_v2(&memory, 20 * kMiB) != CUDA_SUCCESS)
    return 1;
  say("holding");
  hear();
  return 0;
}
const bool kHold = add_role("hold", hold);

// Tries to get more than is left while another process holds some, then again when told.
int want() {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
  CUdeviceptr memory = 0;
  do {
    say(cuMemAlloc_v2(&memory, 50 * kMiB) == CUDA_SUCCESS ? "got it" : "no");
  } while (hear() == "again");
  return 0;
}
const bool kWant = add_role("want", want);

// Keeps the engine busy until it is killed, and the shared lock with it.
int churn() {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
  say("churning");
  while (true) {
    CUdeviceptr memory = 0;
    if (cuMemAlloc_v2(&memory, 2 * kMiB) == CUDA_SUCCESS) cuMemFree_v2(memory);
  }
}
const bool kChurn = add_role("churn", churn);

int use_managed() {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
  if (cuMemAllocManaged(&memory, 40 * kMiB, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) return 2;
  cuModuleLoadData(&module, "");
  cuModuleGetFunction(&fill, module, "sim_fill");
  uint64_t words = 40 * kMiB / 8;
  uint64_t seed = 3;
  void* arguments[] = {&memory, &words, &seed};
  cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  if (cuCtxSynchronize() != CUDA_SUCCESS) return 3;
  say("filled");
  hear();
  return *reinterpret_cast<uint64_t*>(memory) == simgpu::fill_word(3, 0) ? 0 : 4;
}
const bool kManaged = add_role("managed", use_managed);

TEST_F(Processes, ShareCapacity) {
  const CUdeviceptr mine = allocate(20 * kMiB);
  Other other("want");
  EXPECT_EQ("no", other.word());
  ASSERT_OK(cuMemFree_v2(mine));
  other.tell("again");
  EXPECT_EQ("got it", other.word());
  CUdeviceptr memory = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&memory, 20 * kMiB));
  other.tell("end");
  EXPECT_EQ(0, other.wait());
  EXPECT_TRUE(comes_back(60 * kMiB));
}

TEST_F(Processes, KilledOneGivesItsMemoryBack) {
  Other other("hold");
  ASSERT_EQ("holding", other.word());
  EXPECT_EQ(36 * kMiB, free_bytes());
  other.kill_now();
  EXPECT_TRUE(comes_back(60 * kMiB)) << "also while it is a zombie";
  EXPECT_EQ(-SIGKILL, other.wait());
}

TEST_F(Processes, KilledHoldersOfTheLockHarmNobody) {
  for (int i = 0; i < 10; ++i) {
    Other other("churn");
    ASSERT_EQ("churning", other.word());
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + i));
    other.kill_now();
    other.wait();
    ASSERT_TRUE(comes_back(60 * kMiB));
  }
}

TEST_F(Processes, ManagedPagesAreEvictedAcrossProcesses) {
  Other other("managed");
  ASSERT_EQ("filled", other.word());
  EXPECT_EQ(16 * kMiB, free_bytes());
  const CUdeviceptr memory = allocate(50 * kMiB);
  EXPECT_EQ(0u, free_bytes());  // no more is evicted than must be
  other.tell("check");
  EXPECT_EQ(0, other.wait());
  ASSERT_OK(cuMemFree_v2(memory));
}

TEST_F(Processes, ForkedChildMustNotCall) {
  const int child = fork();
  if (child == 0) {
    CUdeviceptr memory = 0;
    const bool refused = cuMemAlloc_v2(&memory, 8) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, WEXITSTATUS(status));
  EXPECT_OK(cuCtxSynchronize());
}

TEST_F(Processes, NvmlSeesThem) {
  struct {
    unsigned long long total, free, used;
  } memory{};
  struct ProcessInfo {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  };
  void* device = nullptr;
  EXPECT_NE(0, nvmlDeviceGetHandleByIndex_v2(0, &device));  // not initialised
  ASSERT_EQ(0, nvmlInit_v2());
  ASSERT_EQ(0, nvmlDeviceGetHandleByIndex_v2(0, &device));
  char uuid[64] = {};
  ASSERT_EQ(0, nvmlDeviceGetUUID(device, uuid, sizeof uuid));
  void* same = nullptr;
  ASSERT_EQ(0, nvmlDeviceGetHandleByUUID(uuid, &same));
  EXPECT_EQ(device, same);
  CUuuid raw{};
  ASSERT_OK(cuDeviceGetUuid_v2(&raw, 0));
  char first[3];
  std::snprintf(first, sizeof first, "%02x", static_cast<unsigned char>(raw.bytes[0]));
  EXPECT_EQ(std::string(uuid).substr(0, 6), std::string("GPU-") + first);

  Other other("hold");
  ASSERT_EQ("holding", other.word());
  ASSERT_EQ(0, nvmlDeviceGetMemoryInfo(device, &memory));
  EXPECT_EQ(64 * kMiB, memory.total);
  EXPECT_EQ(28 * kMiB, memory.used);
  unsigned count = 1;
  ProcessInfo processes[8];
  EXPECT_EQ(7, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes));
  ASSERT_EQ(2u, count);
  ASSERT_EQ(0, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes));
  for (unsigned i = 0; i < count; ++i) {
    const bool mine = static_cast<int>(processes[i].pid) == getpid();
    EXPECT_TRUE(mine || static_cast<int>(processes[i].pid) == other.pid());
    EXPECT_EQ(mine ? 4 * kMiB : 24 * kMiB, processes[i].used);
  }
  ASSERT_EQ(0, nvmlShutdown());
}

TEST_F(Processes, SaturatingNeighboursTakeTwiceAsLong) {
  const CUstream own = stream();
  const uint64_t before = control("compute_busy_ns");
  for (int i = 0; i < 10; ++i) ASSERT_OK(launch("sim_spin", {10000000}, own));
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_GE(control("compute_busy_ns") - before, 100000000u);
}

}  // namespace
}  // namespace simgpu_testing
