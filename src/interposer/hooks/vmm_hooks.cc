// The program's own virtual memory management: answered by ProgramVmm; the driver's when we are inactive.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/submit.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

// Memory of cuMemAlloc and its kin is no virtual memory to the program, though it is to the driver: what takes virtual memory refuses it,
// as it does without us. Nothing of ours may be unmapped, mapped over, handed out or changed.
bool is_plain(Process& process, CUdeviceptr address, size_t bytes) { return process.overlaps(address, bytes); }

template <auto Function, bool PerThread>
CUresult map_arrays(Entry entry, CUarrayMapInfo* list, unsigned count, CUstream stream) {
  Process& process = entry.process();
  Target target{default_stream(stream, PerThread), true};
  return pass_gate(entry, target, [&] {
    if (!process.active() || list == nullptr || count == 0) return call_real<Function>(list, count, stream);
    std::vector<CUarrayMapInfo> translated(list, list + count);
    for (CUarrayMapInfo& each : translated) each.memHandle = process.vmm.pin(each.memHandle);
    return call_real<Function>(translated.data(), count, stream);
  });
}

// call(the driver's function, the handle as the driver knows it): its memory is on the GPU, and stays there.
template <auto Function, typename Call>
CUresult with_pinned_handle(Entry entry, CUmemGenericAllocationHandle handle, Call call) {
  Process& process = entry.process();
  const auto real = real_driver().*Function;
  if (!process.active()) return call(real, handle);
  return pass_gate(entry, Target{nullptr, false}, [&] { return call(real, process.vmm.pin(handle)); });
}

// The same for what is mapped in the range.
template <auto Function, typename Call>
CUresult with_pinned_range(Entry entry, CUdeviceptr address, size_t bytes, Call call) {
  Process& process = entry.process();
  const auto real = real_driver().*Function;
  if (!process.active()) return call(real);
  return pass_gate(entry, Target{nullptr, false}, [&] {
    process.vmm.pin_range(address, bytes);
    return call(real);
  });
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                            unsigned long long flags) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemAddressReserve>(address, bytes, alignment, hint, flags);
  return process.vmm.reserve(address, bytes, alignment, hint, flags);
}

NVSHARE_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemAddressFree>(address, bytes);
  if (is_plain(process, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return process.vmm.free_range(address, bytes);
}

NVSHARE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                                    unsigned long long flags) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemCreate>(handle, bytes, properties, flags);
  return process.vmm.create(handle, bytes, properties, flags);
}

NVSHARE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemRelease>(handle);
  return process.vmm.release(handle);
}

NVSHARE_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                 unsigned long long flags) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemMap>(address, bytes, offset, handle, flags);
  if (is_plain(process, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return process.vmm.map(address, bytes, offset, handle, flags);
}

NVSHARE_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemUnmap>(address, bytes);
  if (is_plain(process, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return process.vmm.unmap(address, bytes);
}

NVSHARE_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions, size_t count) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemSetAccess>(address, bytes, descriptions, count);
  if (is_plain(process, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return process.vmm.set_access(address, bytes, descriptions, count);
}

NVSHARE_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemGetAccess>(flags, location, address);
  AllocationRange range;
  bool within = false;
  int ordinal = -1;
  if (process.owner(address, &range, &within) != nullptr || process.ipc.find(address, &range, &ordinal)) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = 0;  // as measured of cuMemAlloc memory
    return CUDA_SUCCESS;
  }
  if (within) address = kNowhere;  // of ours, but no memory of the program's
  return process.vmm.get_access(flags, location, address);
}

NVSHARE_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemRetainAllocationHandle>(handle, address);
  if (is_plain(process, reinterpret_cast<uintptr_t>(address), 1)) return CUDA_ERROR_INVALID_VALUE;
  return process.vmm.retain(handle, address);
}

NVSHARE_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemGetAllocationPropertiesFromHandle>(properties, handle);
  return process.vmm.properties_of(properties, handle);
}

NVSHARE_EXPORT CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                                     unsigned long long flags) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemExportToShareableHandle>(out, handle, type, flags);
  return process.vmm.export_handle(out, handle, type, flags);
}

