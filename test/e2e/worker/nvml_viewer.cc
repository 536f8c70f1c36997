// What NVML says of GPU 0, as programs like nvidia-smi ask it: libnvidia-ml.so.1 opened with dlopen, or linked (NVML_LINKED). Without CUDA,
// or, with the argument --cuda BYTES, from a program that has a context and so much memory there. Prints one line per answer.
#include <dlfcn.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda/driver_api.h"
#include "cuda/nvml_api.h"

namespace {

using namespace nvshare::cuda;
using namespace nvshare::cuda::nvml;

[[noreturn]] void fail(const char* what, int result) {
  std::printf("%s: %d\n", what, result);
  std::exit(1);
}

void* open(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(dlerror(), 0);
  return handle;
}

template <typename Function>
Function* look_up(void* handle, const char* name) {
  void* found = dlsym(handle, name);
  if (found == nullptr) fail(name, 0);
  return reinterpret_cast<Function*>(found);
}

#ifdef NVML_LINKED
extern "C" {
Return nvmlInit_v2();
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* out);
}
// As a program that was linked with -lnvidia-ml calls it.
#define NVML(name) (&nvml::api::name)
#define NVML_OTHER(name, type) (&name)
#else
#define NVML(name) look_up<decltype(nvml::api::name)>(library, #name)
#define NVML_OTHER(name, type) look_up<type>(library, #name)
#endif

void use_cuda(size_t bytes) {
  void* driver = open("libcuda.so.1");
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  if (look_up<decltype(nvshare::cuda::api::cuInit)>(driver, "cuInit")(0) != CUDA_SUCCESS) fail("cuInit", 0);
  if (look_up<decltype(nvshare::cuda::api::cuCtxCreate_v2)>(driver, "cuCtxCreate_v2")(&context, 0, 0) != CUDA_SUCCESS)
    fail("cuCtxCreate", 0);
  if (look_up<decltype(nvshare::cuda::api::cuMemAlloc_v2)>(driver, "cuMemAlloc_v2")(&memory, bytes) != CUDA_SUCCESS) fail("cuMemAlloc", 0);
}

template <typename Process, typename Function>
void list(const char* what, Handle gpu, Function* function) {
  unsigned count = 0;
  Return result = function(gpu, &count, nullptr);
  if (result != kSuccess && result != kInsufficientSize) fail(what, result);
  if (result == kSuccess && count != 0) fail("no room was given, and none was asked for", static_cast<int>(count));
  Process found[64];
  count = 64;
  result = function(gpu, &count, found);
  if (result != kSuccess) fail(what, result);
  std::printf("%s %u", what, count);
  for (unsigned i = 0; i < count; ++i) std::printf(" %u:%llu", found[i].pid, found[i].used);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
#ifndef NVML_LINKED
  void* library = open("libnvidia-ml.so.1");
#endif
  if (argc == 3 && std::strcmp(argv[1], "--cuda") == 0) use_cuda(std::strtoull(argv[2], nullptr, 10));
  if (const Return result = NVML_OTHER(nvmlInit_v2, Return())()) fail("nvmlInit", result);
  Handle gpu = nullptr;
  if (const Return result = NVML_OTHER(nvmlDeviceGetHandleByIndex_v2, Return(unsigned, Handle*))(0, &gpu)) fail("handle", result);
  MemoryV1 one{};
  if (const Return result = NVML(nvmlDeviceGetMemoryInfo)(gpu, &one)) fail("nvmlDeviceGetMemoryInfo", result);
  std::printf("memory %llu %llu %llu\n", one.total, one.used, one.free);
  MemoryV2 two{kMemoryV2Version, 0, 0, 0, 0};
  if (const Return result = NVML(nvmlDeviceGetMemoryInfo_v2)(gpu, &two)) fail("nvmlDeviceGetMemoryInfo_v2", result);
  if (two.total != one.total || two.used + two.reserved != one.used || two.free != one.free) fail("the two versions differ", 0);
  MemoryV2 wrong{1, 0, 0, 0, 0};
  if (NVML(nvmlDeviceGetMemoryInfo_v2)(gpu, &wrong) != kVersionMismatch) fail("a wrong version was taken", 0);
  list<ProcessV1>("compute", gpu, NVML(nvmlDeviceGetComputeRunningProcesses));
  list<ProcessV2>("compute_v2", gpu, NVML(nvmlDeviceGetComputeRunningProcesses_v2));
  list<ProcessV2>("compute_v3", gpu, NVML(nvmlDeviceGetComputeRunningProcesses_v3));
  list<ProcessV2>("graphics", gpu, NVML(nvmlDeviceGetGraphicsRunningProcesses_v3));
  list<ProcessV2>("mps", gpu, NVML(nvmlDeviceGetMPSComputeRunningProcesses_v3));
  if (NVML(nvmlDeviceGetMemoryInfo)(nullptr, &one) == kSuccess) fail("no GPU was taken for one", 0);
  std::printf("all right\n");
  return 0;
}
