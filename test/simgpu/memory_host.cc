// Pinned host memory.
#include <sys/mman.h>

#include <mutex>

#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

// The kernel locks pages one process's thread after the other, more or less: several threads are not faster here.
void take_time_to_pin(size_t bytes) {
  if (config().pin_bytes_per_s <= 0) return;
  static std::mutex& one_at_a_time = *new std::mutex;  // never destroyed: threads outlive exit handlers
  const std::lock_guard<std::mutex> pinning(one_at_a_time);
  const double lasts_ns = static_cast<double>(bytes) / config().pin_bytes_per_s * 1e9 * config().time_scale;
  sleep_until_ns(now_ns() + static_cast<uint64_t>(lasts_ns));
}

CUresult allocate_host(void** out, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_unsafe_call()) return result;
  if (bytes == 0) {
    *out = nullptr;
    return CUDA_SUCCESS;
  }
  if (fault_strikes(Machine::get().faults().register_fail)) return CUDA_ERROR_OUT_OF_MEMORY;
  take_time_to_pin(bytes);
  Range range;
  range.kind = RangeKind::kHost;
  range.size = bytes;
  range.owned = round_up(bytes, 4096);
  range.base = map_memory(range.owned, kPageBytes);  // no small one crosses two pieces (recorded: CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
  if (range.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range.device = context->device;
  range.context = context;
  range.flags = flags;
  *out = reinterpret_cast<void*>(range.base);
  AddressSpace::Writing writing(here().memory);
  writing.add(std::move(range));
  return CUDA_SUCCESS;
}

CUresult take_out(void* pointer, RangeKind kind, CUresult otherwise, Range* range) {
  if (const CUresult result = enter_process()) return result;
  const auto base = reinterpret_cast<uint64_t>(pointer);
  Context* context = nullptr;
  {
    AddressSpace::Reading reading(here().memory);
    const Range* found = reading.find(base);
    if (found == nullptr || found->base != base || found->kind != kind) return otherwise;
    context = found->context;
  }
  if (context->alive.load()) drain(*context);  // a copy may still use it
  AddressSpace::Writing writing(here().memory);
  const auto found = writing.ranges().find(base);
  if (found == writing.ranges().end()) return otherwise;
  *range = std::move(found->second);
  writing.ranges().erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

SIM_API CUresult cuMemAllocHost_v2(void** out, size_t bytes) { return allocate_host(out, bytes, 0); }
SIM_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) { return allocate_host(out, bytes, flags); }

SIM_API CUresult cuMemFreeHost(void* pointer) {
  if (const CUresult result = check_unsafe_call()) return result;
  if (pointer == nullptr) return CUDA_SUCCESS;
  Range range;
  if (const CUresult result = take_out(pointer, RangeKind::kHost, CUDA_ERROR_INVALID_VALUE, &range)) return result;
  unmap_memory(range.base, range.owned);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (fault_strikes(Machine::get().faults().register_fail)) return CUDA_ERROR_OUT_OF_MEMORY;
  take_time_to_pin(bytes);
  Range range;
  range.kind = RangeKind::kRegistered;
  range.base = reinterpret_cast<uint64_t>(pointer);
  range.size = bytes;
  range.device = context->device;
  range.context = context;
  range.flags = flags;
  AddressSpace::Writing writing(here().memory);
  if (writing.overlaps(range.base, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  writing.add(std::move(range));
  return CUDA_SUCCESS;
}

// Of an allocation on the GPU a driver says that the value is wrong, not that it is not registered.
SIM_API CUresult cuMemHostUnregister(void* pointer) {
  if (const CUresult result = enter_process()) return result;
  {
    AddressSpace::Reading reading(here().memory);
    const Range* found = reading.find(reinterpret_cast<uint64_t>(pointer));
    if (found != nullptr && (found->kind == RangeKind::kPlain || found->kind == RangeKind::kPool)) return CUDA_ERROR_INVALID_VALUE;
  }
  Range range;
  return take_out(pointer, RangeKind::kRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, &range);
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(reinterpret_cast<uint64_t>(pointer));
  const bool mapped = range != nullptr && range->kind == RangeKind::kMapping;  // of which it is the begin (measured)
  if (range == nullptr || (!mapped && !range->on_host())) return CUDA_ERROR_INVALID_VALUE;
  *out = mapped ? range->base : reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned* out, void* pointer) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(reinterpret_cast<uint64_t>(pointer));
  if (range != nullptr && range->kind == RangeKind::kMapping) {  // as of host memory (seen of what can be exported)
    *out = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  }
  if (range == nullptr || !range->on_host()) return CUDA_ERROR_INVALID_VALUE;
  *out = range->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

}  // namespace simgpu
