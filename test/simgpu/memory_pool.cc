// Stream-ordered allocation. Memory is there at once; it goes back to the device when the stream reaches the free. Pools keep nothing.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "simgpu/capture.h"
#include "simgpu/context.h"
#include "simgpu/graph.h"
#include "simgpu/graph_memory.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

// Behind CUmemoryPool. Never deleted.
struct Pool {
  std::atomic<bool> alive{true};
  int device = 0;
  bool managed = false;
  uint64_t most = 0;                 // 0: no bound
  int handle_types = 0;              // CUmemAllocationHandleType: how it may be exported
  uint32_t number = 0;               // in the process that made it; default pools have none
  uint64_t exporter = 0;             // the process that made it, if it is another one's
  std::atomic<uint32_t> open_to{0};  // other devices (bits) that may use what it gives out, and gave out before
  std::atomic<uint64_t> used{0};
  std::atomic<uint64_t> used_high{0};
  std::mutex mutex;
  std::array<uint64_t, 16> attributes{0, 1, 1, 1};  // as a driver has them, or as set; they change nothing
};

struct DevicePools {
  std::mutex mutex;
  std::array<Pool*, kMaxDevices> standard{};
  std::array<Pool*, kMaxDevices> current{};
  std::array<Pool*, kMaxDevices> managed_standard{};
  std::array<Pool*, kMaxDevices> managed_current{};
  static DevicePools& get() {
    static auto* const kPools = new DevicePools;
    return *kPools;
  }
};

Pool* find(CUmemoryPool handle) {
  auto* pool = reinterpret_cast<Pool*>(handle);
  return pool != nullptr && pool->alive.load() ? pool : nullptr;
}

// A driver goes by what lies there then, or crashes.
Pool* find_for_question(CUmemoryPool handle, const char* call) {
  Pool* pool = find(handle);
  if (pool != nullptr || handle == nullptr) return pool;
  here().faults.fetch_add(1);
  Machine::get().shared().faults_seen.fetch_add(1);
  std::fprintf(stderr, "simgpu: fault: pid %d: %s of a pool that was destroyed\n", getpid(), call);
  return nullptr;
}

Pool* pool_of(int device, bool current, bool managed = false) {
  DevicePools& pools = DevicePools::get();
  std::lock_guard lock(pools.mutex);
  const auto index = static_cast<size_t>(device);
  Pool*& standard = (managed ? pools.managed_standard : pools.standard)[index];
  Pool*& chosen = (managed ? pools.managed_current : pools.current)[index];
  if (standard == nullptr) {
    standard = Kept<Pool>::make();
    standard->device = device;
    standard->managed = managed;
    chosen = standard;
  }
  return current ? chosen : standard;
}

class FreeWork : public Work {
 public:
  explicit FreeWork(CUdeviceptr address) : address_(address) {}
  void run(Execution& execution) const override {
    Pool* pool = nullptr;
    uint64_t bytes = 0;
    {
      AddressSpace::Reading reading(here().memory);
      if (const Range* range = reading.find(address_)) {
        if (range->kind == RangeKind::kPool || range->kind == RangeKind::kManaged) pool = static_cast<Pool*>(range->pool);
        bytes = range->size;
      }
    }
    if (free_range(address_, false) != CUDA_SUCCESS) {
      return execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "cuMemFreeAsync of %llx, which was freed already", address_);
    }
    if (pool != nullptr) pool->used.fetch_sub(bytes);
  }
  bool always() const override { return true; }
  const char* name() const override { return "cuMemFreeAsync"; }

 private:
  const CUdeviceptr address_;
};

