// What the programs of this folder need from the CUDA driver: loaded with dlopen("libcuda.so.1"), as a statically linked CUDA runtime does.
// The declarations are written out here a second time on purpose: a mistake in src/cuda must not hide itself in its own test.
// Layouts and numbers: cuda.h of CUDA 13.0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gputest {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUmemHandle = unsigned long long;

inline constexpr CUresult kSuccess = 0;
inline constexpr CUresult kOutOfMemory = 2;
inline constexpr CUresult kNotReady = 600;
inline constexpr CUstream kLegacyStream = nullptr;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2;

struct MemLocation {
  int type;  // 1 device, 2 host
  int id;
};

struct MemAllocationProp {
  int type;                    // 1 pinned
  int requested_handle_types;  // 0 none, 1 POSIX descriptor
  MemLocation location;
  void* win32_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(MemAllocationProp) == 32);

struct MemAccess {
  MemLocation location;
  int flags;  // 3 read and write
};

struct IpcMemHandle {
  char reserved[64];
};

struct CheckpointLockArgs {
  unsigned timeout_ms;
  unsigned reserved0;
  uint64_t reserved1[7];
};
static_assert(sizeof(CheckpointLockArgs) == 64);

struct Driver {
  CUresult (*init)(unsigned);
  CUresult (*driver_version)(int*);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*device_name)(char*, int, CUdevice);
  CUresult (*device_total)(size_t*, CUdevice);
  CUresult (*primary_retain)(CUcontext*, CUdevice);
  CUresult (*primary_set_flags)(CUdevice, unsigned);  // may be null
  CUresult (*ctx_set_current)(CUcontext);
  CUresult (*ctx_synchronize)();
  CUresult (*mem_get_info)(size_t*, size_t*);
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*mem_alloc_managed)(CUdeviceptr*, size_t, unsigned);
  CUresult (*mem_get_address_range)(CUdeviceptr*, size_t*, CUdeviceptr);
  CUresult (*mem_host_alloc)(void**, size_t, unsigned);
  CUresult (*mem_free_host)(void*);
  CUresult (*mem_host_register)(void*, size_t, unsigned);
  CUresult (*mem_host_unregister)(void*);
  CUresult (*memcpy_htod_async)(CUdeviceptr, const void*, size_t, CUstream);
  CUresult (*memcpy_dtoh_async)(void*, CUdeviceptr, size_t, CUstream);
  CUresult (*memset_d8_async)(CUdeviceptr, unsigned char, size_t, CUstream);
  CUresult (*pointer_get_attribute)(void*, int, CUdeviceptr);
  CUresult (*pointer_set_attribute)(const void*, int, CUdeviceptr);
  CUresult (*ipc_get_mem_handle)(IpcMemHandle*, CUdeviceptr);
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*stream_query)(CUstream);
  CUresult (*stream_begin_capture)(CUstream, int);
  CUresult (*stream_end_capture)(CUstream, CUgraph*);
  CUresult (*stream_is_capturing)(CUstream, int*);
  CUresult (*exchange_capture_mode)(int*);
  CUresult (*graph_instantiate)(CUgraphExec*, CUgraph, unsigned long long);
  CUresult (*graph_launch)(CUgraphExec, CUstream);
  CUresult (*event_create)(CUevent*, unsigned);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*event_query)(CUevent);
  CUresult (*event_synchronize)(CUevent);
  CUresult (*event_elapsed)(float*, CUevent, CUevent);
  CUresult (*module_load_data)(CUmodule*, const void*);
  CUresult (*module_get_function)(CUfunction*, CUmodule, const char*);
  CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**);
  CUresult (*address_reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*address_free)(CUdeviceptr, size_t);
  CUresult (*mem_create)(CUmemHandle*, size_t, const MemAllocationProp*, unsigned long long);
  CUresult (*mem_release)(CUmemHandle);
  CUresult (*mem_map)(CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long);
  CUresult (*mem_unmap)(CUdeviceptr, size_t);
  CUresult (*mem_set_access)(CUdeviceptr, size_t, const MemAccess*, size_t);
  CUresult (*get_proc_address)(const char*, void**, int, uint64_t, int*);
  // Absent from some drivers and from the stand-in GPU: null there.
  CUresult (*mem_prefetch)(CUdeviceptr, size_t, MemLocation, unsigned, CUstream);
  CUresult (*checkpoint_lock)(int, CheckpointLockArgs*);
  CUresult (*checkpoint_checkpoint)(int, void*);
  CUresult (*checkpoint_restore)(int, void*);
  CUresult (*checkpoint_unlock)(int, void*);
};

// The loaded driver; ends the process with a message when it or one of the required functions is missing.
const Driver& driver();

// Ends the process with exit status 3 and one JSON line when `result` is not success.
void require(CUresult result, const char* what);

// cuInit, device 0, its primary context made current in this thread. The same context each time.
CUcontext open_gpu(unsigned flags = 0);

// One built-in kernel of the stand-in GPU, or the PTX of the same name on a real one (kernels_ptx.h). Call after open_gpu().
CUfunction kernel(const char* name);

uint64_t now_ns();  // CLOCK_MONOTONIC, comparable between processes of one machine

}  // namespace gputest
