// Allocation and free, and what there is. What is not ours goes to the driver unchanged. In the order of streams: stream_memory_hooks.cc.
#include <algorithm>

#include "interposer/generated/hooks.h"
#include "interposer/hooks/capture_rules.h"
#include "interposer/hooks/entry.h"
#include "interposer/hooks/frees.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

constexpr size_t kPitchAlignment = 512;  // what the driver's own pitched allocations are aligned to
// Memory of the current context's GPU, or null when the driver is to answer (no context, not governed).
DeviceMemory* current_memory(Process& process, CUcontext* context) {
  Device* device = process.current_device(context);
  return device != nullptr && !device->refused() ? &device->memory() : nullptr;
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
  const bool plausible = pitch != nullptr && width > 0 && width < SIZE_MAX / 4 && height > 0 && element_bytes != 0;
  const size_t row = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  if (memory == nullptr || !plausible || row > SIZE_MAX / 4 / height) {
    return call_real<&RealDriver::cuMemAllocPitch_v2>(address, pitch, width, height, element_bytes);
  }
  if (const CUresult refused = forbidden_by_a_capture(process); refused != CUDA_SUCCESS) return refused;
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

}  // extern "C"
}  // namespace nvshare::interposer