NVSHARE_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                                       CUmemAllocationHandleType type) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemImportFromShareableHandle>(handle, os_handle, type);
  return process.vmm.import_handle(handle, os_handle, type);
}

NVSHARE_EXPORT CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                                      unsigned long long flags) {
  const Entry entry;
  Process& process = entry.process();
  if (!process.active()) return call_real<&RealDriver::cuMemGetHandleForAddressRange>(handle, address, bytes, type, flags);
  // Our own blocks move in chunks, and say that they are not capable of this. What is not whole pages a driver refuses as such (measured).
  constexpr size_t kHostPage = 4096;
  if (is_plain(process, address, bytes)) return (address | bytes) % kHostPage != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  return pass_gate(entry, Target{nullptr, false}, [&] {
    process.vmm.pin_range(address, bytes);
    return call_real<&RealDriver::cuMemGetHandleForAddressRange>(handle, address, bytes, type, flags);
  });
}

NVSHARE_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
                                           CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags) {
  const Entry entry;
  Process& process = entry.process();
  if (!process.active()) return call_real<&RealDriver::cuMulticastBindMem>(multicast, multicast_offset, handle, offset, bytes, flags);
  return pass_gate(entry, Target{nullptr, false}, [&] {
    return call_real<&RealDriver::cuMulticastBindMem>(multicast, multicast_offset, process.vmm.pin(handle), offset, bytes, flags);
  });
}

NVSHARE_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t multicast_offset, CUdeviceptr address,
                                            size_t bytes, unsigned long long flags) {
  const Entry entry;
  Process& process = entry.process();
  if (!process.active()) return call_real<&RealDriver::cuMulticastBindAddr>(multicast, multicast_offset, address, bytes, flags);
  if (is_plain(process, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return pass_gate(entry, Target{nullptr, false}, [&] {
    process.vmm.pin_range(address, bytes);
    return call_real<&RealDriver::cuMulticastBindAddr>(multicast, multicast_offset, address, bytes, flags);
  });
}

NVSHARE_EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
                                              CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags) {
  return with_pinned_handle<&RealDriver::cuMulticastBindMem_v2>(
      Entry(), handle, [&](auto real, auto pinned) { return real(multicast, device, multicast_offset, pinned, offset, bytes, flags); });
}

NVSHARE_EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
                                               CUdeviceptr address, size_t bytes, unsigned long long flags) {
  const Entry entry;
  Process& process = entry.process();
  if (process.active() && is_plain(process, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return with_pinned_range<&RealDriver::cuMulticastBindAddr_v2>(
      entry, address, bytes, [&](auto real) { return real(multicast, device, multicast_offset, address, bytes, flags); });
}

NVSHARE_EXPORT CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t endpoint_offset,
                                                 CUmemGenericAllocationHandle handle, cuuint64_t offset, cuuint64_t bytes,
                                                 unsigned long long flags) {
  return with_pinned_handle<&RealDriver::cuLogicalEndpointBindMem>(
      Entry(), handle, [&](auto real, auto pinned) { return real(endpoint, device, endpoint_offset, pinned, offset, bytes, flags); });
}

// What lies behind the address may be plain memory of ours, too: all of the program's memory stays.
NVSHARE_EXPORT CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t endpoint_offset, void* address,
                                                  cuuint64_t bytes, unsigned long long flags) {
  const Entry entry;
  Process& process = entry.process();
  process.hold_resident("it bound memory to a logical endpoint (cuLogicalEndpointBindAddr)");
  const auto base = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(address));
  return with_pinned_range<&RealDriver::cuLogicalEndpointBindAddr>(
      entry, base, bytes, [&](auto real) { return real(endpoint, device, endpoint_offset, address, bytes, flags); });
}

NVSHARE_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  return map_arrays<&RealDriver::cuMemMapArrayAsync, false>(Entry(), list, count, stream);
}
NVSHARE_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  return map_arrays<&RealDriver::cuMemMapArrayAsync_ptsz, true>(Entry(), list, count, stream);
}

}  // extern "C"
}  // namespace nvshare::interposer
