// The driver's interface as the stand-in implements it and as test programs call it: the types and signatures of src/cuda, the structs
// that only the stand-in looks into, and C declarations, so that a program that links libcuda.so.1 can call it without a CUDA toolkit.
//
// Functions that src/cuda declares are declared here by that type: a definition that differs does not compile.
#pragma once

#include "cuda/driver_api.h"

namespace nvshare::cuda {

struct CUDA_MEMCPY2D {
  size_t srcXInBytes, srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
};

struct CUDA_MEMCPY3D {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
};

struct CUgraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};

// Codes that src/cuda does not name.
inline constexpr CUresult CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = static_cast<CUresult>(910);

enum CUfunc_cache : unsigned {};
enum CUsharedconfig : unsigned {};
enum CUmoduleLoadingMode : unsigned { CU_MODULE_EAGER_LOADING = 1, CU_MODULE_LAZY_LOADING = 2 };

struct CUDA_KERNEL_NODE_PARAMS {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void** kernelParams;
  void** extra;
  CUkernel kern;  // from here on only in the _v2 calls
  CUcontext ctx;
};

struct CUDA_MEMSET_NODE_PARAMS {
  CUdeviceptr dst;
  size_t pitch;
  unsigned value, elementSize;
  size_t width, height;
};

struct CUDA_HOST_NODE_PARAMS {
  CUhostFn fn;
  void* userData;
};

struct CUDA_GRAPH_INSTANTIATE_PARAMS {
  cuuint64_t flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  unsigned result_out;
};

struct CUgraphExecUpdateResultInfo {
  unsigned result;
  CUgraphNode errorNode, errorFromNode;
};

// What the `extra` argument of a launch is made of.
inline void* const CU_LAUNCH_PARAM_END = nullptr;
inline void* const CU_LAUNCH_PARAM_BUFFER_POINTER = reinterpret_cast<void*>(uintptr_t{1});
inline void* const CU_LAUNCH_PARAM_BUFFER_SIZE = reinterpret_cast<void*>(uintptr_t{2});

}  // namespace nvshare::cuda
