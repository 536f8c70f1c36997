// Arrays, memory nodes of graphs, and memory that the driver takes for itself.
#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

class MemoryKinds : public GpuTest {
 protected:
  static CUDA_MEM_ALLOC_NODE_PARAMS allocation(uint64_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    params.bytesize = bytes;
    return params;
  }
  static uint64_t graph_memory(CUgraphMem_attribute attribute) {
    cuuint64_t value = 0;
    EXPECT_OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
  }
};

TEST_F(MemoryKinds, ArraysTakeMemoryAndDeferredOnesNone) {
  const uint64_t before = free_bytes();
  CUDA_ARRAY3D_DESCRIPTOR shape{256, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUarray array = nullptr;
  ASSERT_OK(cuArray3DCreate_v2(&array, &shape));
  EXPECT_EQ(before - 4 * kMiB, free_bytes());
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&needs, array, 0));
  ASSERT_OK(cuArrayDestroy(array));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
  EXPECT_EQ(before, free_bytes());
  shape.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
  ASSERT_OK(cuArray3DCreate_v2(&array, &shape));
  EXPECT_EQ(before, free_bytes());
  ASSERT_OK(cuArrayGetMemoryRequirements(&needs, array, 0));
  EXPECT_EQ(4 * kMiB, needs.size);
  ASSERT_OK(cuArrayDestroy(array));
}

TEST_F(MemoryKinds, MipmappedArraysHaveTheirLevels) {
  const uint64_t before = free_bytes();
  const CUDA_ARRAY3D_DESCRIPTOR shape{256, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray array = nullptr;
  ASSERT_OK(cuMipmappedArrayCreate(&array, &shape, 2));
  EXPECT_EQ(before - 6 * kMiB, free_bytes());  // 4 + 1, in pages of 2
  CUarray level = nullptr;
  ASSERT_OK(cuMipmappedArrayGetLevel(&level, array, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, array, 2));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
  ASSERT_OK(cuMipmappedArrayDestroy(array));
  EXPECT_EQ(before, free_bytes());
}

TEST_F(MemoryKinds, GraphsTakeMemoryAtTheirFirstLaunchAndKeepItUntilTrimmed) {
  const uint64_t before = free_bytes();
  CUgraph graph = nullptr;
  ASSERT_OK(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(8 * kMiB);
  CUgraphNode made = nullptr;
  CUgraphNode freed = nullptr;
  ASSERT_OK(cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &params));
  ASSERT_OK(cuGraphAddMemFreeNode(&freed, graph, &made, 1, params.dptr));
  CUDA_MEM_ALLOC_NODE_PARAMS told{};
  ASSERT_OK(cuGraphMemAllocNodeGetParams(made, &told));
  EXPECT_EQ(8 * kMiB, told.bytesize);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphMemAllocNodeGetParams(freed, &told));
  CUgraphExec executable = nullptr;
  ASSERT_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  EXPECT_EQ(before, free_bytes());
  const CUstream own = stream();
  for (int i = 0; i < 3; ++i) ASSERT_OK(cuGraphLaunch(executable, own));
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(before - 8 * kMiB, free_bytes());
  EXPECT_EQ(0u, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  EXPECT_EQ(8 * kMiB, graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
  ASSERT_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(8 * kMiB, graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
  ASSERT_OK(cuGraphLaunch(executable, own));
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(before - 8 * kMiB, free_bytes());
  const CUdeviceptr hog = allocate(free_bytes());
  ASSERT_OK(cuDeviceGraphMemTrim(0));
  allocate(8 * kMiB);
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(executable, own));
  ASSERT_OK(cuMemFree_v2(hog));
  EXPECT_OK(cuGraphExecDestroy(executable));
  EXPECT_OK(cuGraphDestroy(graph));
}

TEST_F(MemoryKinds, CapturedAllocationsLiveOnUntilTheyAreFreed) {
  const CUstream own = stream();
  ASSERT_OK(cuStreamBeginCapture_v2(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr memory = 0;
  ASSERT_OK(cuMemAllocAsync(&memory, 4 * kMiB, own));
  ASSERT_OK(launch("sim_fill", {memory, 1000, 7}, own));
  CUgraph graph = nullptr;
  ASSERT_OK(cuStreamEndCapture(own, &graph));
  CUgraphExec executable = nullptr;
  ASSERT_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(cuGraphLaunch(executable, own));
    ASSERT_OK(cuStreamSynchronize(own));
    EXPECT_EQ(simgpu::fill_word(7, 3), read(memory + 24, 1)[0]);
    ASSERT_OK(cuDeviceGraphMemTrim(0));  // in use: stays
    EXPECT_EQ(simgpu::fill_word(7, 3), read(memory + 24, 1)[0]);
    ASSERT_OK(cuMemFreeAsync(memory, own));
  }
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(0u, graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
  EXPECT_OK(cuGraphExecDestroy(executable));
  EXPECT_OK(cuGraphDestroy(graph));
}

TEST_F(MemoryKinds, TheDriverItselfRunsOutOfMemory) {
  const CUfunction noop = kernel("sim_noop");
  ASSERT_EQ(0, simgpu_control("set_faults driver_oom:1", nullptr));
  CUmodule other = nullptr;
  CUstream made = nullptr;
  CUevent event = nullptr;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&other, "any image"));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuStreamCreate(&made, 0));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuEventCreate(&event, 0));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuLaunchKernel(noop, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  ASSERT_EQ(0, simgpu_control("set_faults ", nullptr));
  EXPECT_OK(cuLaunchKernel(noop, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

}  // namespace
}  // namespace simgpu_testing