CUresult allocate_async(CUdeviceptr* out, size_t bytes, Pool* pool, CUstream handle, Default null_means) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {  // no error, where it is not forbidden (recorded)
    if (stream->capture.load() == nullptr) {
      if (const CUresult result = check_memory_in_order(*stream)) return result;
    }
    *out = 0;
    return CUDA_SUCCESS;
  }
  if (stream->capture.load() != nullptr) {
    auto allocation = reserve_graph_allocation(stream->context->device, bytes);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = allocation->base;
    return submit(*stream, Submission::kOther, make_graph_allocation(std::move(allocation)));
  }
  if (const CUresult result = check_memory_in_order(*stream)) return result;
  if (fault_strikes(Machine::get().faults().alloc_oom)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pool == nullptr) pool = pool_of(stream->context->device, true);
  if (pool->exporter != 0) return CUDA_ERROR_INVALID_VALUE;  // only its own process allocates from it
  if (pool->most != 0 && (bytes > pool->most || pool->used.load() > pool->most - bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult allocated = pool->managed ? allocate_managed(*stream->context, bytes, CU_MEM_ATTACH_GLOBAL, pool, out)
                                           : allocate(*stream->context, bytes, RangeKind::kPool, pool, out);
  if (allocated != CUDA_SUCCESS) return allocated;
  const uint64_t used = pool->used.fetch_add(bytes) + bytes;
  uint64_t high = pool->used_high.load();
  while (used > high && !pool->used_high.compare_exchange_weak(high, used)) {
  }
  // An allocation is work of its stream: it counts as one, and what other streams use it for is ordered behind it.
  return submit(*stream, Submission::kOther, nullptr);
}

CUresult free_async(CUdeviceptr address, CUstream handle, Default null_means) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (address == 0) return CUDA_SUCCESS;  // what an allocation of nothing gave
  if (const Capture* capture = stream->capture.load()) {
    if (capture->invalid.load()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;  // whatever is freed (measured)
    if (!is_graph_allocation(address)) {
      capture->graph->fixed = true;
      return CUDA_ERROR_INVALID_VALUE;
    }
    return submit(*stream, Submission::kOther, make_graph_free(address));
  }
  if (const CUresult result = check_memory_in_order(*stream)) return result;
  {
    AddressSpace::Reading reading(here().memory);
    const Range* range = reading.find(address);
    const bool managed = range != nullptr && range->kind == RangeKind::kManaged && range->pool != nullptr;
    if (range == nullptr || range->base != address || !(range->on_device() || managed) || range->kind == RangeKind::kMapping)
      return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == RangeKind::kImported && range->pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return submit(*stream, Submission::kOther, std::make_shared<FreeWork>(address));
}

bool is_of_gpu(const CUmemLocation* location, CUmemAllocationType type) {
  return location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
         (type == CU_MEM_ALLOCATION_TYPE_PINNED || type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}

CUresult give_pool(CUmemoryPool* out, CUdevice device, bool current, bool managed = false) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return current ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
  *out = reinterpret_cast<CUmemoryPool>(pool_of(device, current, managed));
  return CUDA_SUCCESS;
}

CUresult set_pool(CUdevice device, CUmemoryPool handle, bool managed) {
  if (const CUresult result = enter_process()) return result;
  Pool* pool = find(handle);
  if (pool == nullptr || !valid_device(device) || pool->exporter != 0 || pool->managed != managed) return CUDA_ERROR_INVALID_VALUE;
  if (pool->device != device) return CUDA_ERROR_INVALID_VALUE;  // it must be local to the GPU (documented)
  pool_of(device, false, managed);
  DevicePools& pools = DevicePools::get();
  std::lock_guard lock(pools.mutex);
  (managed ? pools.managed_current : pools.current)[static_cast<size_t>(device)] = pool;
  return CUDA_SUCCESS;
}

}  // namespace

bool pool_is_open_to(const void* pool, int device) {
  return pool != nullptr && (static_cast<const Pool*>(pool)->open_to.load() >> device & 1) != 0;
}

int handle_types_of_pool(const void* pool) { return pool != nullptr ? static_cast<const Pool*>(pool)->handle_types : 0; }

SIM_API CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocate_async(out, bytes, nullptr, stream, Default::kLegacy);
}
SIM_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocate_async(out, bytes, nullptr, stream, Default::kPerThread);
}
SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return find(pool) == nullptr ? CUDA_ERROR_INVALID_VALUE : allocate_async(out, bytes, find(pool), stream, Default::kLegacy);
}
SIM_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return find(pool) == nullptr ? CUDA_ERROR_INVALID_VALUE : allocate_async(out, bytes, find(pool), stream, Default::kPerThread);
}
SIM_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return free_async(address, stream, Default::kLegacy); }
SIM_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) { return free_async(address, stream, Default::kPerThread); }

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) { return give_pool(out, device, false); }
SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) { return give_pool(out, device, true); }
SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) { return set_pool(device, pool, false); }

// Of a GPU only: no pools of host memory.
SIM_API CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  if (out == nullptr || !is_of_gpu(location, type)) return CUDA_ERROR_INVALID_VALUE;
  return give_pool(out, location->id, false, type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}
SIM_API CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  if (out == nullptr || !is_of_gpu(location, type)) return CUDA_ERROR_INVALID_VALUE;
  return give_pool(out, location->id, true, type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}
