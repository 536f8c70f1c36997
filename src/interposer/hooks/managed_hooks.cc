// Calls that are for managed memory, or for host memory, when they name memory of ours.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/submit.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

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
NVSHARE_EXPORT CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
                                                CUdeviceptr address, size_t bytes) {
  return call_real<&RealDriver::cuMemRangeGetAttributes>(data, data_bytes, attributes, count, unless_plain(Entry().process(), address),
                                                         bytes);
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

}  // extern "C"
}  // namespace nvshare::interposer
