// What the stand-in's tests share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "simgpu/control.h"
#include "simgpu/driver_calls.h"
#include "simgpu/kernels.h"

namespace simgpu_testing {

using namespace nvshare::cuda;

inline constexpr uint64_t kMiB = 1 << 20;

#define EXPECT_OK(call) EXPECT_EQ(CUDA_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_EQ(CUDA_SUCCESS, call)

inline uint64_t control(const char* command) {
  uint64_t value = 0;
  EXPECT_EQ(0, simgpu_control(command, &value)) << command;
  return value;
}

// A context of its own for each test, so that a broken one harms no other.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(cuInit(0));
    ASSERT_OK(cuCtxCreate_v2(&context, 0, 0));
    ASSERT_OK(cuModuleLoadData(&module, "any image"));
  }
  void TearDown() override {
    simgpu_control("set_faults ", nullptr);
    simgpu_control("allow", nullptr);
    cuCtxDestroy_v2(context);
  }

  CUfunction kernel(const char* name) {
    CUfunction function = nullptr;
    EXPECT_OK(cuModuleGetFunction(&function, module, name));
    return function;
  }
  CUresult launch(const char* name, std::vector<uint64_t> arguments, CUstream stream = nullptr) {
    std::vector<void*> pointers;
    for (uint64_t& argument : arguments) pointers.push_back(&argument);
    return cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, stream, pointers.data(), nullptr);
  }
  CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_OK(cuMemAlloc_v2(&address, bytes));
    return address;
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream created = nullptr;
    EXPECT_OK(cuStreamCreate(&created, flags));
    return created;
  }
  CUevent event() {
    CUevent created = nullptr;
    EXPECT_OK(cuEventCreate(&created, 0));
    return created;
  }
  // The words of device memory, after all work.
  std::vector<uint64_t> read(CUdeviceptr address, size_t words) {
    std::vector<uint64_t> result(words);
    EXPECT_OK(cuMemcpyDtoH_v2(result.data(), address, words * 8));
    return result;
  }
  uint64_t free_bytes() {
    size_t free = 0;
    EXPECT_OK(cuMemGetInfo_v2(&free, nullptr));
    return free;
  }

  static CUmemAllocationProp on_device(bool exportable = false) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return properties;
  }
  CUmemGenericAllocationHandle create(uint64_t bytes, bool exportable = false) {
    const CUmemAllocationProp properties = on_device(exportable);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_OK(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
  }
  CUdeviceptr reserve(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
  }
  void allow_access(CUdeviceptr address, uint64_t bytes) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_OK(cuMemSetAccess(address, bytes, &access, 1));
  }

  CUcontext context = nullptr;
  CUmodule module = nullptr;
};

// Another process: this program again, in a role (test_main.cc). It says a word when it is ready and ends when it is told to.
class Other {
 public:
  explicit Other(const std::string& role, const std::vector<std::string>& settings = {});
  ~Other();
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  // Its next word; empty when it has ended.
  std::string word();
  void tell(const std::string& word);
  void kill_now();  // SIGKILL, not waited for
  int wait();       // the exit status, or minus the signal
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
  int from_ = -1;
  int to_ = -1;
};

// What a role does; the result is its exit status.
using Role = std::function<int()>;
bool add_role(const std::string& name, Role role);
void say(const std::string& word);
std::string hear();

}  // namespace simgpu_testing