SIM_API CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return is_of_gpu(location, type) ? set_pool(location->id, pool, type == CU_MEM_ALLOCATION_TYPE_MANAGED) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || properties == nullptr || !valid_device(properties->location.id)) return CUDA_ERROR_INVALID_VALUE;
  auto* pool = Kept<Pool>::make();
  pool->device = properties->location.id;
  pool->managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  pool->most = properties->maxSize;
  pool->handle_types = properties->handleTypes;
  static std::atomic<uint32_t> pools_made{0};
  pool->number = ++pools_made;
  *out = reinterpret_cast<CUmemoryPool>(pool);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  if (const CUresult result = enter_process()) return result;
  Pool* pool = find(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  pool->alive.store(false);
  DevicePools& pools = DevicePools::get();
  std::lock_guard lock(pools.mutex);
  const auto index = static_cast<size_t>(pool->device);
  if (pools.current[index] == pool) pools.current[index] = pools.standard[index];
  if (pools.managed_current[index] == pool) pools.managed_current[index] = pools.managed_standard[index];
  return CUDA_SUCCESS;
}

// What crosses to another process is a file's descriptor; its name says whose pool it is.
SIM_API CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  if (const CUresult result = enter_process()) return result;
  const Pool* pool = find(handle);
  if (pool == nullptr || out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  if ((pool->handle_types & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  char name[64];
  const int device = Machine::get().machine_number(pool->device);
  std::snprintf(name, sizeof name, "simpool-%d-%u-%d", static_cast<int>(getpid()), pool->number, device);
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* handle, CUmemAllocationHandleType type,
                                                    unsigned long long flags) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  char target[128] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(static_cast<int>(reinterpret_cast<intptr_t>(handle)));
  const char* name = readlink(link.c_str(), target, sizeof target - 1) > 0 ? std::strstr(target, "simpool-") : nullptr;
  int exporter = 0;
  unsigned number = 0;
  unsigned machine_number = 0;
  if (name == nullptr || std::sscanf(name, "simpool-%d-%u-%u", &exporter, &number, &machine_number) != 3) return CUDA_ERROR_UNKNOWN;
  const int device = Machine::get().device_of(machine_number);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  auto* pool = Kept<Pool>::make();
  pool->device = device;
  pool->number = number;
  pool->exporter = static_cast<uint64_t>(exporter);
  *out = reinterpret_cast<CUmemoryPool>(pool);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  if (const CUresult result = enter_process()) return result;
  const Pool* pool = nullptr;
  {
    AddressSpace::Reading reading(here().memory);
    const Range* range = reading.find(address);
    if (range != nullptr && range->kind == RangeKind::kPool && !range->graph) pool = static_cast<const Pool*>(range->pool);
  }
  if (out == nullptr || pool == nullptr || pool->handle_types == 0) return CUDA_ERROR_INVALID_VALUE;
  return export_pool_pointer(address, pool->number, out);
}

SIM_API CUresult cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool handle, CUmemPoolPtrExportData* data) {
  if (const CUresult result = enter_process()) return result;
  Pool* pool = find(handle);
  if (out == nullptr || data == nullptr || pool == nullptr || pool->exporter == 0) return CUDA_ERROR_INVALID_VALUE;
  return import_pool_pointer(*data, pool->exporter, pool->number, pool, out);
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return find_for_question(handle, "cuMemPoolTrimTo") == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access, size_t count) {
  Pool* pool = find(handle);
  if (pool == nullptr || (access == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = access[i].location;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 || location.id >= 32 || location.id == pool->device) continue;
    const uint32_t bit = 1u << location.id;
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      pool->open_to.fetch_and(~bit);
    } else {
      pool->open_to.fetch_or(bit);
    }
  }
  return CUDA_SUCCESS;
}
SIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  const Pool* pool = find(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool elsewhere = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id != pool->device;
  const bool none = elsewhere && (location->id < 0 || location->id >= 32 || !pool_is_open_to(pool, location->id));
  *flags = none ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Pool* pool = find_for_question(handle, "cuMemPoolGetAttribute");
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t wide = 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      std::lock_guard lock(pool->mutex);
      *static_cast<int*>(value) = static_cast<int>(pool->attributes[attribute]);
      return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: {
      std::lock_guard lock(pool->mutex);
      wide = pool->attributes[attribute];
      break;
    }
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      wide = pool->used.load();
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      wide = pool->used_high.load();
      break;
  }
  std::memcpy(value, &wide, sizeof wide);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Pool* pool = find(handle);
  if (pool == nullptr || value == nullptr || attribute == 0 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  if (attribute > CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->used_high.store(pool->used.load());
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(pool->mutex);
  std::memcpy(&pool->attributes[attribute], value, attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? sizeof(uint64_t) : sizeof(int));
  return CUDA_SUCCESS;
}

}  // namespace simgpu
