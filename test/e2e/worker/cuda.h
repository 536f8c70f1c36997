// The CUDA driver as the test's program reaches it: by plain linking, by dlsym or by cuGetProcAddress, as asked for. The program knows
// nothing of nvshare. Every error ends the process: there is no CUDA error that these programs expect, unless they ask for the result.
#pragma once

#include <string>

#include "cuda/driver_api.h"

namespace nvshare::e2e {

using namespace nvshare::cuda;

// One list of the calls that the programs make; struct, declarations and lookups are made from it.
// clang-format off
#define E2E_CUDA_CALLS(CALL) \
  CALL(cuInit) \
  CALL(cuDeviceGetCount) \
  CALL(cuDeviceTotalMem_v2) \
  CALL(cuCtxEnablePeerAccess) \
  CALL(cuCtxDisablePeerAccess) \
  CALL(cuIpcGetMemHandle) \
  CALL(cuIpcOpenMemHandle_v2) \
  CALL(cuIpcCloseMemHandle) \
  CALL(cuIpcGetEventHandle) \
  CALL(cuIpcOpenEventHandle) \
  CALL(cuEventQuery) \
  CALL(cuPointerGetAttribute) \
  CALL(cuCtxCreate_v2) \
  CALL(cuCtxDestroy_v2) \
  CALL(cuCtxSetCurrent) \
  CALL(cuCtxSynchronize) \
  CALL(cuCtxPushCurrent_v2) \
  CALL(cuCtxPopCurrent_v2) \
  CALL(cuDevicePrimaryCtxRetain) \
  CALL(cuGreenCtxCreate) \
  CALL(cuGreenCtxDestroy) \
  CALL(cuDevicePrimaryCtxRelease_v2) \
  CALL(cuDevicePrimaryCtxReset_v2) \
  CALL(cuMemAlloc_v2) \
  CALL(cuMemFree_v2) \
  CALL(cuMemAllocPitch_v2) \
  CALL(cuMemAllocAsync) \
  CALL(cuMemFreeAsync) \
  CALL(cuMemGetInfo_v2) \
  CALL(cuMemGetAddressRange_v2) \
  CALL(cuMemcpyHtoDAsync_v2) \
  CALL(cuMemcpyDtoHAsync_v2) \
  CALL(cuMemcpyDtoDAsync_v2) \
  CALL(cuMemcpyDtoD_v2) \
  CALL(cuStreamWriteValue32_v2) \
  CALL(cuMemcpyHtoD_v2) \
  CALL(cuMemcpyDtoH_v2) \
  CALL(cuMemsetD8Async) \
  CALL(cuStreamCreate) \
  CALL(cuStreamDestroy_v2) \
  CALL(cuStreamSynchronize) \
  CALL(cuStreamBeginCapture_v2) \
  CALL(cuStreamEndCapture) \
  CALL(cuGraphInstantiateWithFlags) \
  CALL(cuGraphLaunch) \
  CALL(cuGraphDestroy) \
  CALL(cuGraphExecDestroy) \
  CALL(cuThreadExchangeStreamCaptureMode) \
  CALL(cuModuleLoadData) \
  CALL(cuModuleGetFunction) \
  CALL(cuLaunchKernel) \
  CALL(cuLaunchKernelEx) \
  CALL(cuLaunchCooperativeKernel) \
  CALL(cuLaunchHostFunc) \
  CALL(cuStreamAddCallback) \
  CALL(cuEventCreate) \
  CALL(cuEventRecord) \
  CALL(cuEventSynchronize) \
  CALL(cuEventDestroy_v2) \
  CALL(cuStreamWaitEvent) \
  CALL(cuMemAddressReserve) \
  CALL(cuMemAddressFree) \
  CALL(cuMemCreate) \
  CALL(cuMemRelease) \
  CALL(cuMemMap) \
  CALL(cuMemUnmap) \
  CALL(cuMemSetAccess) \
  CALL(cuMemGetAccess) \
  CALL(cuMemRetainAllocationHandle) \
  CALL(cuMemGetAllocationPropertiesFromHandle) \
  CALL(cuMemExportToShareableHandle) \
  CALL(cuMemImportFromShareableHandle) \
  CALL(cuPointerGetAttributes) \
  CALL(cuArrayCreate_v2) \
  CALL(cuArray3DCreate_v2) \
  CALL(cuArrayDestroy) \
  CALL(cuMipmappedArrayCreate) \
  CALL(cuMipmappedArrayGetLevel) \
  CALL(cuMipmappedArrayDestroy) \
  CALL(cuMemcpy2DAsync_v2) \
  CALL(cuMemAllocManaged) \
  CALL(cuMemAdvise) \
  CALL(cuMemPrefetchAsync) \
  CALL(cuMemRangeGetAttribute) \
  CALL(cuMemRangeGetAttributes) \
  CALL(cuGraphCreate) \
  CALL(cuGraphAddMemAllocNode) \
  CALL(cuGraphAddMemsetNode) \
  CALL(cuGraphMemsetNodeSetParams) \
  CALL(cuStreamBeginCaptureToGraph) \
  CALL(cuDeviceGetGraphMemAttribute) \
  CALL(cuDeviceGraphMemTrim) \
  CALL(cuDeviceGetDefaultMemPool) \
  CALL(cuDeviceGetMemPool) \
  CALL(cuDeviceSetMemPool) \
  CALL(cuMemAllocFromPoolAsync) \
  CALL(cuMemGetDefaultMemPool) \
  CALL(cuMemPoolCreate) \
  CALL(cuMemPoolDestroy) \
  CALL(cuMemPoolExportPointer) \
  CALL(cuMemPoolExportToShareableHandle) \
  CALL(cuMemPoolGetAttribute) \
  CALL(cuMemPoolImportFromShareableHandle) \
  CALL(cuMemPoolImportPointer) \
  CALL(cuMemPoolSetAttribute) \
  CALL(cuMemPoolTrimTo)
// clang-format on

struct Cuda {
#define E2E_MEMBER(name) decltype(&api::name) name = nullptr;
  E2E_CUDA_CALLS(E2E_MEMBER)
#undef E2E_MEMBER
};

enum class Reach { kLink, kDlsym, kProcAddress };
Reach reach_named(const std::string& name);  // "link", "dlsym", "proc"; ends the process for others

// Fills cuda() and calls cuInit. Once, before the first thread.
void open_cuda(Reach reach);
const Cuda& cuda();

// Ends the process with exit status kExitCudaError and a line that names the call, unless the result is success.
void check(CUresult result, const char* what);

[[noreturn]] void fail(int status, const char* format, ...) __attribute__((format(printf, 2, 3)));

inline constexpr int kExitWrongBytes = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCudaError = 3;
inline constexpr int kExitUnexpected = 4;

// The stand-in's built-in kernels (simgpu/kernels.h).
struct Kernels {
  CUfunction fill, mix, mix_slow, add, checksum, spin, noop, meet;
};
Kernels load_kernels();  // in the current context

template <typename... Arguments>
CUresult launch(CUfunction function, CUstream stream, Arguments... arguments) {
  static_assert(((sizeof(Arguments) == 8) && ...), "the stand-in's kernels take 64-bit words");
  void* parameters[] = {static_cast<void*>(&arguments)..., nullptr};
  return cuda().cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace nvshare::e2e
