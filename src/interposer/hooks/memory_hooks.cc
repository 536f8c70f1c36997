// Allocation, free, and what programs ask about memory. What is not ours goes to the driver unchanged.
#include <algorithm>

#include "interposer/generated/hooks.h"
#include "interposer/hooks/at_stream.h"
#include "interposer/hooks/capture_rules.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/submit.h"
#include "interposer/hooks/unswappable.h"
#include "interposer/memory/driver_memory/graph_memory.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/green_contexts.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

constexpr size_t kPitchAlignment = 512;  // what the driver's own pitched allocations are aligned to
// Memory of the current context's GPU, or null when the driver is to answer (no context, not governed).
DeviceMemory* current_memory(Process& process, CUcontext* context) {
  Device* device = process.current_device(context);
  return device != nullptr && !device->refused() ? &device->memory() : nullptr;
}

void refund_managed(Process& process, const Pools::Placed& placed) {
  if (placed.pool == nullptr || placed.charged_to < 0) return;
  if (Device* device = process.device(placed.charged_to)) refund(*device, charged_bytes(placed.bytes));
}

CUstreamCaptureStatus capture_status(Process& process, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!process.captures.capturing() || stream == nullptr || stream == CU_STREAM_LEGACY) return status;
  return real_driver().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS ? status : CU_STREAM_CAPTURE_STATUS_NONE;
}
bool stream_captures(Process& process, CUstream stream) { return capture_status(process, stream) != CU_STREAM_CAPTURE_STATUS_NONE; }

// It counts against the limit on the GPU of its stream; where it lies is the driver's affair.
template <typename Real>
CUresult allocate_of_managed_pool(Entry entry, CUdeviceptr* address, size_t bytes, const Pools::Pool& pool, Real real) {
  Process& process = entry.process();
  CUcontext current = nullptr;
  Device* device = process.current_device(&current);
  if (device == nullptr || device->refused() || address == nullptr || bytes == 0) return real();
  const size_t charged = charged_bytes(bytes);
  if (bytes > SIZE_MAX / 2 || !charge(*device, charged, "an allocation from a pool of managed memory")) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = pass_gate_once(entry, {nullptr, false}, real);
  if (result != CUDA_SUCCESS) {
    refund(*device, charged);
    return result;
  }
  refund_managed(process, process.pools.placed_managed(*address, pool.handle, bytes, device->ordinal()));
  return result;
}

// `call`: the driver's free of memory that is not ours.
template <typename Call>
CUresult free_of_driver(Process& process, CUdeviceptr address, Call call) {
  const Pools::Placed placed = process.pools.placed_managed_any() ? process.pools.take(address) : Pools::Placed{};
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    refund_managed(process, placed);
  } else {
    process.pools.put_back(placed);
  }
  return result;
}

// From a pool of our own, or (foreign) from the driver's, counted by what that pool has from the GPU.
template <typename Real>
CUresult allocate_in_order(Entry entry, CUdeviceptr* address, size_t bytes, CUstream stream, bool per_thread, const Pools::Pool& pool,
                           CUcontext context, Real real) {
  Process& process = entry.process();
  if (pool.managed) return allocate_of_managed_pool(entry, address, bytes, pool, real);
  Device* device = process.device(pool.ordinal);
  if (device == nullptr || device->refused()) return real();  // host memory, another process's, or a GPU that is not governed
  DeviceMemory& memory = device->memory();
  // Where nothing is shared nor limited, the driver's own pools have all their features: our plain memory would end with the context.
  const bool of_driver = device->backend() == protocol::Backend::kNone && !device->link().shared() && device->limit().bytes() == 0;
  if (of_driver) process.pools.make_foreign(pool.handle);
  if (!pool.foreign && !of_driver) {
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!process.pools.charge(pool.handle, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory.allocations.allocate_async(address, bytes, stream, per_thread, context);
    if (result == CUDA_SUCCESS) {
      process.pools.placed(*address, pool.handle, bytes);
    } else {
      process.pools.refund(pool.handle, bytes);
    }
    return result;
  }
  Shortage shortage("an allocation from a pool");
  for (;;) {
    const size_t claimed = charged_bytes(bytes);
    CUresult result = memory.driver.claim(claimed, "an allocation from a pool that may be shared");
    if (result != CUDA_SUCCESS) return result;
    result = real();
    memory.driver.settle_store(claimed, reinterpret_cast<uintptr_t>(pool.handle));
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !shortage.make_room(*device)) return result;
  }
}

