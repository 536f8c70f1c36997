// Allocation, free, and what programs ask about memory. What is not ours goes to the driver unchanged.
#include <algorithm>

#include "interposer/generated/hooks.h"
#include "interposer/hooks/submit.h"
#include "interposer/process.h"

namespace nvshare::interposer {

namespace {

constexpr size_t kPitchAlignment = 512;  // what the driver's own pitched allocations are aligned to

// Memory of the current context's GPU, or null when the driver is to answer (no context, not governed).
Memory* current_memory(CUcontext* context) {
  Device* device = process().current_device(context);
  return device != nullptr && !device->refused() ? &device->memory() : nullptr;
}

bool stream_captures(CUstream stream) {
  if (!process().capturing() || stream == nullptr || stream == CU_STREAM_LEGACY) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return real_driver().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Pools whose memory leaves the process, or is no GPU memory: theirs is the driver's business.
constinit Mutex foreign_pools_mutex;
std::vector<CUmemoryPool>& foreign_pools() {
  alignas(std::vector<CUmemoryPool>) static constinit unsigned char storage[sizeof(std::vector<CUmemoryPool>)] = {};
  static constinit std::vector<CUmemoryPool>* pools = nullptr;  // never destroyed; guarded by the mutex
  if (pools == nullptr) pools = new (storage) std::vector<CUmemoryPool>;
  return *pools;
}

bool is_foreign(CUmemoryPool pool) {
  Lock lock(foreign_pools_mutex);
  std::vector<CUmemoryPool>& pools = foreign_pools();
  return std::find(pools.begin(), pools.end(), pool) != pools.end();
}

template <auto Function, bool PerThread>
CUresult allocate_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  CUcontext context = nullptr;
  Memory* memory = stream_captures(default_stream(stream, PerThread)) ? nullptr : current_memory(&context);
  if (memory == nullptr) return call_real<Function>(address, bytes, stream);
  return memory->allocate_async(address, bytes, stream, PerThread, context);
}

template <auto Function, bool PerThread>
CUresult allocate_from_pool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  CUcontext context = nullptr;
  Memory* memory = stream_captures(default_stream(stream, PerThread)) || is_foreign(pool) ? nullptr : current_memory(&context);
  if (memory == nullptr) return call_real<Function>(address, bytes, pool, stream);
  return memory->allocate_async(address, bytes, stream, PerThread, context);
}

template <auto Function, bool PerThread>
CUresult free_async(CUdeviceptr address, CUstream stream) {
  Memory::Range range;
  Device* owner = address != 0 && process().active() ? process().owner(address, &range) : nullptr;
  CUresult result = CUDA_SUCCESS;
  if (owner == nullptr || !owner->memory().free_async(address, stream, PerThread, &result)) return call_real<Function>(address, stream);
  return result;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  CUcontext context = nullptr;
  Memory* memory = current_memory(&context);
  return memory != nullptr ? memory->allocate(address, bytes, context) : call_real<&RealDriver::cuMemAlloc_v2>(address, bytes);
}

NVSHARE_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element_bytes) {
  CUcontext context = nullptr;
  Memory* memory = current_memory(&context);
  bool plausible = pitch != nullptr && width > 0 && height > 0 && (element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
  if (memory == nullptr || !plausible || width > SIZE_MAX / 4 / height) {
    return call_real<&RealDriver::cuMemAllocPitch_v2>(address, pitch, width, height, element_bytes);
  }
  size_t row = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  CUresult result = memory->allocate(address, row * height, context);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

NVSHARE_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  Memory::Range range;
  Device* owner = address != 0 && process().active() ? process().owner(address, &range) : nullptr;
  CUresult result = CUDA_SUCCESS;
  if (owner == nullptr || !owner->memory().free(address, &result)) return call_real<&RealDriver::cuMemFree_v2>(address);
  return result;
}

NVSHARE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<&RealDriver::cuMemAllocAsync, false>(address, bytes, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<&RealDriver::cuMemAllocAsync_ptsz, true>(address, bytes, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool<&RealDriver::cuMemAllocFromPoolAsync, false>(address, bytes, pool, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool<&RealDriver::cuMemAllocFromPoolAsync_ptsz, true>(address, bytes, pool, stream);
}
NVSHARE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async<&RealDriver::cuMemFreeAsync, false>(address, stream);
}
NVSHARE_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async<&RealDriver::cuMemFreeAsync_ptsz, true>(address, stream);
}

NVSHARE_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  CUresult result = call_real<&RealDriver::cuMemPoolCreate>(pool, properties);
  if (result == CUDA_SUCCESS &&
      (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)) {
    Lock lock(foreign_pools_mutex);
    foreign_pools().push_back(*pool);
  }
  return result;
}

NVSHARE_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = call_real<&RealDriver::cuMemPoolDestroy>(pool);
  if (result == CUDA_SUCCESS) {
    Lock lock(foreign_pools_mutex);
    std::erase(foreign_pools(), pool);
  }
  return result;
}

NVSHARE_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  CUresult result = call_real<&RealDriver::cuMemGetInfo_v2>(free_bytes, total_bytes);
  CUcontext context = nullptr;
  Device* device = result == CUDA_SUCCESS && free_bytes != nullptr && total_bytes != nullptr ? process().current_device(&context) : nullptr;
  if (device == nullptr) return result;
  Client& client = device->client();
  size_t used = device->memory().program_bytes();
  size_t total = process().visible_total(device->ordinal(), *total_bytes);
  size_t most = total;
  if (client.shared()) {
    most = std::min(most, client.ceiling());  // neighbours take turns with us: their use is not ours to see
  } else {
    most = std::min(most, *free_bytes + used);
  }
  *total_bytes = total;
  *free_bytes = most > used ? most - used : 0;
  return result;
}

NVSHARE_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  CUresult result = call_real<&RealDriver::cuDeviceTotalMem_v2>(bytes, ordinal);
  if (result == CUDA_SUCCESS) *bytes = process().visible_total(ordinal, *bytes);
  return result;
}

NVSHARE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Memory::Range range;
  int ordinal = -1;
  if (!process().active() || (process().owner(address, &range) == nullptr && !process().ipc().find(address, &range, &ordinal))) {
    ProgramVmm::View view;
    if (!process().active() || !process().vmm().find(address, &view) || view.placed) {
      return call_real<&RealDriver::cuMemGetAddressRange_v2>(base, bytes, address);
    }
    range.base = view.base;  // of virtual memory, the driver names the one mapping
    range.bytes = view.bytes;
  }
  if (base != nullptr) *base = range.base;
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}

}  // extern "C"
}  // namespace nvshare::interposer
