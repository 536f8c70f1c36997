// The driver's interface as the stand-in implements it and as test programs call it: the types and signatures of src/cuda, the structs
// that only the stand-in looks into, and C declarations, so that a program that links libcuda.so.1 can call it without a CUDA toolkit.
//
// Functions that src/cuda declares are declared here by that type: a definition that differs does not compile.
#pragma once

#include "cuda/driver_api.h"

namespace nvshare::cuda {

struct CUgraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};

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