template <auto Function, bool PerThread>
CUresult allocate_async(Entry entry, CUdeviceptr* address, size_t bytes, CUstream stream) {
  Process& process = entry.process();
  auto real = [&] { return call_real<Function>(address, bytes, stream); };
  if (bytes == 0) return real();  // which is no error, but beside a capture
  if (stream_captures(process, default_stream(stream, PerThread))) {
    process.graph_memory.node_made();
    return real();
  }
  AtStream at(process, default_stream(stream, PerThread));
  CUcontext context = nullptr;
  Device* device = process.current_device(&context);
  if (device == nullptr || device->refused()) return real();
  if (const CUresult result = forbidden_in_order(process, default_stream(stream, PerThread)); result != CUDA_SUCCESS) return result;
  return allocate_in_order(entry, address, bytes, stream, PerThread, process.pools.current(device->ordinal()), context, real);
}

template <auto Function, bool PerThread>
CUresult allocate_from_pool(Entry entry, CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  Process& process = entry.process();
  auto real = [&] { return call_real<Function>(address, bytes, pool, stream); };
  if (bytes == 0) return real();
  if (stream_captures(process, default_stream(stream, PerThread))) {
    process.graph_memory.node_made();
    return real();
  }
  AtStream at(process, default_stream(stream, PerThread));
  CUcontext context = nullptr;
  Device* device = process.current_device(&context);
  if (device == nullptr || device->refused()) return real();
  Pools::Pool known = process.pools.current(device->ordinal());
  if (known.handle != pool && !process.pools.find(pool, &known)) {
    known = {};  // a default pool by its handle, or none of ours
    process.for_each_device([&](Device& other) {
      CUmemoryPool standard = nullptr;
      if (real_driver().cuDeviceGetDefaultMemPool(&standard, other.ordinal()) != CUDA_SUCCESS || standard != pool) return;
      known.handle = pool;
      known.ordinal = other.ordinal();
      process.pools.made(known);
    });
  }
  if (known.handle == nullptr) return real();
  if (const CUresult result = forbidden_in_order(process, default_stream(stream, PerThread)); result != CUDA_SUCCESS) return result;
  // Another GPU's memory for this context's stream: the driver's, because ours is not mapped there.
  if (known.ordinal != device->ordinal()) known.foreign = true;
  return allocate_in_order(entry, address, bytes, stream, PerThread, known, context, real);
}

// The GPU whose allocation the address lies in. Null: the driver is to free it, or to refuse: *address is one without memory then where the
// program has none but the driver does, for others of the program's allocations may be in it.
Device* owner_for_free(Process& process, CUdeviceptr* address) {
  if (*address == 0 || !process.active()) return nullptr;
  AllocationRange range;
  bool within = false;
  Device* owner = process.owner(*address, &range, &within);
  if (owner == nullptr && within) *address = kNowhere;
  return owner;
}

