// Injected faults.
#include <chrono>
#include <thread>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

void set_faults(const char* list) { ASSERT_EQ(0, simgpu_control((std::string("set_faults ") + list).c_str(), nullptr)) << list; }

class Fault : public GpuTest {};

TEST_F(Fault, UnknownOneIsRefused) { EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, simgpu_control("set_faults nonsense:1", nullptr)); }

TEST_F(Fault, OutOfMemory) {
  set_faults("alloc_oom:1,create_oom:1,register_fail:1");
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 8));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&address, 8, CU_MEM_ATTACH_GLOBAL));
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  void* host = nullptr;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&host, 8, 0));
  set_faults("");
  EXPECT_OK(cuMemAlloc_v2(&address, 8));
}

TEST_F(Fault, MomentAfterARelease) {
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = create(2 * kMiB);
  set_faults("create_oom_moment:300");
  ASSERT_OK(cuMemRelease(handle));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (int i = 0; i < 100 && result != CUDA_SUCCESS; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    result = cuMemCreate(&handle, 2 * kMiB, &properties, 0);
  }
  ASSERT_OK(result);
  ASSERT_OK(cuMemRelease(handle));
}

TEST_F(Fault, CopyIsRefusedAndDoesNothing) {
  const CUdeviceptr memory = allocate(8);
  ASSERT_OK(cuMemsetD8_v2(memory, 1, 8));
  uint64_t host = 7;
  set_faults("copy_fail:1");
  EXPECT_EQ(CUDA_ERROR_UNKNOWN, cuMemcpyHtoD_v2(memory, &host, 8));
  set_faults("");
  EXPECT_EQ(0x0101010101010101u, read(memory, 1)[0]);
}

TEST_F(Fault, HungKernelGoesOnLater) {
  const CUstream own = stream();
  set_faults("hang_kernel");
  ASSERT_OK(launch("sim_spin", {1000}, own));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(own));
  set_faults("");
  EXPECT_OK(cuStreamSynchronize(own));
}

TEST_F(Fault, LostDevice) {
  const CUfunction noop = kernel("sim_noop");
  set_faults("device_lost");
  EXPECT_EQ(CUDA_ERROR_UNKNOWN, cuCtxSynchronize());
  EXPECT_EQ(CUDA_ERROR_UNKNOWN, cuLaunchKernel(noop, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  set_faults("");
  EXPECT_OK(cuCtxSynchronize());
}

}  // namespace
}  // namespace simgpu_testing
