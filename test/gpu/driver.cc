#include "driver.h"

#include <dlfcn.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "kernels_ptx.h"

namespace gputest {
namespace {

template <class Function>
void load(void* library, const char* symbol, Function*& slot, bool required = true) {
  slot = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (slot == nullptr && required) {
    std::fprintf(stderr, "{\"error\": \"%s is not in libcuda.so.1\"}\n", symbol);
    std::exit(3);
  }
}

Driver load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "{\"error\": \"no CUDA driver: %s\"}\n", dlerror());
    std::exit(3);
  }
  Driver d{};
  load(library, "cuInit", d.init);
  load(library, "cuDriverGetVersion", d.driver_version);
  load(library, "cuDeviceGet", d.device_get);
  load(library, "cuDeviceGetName", d.device_name);
  load(library, "cuDeviceTotalMem_v2", d.device_total);
  load(library, "cuDevicePrimaryCtxRetain", d.primary_retain);
  load(library, "cuDevicePrimaryCtxSetFlags_v2", d.primary_set_flags, false);
  load(library, "cuCtxSetCurrent", d.ctx_set_current);
  load(library, "cuCtxSynchronize", d.ctx_synchronize);
  load(library, "cuMemGetInfo_v2", d.mem_get_info);
  load(library, "cuMemAlloc_v2", d.mem_alloc);
  load(library, "cuMemFree_v2", d.mem_free);
  load(library, "cuMemAllocManaged", d.mem_alloc_managed, false);
  load(library, "cuMemGetAddressRange_v2", d.mem_get_address_range, false);
  load(library, "cuMemHostAlloc", d.mem_host_alloc);
  load(library, "cuMemFreeHost", d.mem_free_host);
  load(library, "cuMemHostRegister_v2", d.mem_host_register);
  load(library, "cuMemHostUnregister", d.mem_host_unregister);
  load(library, "cuMemcpyHtoDAsync_v2", d.memcpy_htod_async);
  load(library, "cuMemcpyDtoHAsync_v2", d.memcpy_dtoh_async);
  load(library, "cuMemsetD8Async", d.memset_d8_async);
  load(library, "cuPointerGetAttribute", d.pointer_get_attribute, false);
  load(library, "cuPointerSetAttribute", d.pointer_set_attribute, false);
  load(library, "cuIpcGetMemHandle", d.ipc_get_mem_handle, false);
  load(library, "cuStreamCreate", d.stream_create);
  load(library, "cuStreamSynchronize", d.stream_synchronize);
  load(library, "cuStreamQuery", d.stream_query);
  load(library, "cuStreamBeginCapture_v2", d.stream_begin_capture, false);
  load(library, "cuStreamEndCapture", d.stream_end_capture, false);
  load(library, "cuStreamIsCapturing", d.stream_is_capturing, false);
  load(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode, false);
  load(library, "cuGraphInstantiateWithFlags", d.graph_instantiate, false);
  load(library, "cuGraphLaunch", d.graph_launch, false);
  load(library, "cuEventCreate", d.event_create);
  load(library, "cuEventRecord", d.event_record);
  load(library, "cuEventQuery", d.event_query);
  load(library, "cuEventSynchronize", d.event_synchronize);
  load(library, "cuEventElapsedTime", d.event_elapsed, false);
  load(library, "cuModuleLoadData", d.module_load_data);
  load(library, "cuModuleGetFunction", d.module_get_function);
  load(library, "cuLaunchKernel", d.launch_kernel);
  load(library, "cuMemAddressReserve", d.address_reserve);
  load(library, "cuMemAddressFree", d.address_free);
  load(library, "cuMemCreate", d.mem_create);
  load(library, "cuMemRelease", d.mem_release);
  load(library, "cuMemMap", d.mem_map);
  load(library, "cuMemUnmap", d.mem_unmap);
  load(library, "cuMemSetAccess", d.mem_set_access);
  load(library, "cuGetProcAddress_v2", d.get_proc_address);
  load(library, "cuMemPrefetchAsync_v2", d.mem_prefetch, false);
  load(library, "cuCheckpointProcessLock", d.checkpoint_lock, false);
  load(library, "cuCheckpointProcessCheckpoint", d.checkpoint_checkpoint, false);
  load(library, "cuCheckpointProcessRestore", d.checkpoint_restore, false);
  load(library, "cuCheckpointProcessUnlock", d.checkpoint_unlock, false);
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load_driver();
  return loaded;
}

void require(CUresult result, const char* what) {
  if (result == kSuccess) {
    return;
  }
  std::printf("{\"error\": \"%s returned %d\"}\n", what, result);
  std::fflush(stdout);
  std::fprintf(stderr, "%s returned %d\n", what, result);
  std::_Exit(3);
}

CUcontext open_gpu(unsigned flags) {
  static CUcontext context = [flags] {
    CUdevice device = 0;
    CUcontext created = nullptr;
    require(driver().init(0), "cuInit");
    require(driver().device_get(&device, 0), "cuDeviceGet");
    if (flags != 0 && driver().primary_set_flags != nullptr) {
      require(driver().primary_set_flags(device, flags), "cuDevicePrimaryCtxSetFlags");
    }
    require(driver().primary_retain(&created, device), "cuDevicePrimaryCtxRetain");
    return created;
  }();
  require(driver().ctx_set_current(context), "cuCtxSetCurrent");
  return context;
}

CUfunction kernel(const char* name) {
  static CUmodule module = [] {
    CUmodule loaded = nullptr;
    require(driver().module_load_data(&loaded, kKernelsPtx), "cuModuleLoadData");
    return loaded;
  }();
  CUfunction function = nullptr;
  require(driver().module_get_function(&function, module, name), name);
  return function;
}

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace gputest