template <auto Function, bool PerThread>
CUresult free_async(Process& process, CUdeviceptr address, CUstream stream) {
  Device* owner = owner_for_free(process, &address);
  CUresult result = CUDA_SUCCESS;
  const CUstreamCaptureStatus status = capture_status(process, default_stream(stream, PerThread));
  const bool captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (owner == nullptr) {
    auto real = [&] { return call_real<Function>(address, stream); };
    return captured ? real() : free_of_driver(process, address, real);
  }
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;  // whatever is freed (measured)
  // Only a graph's own allocations are freed in it. The driver refuses, and its graph cannot be changed afterwards (an H200), so it is
  // asked.
  if (captured) return call_real<Function>(kNowhere, stream);
  AtStream at(process, default_stream(stream, PerThread));
  if (at.context() == nullptr) return call_real<Function>(address, stream);  // which says so
  if (process.current_is_gone()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if ((result = forbidden_in_order(process, default_stream(stream, PerThread))) != CUDA_SUCCESS) return result;
  const Pools::Placed placed = process.pools.take(address);
  if (!owner->memory().allocations.free_async(address, stream, PerThread, at.context(), &result))
    result = call_real<Function>(address, stream);
  if (result != CUDA_SUCCESS) process.pools.put_back(placed);
  return result;
}

// What is for managed memory only is refused of plain memory, which the backend `managed` makes of managed memory: the driver is asked
// about an address without memory then.
CUdeviceptr unless_plain(Process& process, CUdeviceptr address) {
  AllocationRange range;
  bool within = false;
  return process.active() && (process.owner(address, &range, &within) != nullptr || within) ? kNowhere : address;
}

void* unless_plain(Process& process, void* pointer) {
  return reinterpret_cast<void*>(unless_plain(process, reinterpret_cast<CUdeviceptr>(pointer)));
}

// The driver keeps advice; we only have to leave on the host what is to stay there.
void advised(Process& process, CUdeviceptr address, size_t bytes, CUmem_advise advice, bool host) {
  if (advice != CU_MEM_ADVISE_SET_PREFERRED_LOCATION && advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) return;
  Device* owner = process.active() ? process.managed_owner(address) : nullptr;
  if (owner == nullptr) return;
  owner->memory().blocks.advise_host(address, bytes, advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION && host);
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Process& process = Entry().process();
  CUcontext context = nullptr;
  DeviceMemory* memory = current_memory(process, &context);
  if (memory == nullptr) return call_real<&RealDriver::cuMemAlloc_v2>(address, bytes);
  if (const CUresult result = forbidden_by_a_capture(process); result != CUDA_SUCCESS) return result;
  return memory->allocations.allocate(address, bytes, context);
}

NVSHARE_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element_bytes) {
  Process& process = Entry().process();
  CUcontext context = nullptr;
  DeviceMemory* memory = current_memory(process, &context);
  // A driver takes elements of any size but none (measured), although its documentation names 4, 8 and 16 bytes.
  bool plausible = pitch != nullptr && width > 0 && height > 0 && element_bytes != 0;
  if (memory == nullptr || !plausible || width > SIZE_MAX / 4 / height) {
    return call_real<&RealDriver::cuMemAllocPitch_v2>(address, pitch, width, height, element_bytes);
  }
  if (const CUresult refused = forbidden_by_a_capture(process); refused != CUDA_SUCCESS) return refused;
  size_t row = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  CUresult result = memory->allocations.allocate(address, row * height, context);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

NVSHARE_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  Process& process = Entry().process();
  Device* owner = owner_for_free(process, &address);
  if (owner == nullptr && address != 0 && process.active()) owner = process.managed_owner(address);
  if (owner == nullptr) return free_of_driver(process, address, [&] { return call_real<&RealDriver::cuMemFree_v2>(address); });
  if (process.current_is_gone()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  CUresult result = forbidden_by_a_capture(process, owner->ordinal());
  if (result != CUDA_SUCCESS) return result;
  const Pools::Placed placed = process.pools.take(address);
  if (!owner->memory().allocations.free(address, &result)) result = call_real<&RealDriver::cuMemFree_v2>(address);
  if (result != CUDA_SUCCESS) process.pools.put_back(placed);
  return result;
}

NVSHARE_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  CUcontext context = nullptr;
  const bool plausible = address != nullptr && bytes > 0 && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
  DeviceMemory* memory = plausible ? current_memory(Entry().process(), &context) : nullptr;
  return memory != nullptr ? memory->allocations.allocate_managed(address, bytes, flags, context)
                           : call_real<&RealDriver::cuMemAllocManaged>(address, bytes, flags);
}

NVSHARE_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuMemAdvise>(unless_plain(process, address), bytes, advice, device);
  if (result == CUDA_SUCCESS) advised(process, address, bytes, advice, device == CU_DEVICE_CPU);
  return result;
}

NVSHARE_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuMemAdvise_v2>(unless_plain(process, address), bytes, advice, location);
  if (result == CUDA_SUCCESS) advised(process, address, bytes, advice, location.type != CU_MEM_LOCATION_TYPE_DEVICE);
  return result;
}

NVSHARE_EXPORT CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                               size_t bytes) {
  return call_real<&RealDriver::cuMemRangeGetAttribute>(data, data_bytes, attribute, unless_plain(Entry().process(), address), bytes);
}
NVSHARE_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream) {
  const Entry entry;
  Process& process = entry.process();
  return submit<&RealDriver::cuMemPrefetchAsync, 3, false>(entry, unless_plain(process, address), bytes, to, stream);
}
NVSHARE_EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream) {
  const Entry entry;
  Process& process = entry.process();
  return submit<&RealDriver::cuMemPrefetchAsync_ptsz, 3, true>(entry, unless_plain(process, address), bytes, to, stream);
}
NVSHARE_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream) {
  const Entry entry;
  Process& process = entry.process();
  return submit<&RealDriver::cuMemPrefetchAsync_v2, 4, false>(entry, unless_plain(process, address), bytes, to, flags, stream);
}
NVSHARE_EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream) {
  const Entry entry;
  Process& process = entry.process();
  return submit<&RealDriver::cuMemPrefetchAsync_v2_ptsz, 4, true>(entry, unless_plain(process, address), bytes, to, flags, stream);
}

NVSHARE_EXPORT CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  const Entry entry;
  Process& process = entry.process();
  return submit<&RealDriver::cuStreamAttachMemAsync, 0, false>(entry, stream, unless_plain(process, address), bytes, flags);
}
NVSHARE_EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  const Entry entry;
  Process& process = entry.process();
  return submit<&RealDriver::cuStreamAttachMemAsync_ptsz, 0, true>(entry, stream, unless_plain(process, address), bytes, flags);
}

