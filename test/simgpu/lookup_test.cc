// Which symbols there are, and how cuGetProcAddress names them.
#include <dlfcn.h>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

struct Entry {
  const char* symbol;
  const char* base;
  int version;
  bool per_thread;
};
constexpr Entry kEntries[] = {
#define SIM_ENTRY(symbol, base, version, per_thread) {#symbol, base, version, per_thread},
#include "simgpu/entry_points.inc"
#undef SIM_ENTRY
};

void* exported(const char* symbol) {
  static void* const kLibrary = dlopen("libcuda.so.1", RTLD_NOW);
  return dlsym(kLibrary, symbol);
}

TEST(Lookup, EveryNameOfTheRealDriverIsExportedAndFound) {
  for (const Entry& entry : kEntries) {
    void* const address = exported(entry.symbol);
    ASSERT_NE(nullptr, address) << entry.symbol;
    if (entry.version == 0) continue;
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    const cuuint64_t flags = entry.per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
    ASSERT_OK(cuGetProcAddress_v2(entry.base, &found, entry.version, flags, &status));
    EXPECT_EQ(address, found) << entry.symbol;
    EXPECT_EQ(CU_GET_PROC_ADDRESS_SUCCESS, status);
  }
}

TEST(Lookup, VersionAndFlagsChooseTheVariant) {
  struct Request {
    const char* name;
    int version;
    cuuint64_t flags;
    const char* symbol;  // null: none
  };
  constexpr Request kRequests[] = {
      {"cuMemAlloc", 13000, 0, "cuMemAlloc_v2"},
      {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
      {"cuMemAlloc", 3010, 0, "cuMemAlloc"},
      {"cuMemAlloc", 13000, 2, "cuMemAlloc_v2"},  // has no per-thread variant
      {"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"},
      {"cuMemcpyHtoDAsync", 13000, 2, "cuMemcpyHtoDAsync_v2_ptsz"},
      {"cuMemcpyHtoDAsync", 13000, 0, "cuMemcpyHtoDAsync_v2"},
      {"cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"},
      {"cuStreamBeginCapture", 10010, 0, "cuStreamBeginCapture_v2"},
      {"cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"},
      {"cuStreamGetCaptureInfo", 13000, 2, "cuStreamGetCaptureInfo_v3_ptsz"},
      {"cuCtxCreate", 13000, 0, "cuCtxCreate_v4"},
      {"cuCtxSynchronize", 12000, 0, "cuCtxSynchronize"},
      {"cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"},
      {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
      {"cuMemAlloc_v2", 13000, 0, nullptr},
      {"cuNoSuchThing", 13000, 0, nullptr},
  };
  for (const Request& request : kRequests) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    ASSERT_OK(cuGetProcAddress_v2(request.name, &found, request.version, request.flags, &status));
    EXPECT_EQ(request.symbol != nullptr ? exported(request.symbol) : nullptr, found) << request.name << " " << request.version;
    EXPECT_EQ(request.symbol != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status) << request.name;
  }
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  ASSERT_OK(cuGetProcAddress_v2("cuMemCreate", &found, 9000, 0, &status));
  EXPECT_EQ(nullptr, found);
  EXPECT_EQ(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &found, 13000, 0));
}

TEST(Lookup, WhatIsMissingFailsByName) {
  using Missing = int (*)();
  testing::internal::CaptureStderr();
  const auto missing = reinterpret_cast<Missing>(exported("cuMulticastCreate"));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, missing());
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, missing());
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(std::string::npos, told.find("cuMulticastCreate"));
  EXPECT_EQ(told.find("simgpu:"), told.rfind("simgpu:")) << "said more than once";
}

TEST_F(GpuTest, ArgumentsAsABuffer) {
  const CUdeviceptr memory = allocate(80);
  uint64_t buffer[] = {memory, 10, 3};
  size_t size = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  ASSERT_OK(cuLaunchKernel(kernel("sim_fill"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(simgpu::fill_word(3, 9), read(memory, 10)[9]);
  CUfunction none = nullptr;
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&none, module, "no such kernel"));
}

TEST_F(GpuTest, ContextStack) {
  CUcontext current = nullptr;
  CUcontext second = nullptr;
  ASSERT_OK(cuCtxCreate_v2(&second, 0, 0));
  ASSERT_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(second, current);
  ASSERT_OK(cuCtxPopCurrent_v2(&current));
  EXPECT_EQ(second, current);
  ASSERT_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(context, current);
  ASSERT_OK(cuCtxDestroy_v2(second));
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(second));
}

TEST_F(GpuTest, PrimaryContextIsCountedAndKeepsItsHandle) {
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  unsigned flags = 0;
  int active = 1;
  const uint64_t before = free_bytes();
  ASSERT_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(0, active);
  ASSERT_OK(cuDevicePrimaryCtxRetain(&first, 0));
  ASSERT_OK(cuDevicePrimaryCtxRetain(&second, 0));
  EXPECT_EQ(first, second);
  EXPECT_EQ(before - 4 * kMiB, free_bytes());
  ASSERT_OK(cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(before - 4 * kMiB, free_bytes());
  ASSERT_OK(cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
  ASSERT_OK(cuDevicePrimaryCtxRetain(&second, 0));
  EXPECT_EQ(first, second);
  ASSERT_OK(cuDevicePrimaryCtxReset_v2(0));
  EXPECT_EQ(before, free_bytes());
}

}  // namespace
}  // namespace simgpu_testing