NVSHARE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<&RealDriver::cuMemAllocAsync, false>(Entry(), address, bytes, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<&RealDriver::cuMemAllocAsync_ptsz, true>(Entry(), address, bytes, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool<&RealDriver::cuMemAllocFromPoolAsync, false>(Entry(), address, bytes, pool, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool<&RealDriver::cuMemAllocFromPoolAsync_ptsz, true>(Entry(), address, bytes, pool, stream);
}
NVSHARE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async<&RealDriver::cuMemFreeAsync, false>(Entry().process(), address, stream);
}
NVSHARE_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async<&RealDriver::cuMemFreeAsync_ptsz, true>(Entry().process(), address, stream);
}

NVSHARE_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuMemGetInfo_v2>(free_bytes, total_bytes);
  CUcontext context = nullptr;
  Device* device = result == CUDA_SUCCESS && free_bytes != nullptr && total_bytes != nullptr ? process.current_device(&context) : nullptr;
  if (device == nullptr) return result;
  Link& link = device->link();
  const size_t used = device->limit().tenant_charged();
  size_t total = process.visible_total(device->ordinal(), *total_bytes);
  size_t most = total;
  if (link.shared()) {
    most = std::min(most, device->limit().ceiling());  // neighbours take turns with us: their use is not ours to see
  } else {
    most = std::min(most, *free_bytes + used);
  }
  *total_bytes = total;
  *free_bytes = most > used ? most - used : 0;
  // Under a limit, what can be allocated in one piece.
  if (device->limit().bytes() != 0) *free_bytes -= *free_bytes % kChargeUnitBytes;
  return result;
}

NVSHARE_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  CUresult result = call_real<&RealDriver::cuDeviceTotalMem_v2>(bytes, ordinal);
  if (result == CUDA_SUCCESS) *bytes = Entry().process().visible_total(ordinal, *bytes);
  return result;
}

// Our memory is virtual memory to the driver, which answers for that as for host memory; of plain memory it refuses the question
// (measured).
NVSHARE_EXPORT CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return call_real<&RealDriver::cuMemHostGetFlags>(flags, unless_plain(Entry().process(), pointer));
}
NVSHARE_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer, unsigned flags) {
  return call_real<&RealDriver::cuMemHostGetDevicePointer_v2>(address, unless_plain(Entry().process(), pointer), flags);
}

// The same of memory that the program has not registered: measured on an H200, 1 where it is an allocation, 713 where it was freed.
NVSHARE_EXPORT CUresult cuMemHostUnregister(void* pointer) {
  Process& process = Entry().process();
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(pointer));
  AllocationRange range;
  bool within = false;
  const bool live = process.active() && process.owner(address, &range, &within) != nullptr;
  if (!live && !within) return call_real<&RealDriver::cuMemHostUnregister>(pointer);
  const CUresult result = call_real<&RealDriver::cuMemHostUnregister>(reinterpret_cast<void*>(static_cast<uintptr_t>(kNowhere)));
  return live && result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED ? CUDA_ERROR_INVALID_VALUE : result;
}

NVSHARE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Process& process = Entry().process();
  AllocationRange range;
  int ordinal = -1;
  bool within = false;
  Device* owner = process.active() ? process.owner(address, &range, &within) : nullptr;
  if (owner != nullptr && owner->memory().stream_frees.is_over(range)) {
    owner = nullptr;
    within = true;
  }
  if (owner == nullptr && (!process.active() || !process.ipc.find(address, &range, &ordinal))) {
    // Of ours, but no memory of the program's.
    if (within || (process.active() && process.ipc.overlaps(address, 1))) address = kNowhere;
    ProgramVmm::View view;
    if (!process.active() || !process.vmm.find(address, &view) || view.placed) {
      return call_real<&RealDriver::cuMemGetAddressRange_v2>(base, bytes, address);
    }
    if (!may_use_virtual(process, address)) return CUDA_ERROR_NOT_FOUND;
    range.base = view.base;  // of virtual memory, the driver names the one mapping
    range.bytes = view.bytes;
  }
  CUcontext context = nullptr;
  if (real_driver().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (process.current_is_gone()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (owner != nullptr && !may_use(process, owner->ordinal(), range.base, process.pools.placed_at(range.base).pool != nullptr))
    return CUDA_ERROR_NOT_FOUND;
  // What another process handed over is known in the context that opened it (measured).
  if (ordinal >= 0 && range.context != process.green_contexts.primary_of(context)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range.base;
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}

}  // extern "C"
}  // namespace nvshare::interposer
