// CUDA arrays and mipmapped arrays: memory in a layout of the driver's own, which cannot move. Counted, and allocated with the lock only.
// Copies between them and memory by length.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/submit.h"
#include "interposer/hooks/unswappable.h"
#include "interposer/memory/driver_memory/arrays.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

uint64_t key_of(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

template <typename Handle, typename Create>
CUresult create(Process& process, Handle* handle, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels, Create create_real) {
  CUcontext context = nullptr;
  Device* device = handle != nullptr ? process.current_device(&context) : nullptr;
  if (device == nullptr || device->refused()) return create_real();
  const size_t bytes = array_bytes(shape, levels, device->ordinal());
  if (bytes == 0) return create_real();
  return allocate_unswappable(*device, levels > 0 ? "a mipmapped array" : "an array", bytes, context, [&](uint64_t* key) {
    CUresult result = create_real();
    if (result == CUDA_SUCCESS) *key = key_of(*handle);
    return result;
  });
}

template <auto Function, typename Handle>
CUresult destroy(Process& process, Handle handle) {
  Device* owner = nullptr;
  DriverMemory::Holding released{};
  if (process.active()) {
    process.for_each_device([&](Device& device) {
      if (owner != nullptr) return;
      released = device.memory().driver.release(key_of(handle));
      if (released.bytes > 0) owner = &device;
    });
  }
  CUresult result = call_real<Function>(handle);
  if (owner != nullptr && result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED && result != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    owner->memory().driver.hold_again(released);  // with the context that it was made in, whichever is current
  }
  return result;
}

// Between an array and memory, a driver refuses what runs over the end of an allocation (measured of cuMemcpyDtoA). Behind ours lies what
// is mapped with it, which would be copied: so the driver is asked about an address without memory then.
CUdeviceptr as_long_as_it_is(Process& process, CUdeviceptr address, size_t bytes) {
  AllocationRange range;
  int ordinal = -1;
  if (!process.active()) return address;
  if (process.owner(address, &range) == nullptr && !process.ipc.find(address, &range, &ordinal)) return address;
  return bytes > range.base + range.bytes - address ? kNowhere : address;
}

template <auto Function, bool PerThread>
CUresult into_array(Entry entry, CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
  Process& process = entry.process();
  return submit_copy<Function, kNoStream, PerThread>(entry, array, offset, as_long_as_it_is(process, from, bytes), bytes);
}
template <auto Function, bool PerThread>
CUresult out_of_array(Entry entry, CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
  Process& process = entry.process();
  return submit_copy<Function, kNoStream, PerThread>(entry, as_long_as_it_is(process, to, bytes), array, offset, bytes);
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* shape) {
  auto real = [&] { return call_real<&RealDriver::cuArrayCreate_v2>(array, shape); };
  if (shape == nullptr) return real();
  return create(Entry().process(), array, {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0}, 0, real);
}

NVSHARE_EXPORT CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  auto real = [&] { return call_real<&RealDriver::cuArray3DCreate_v2>(array, shape); };
  return shape == nullptr ? real() : create(Entry().process(), array, *shape, 0, real);
}

NVSHARE_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  auto real = [&] { return call_real<&RealDriver::cuMipmappedArrayCreate>(array, shape, levels); };
  return shape == nullptr || levels == 0 ? real() : create(Entry().process(), array, *shape, levels, real);
}

NVSHARE_EXPORT CUresult cuArrayDestroy(CUarray array) { return destroy<&RealDriver::cuArrayDestroy>(Entry().process(), array); }
NVSHARE_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return destroy<&RealDriver::cuMipmappedArrayDestroy>(Entry().process(), array);
}

NVSHARE_EXPORT CUresult cuMemcpyDtoA_v2(CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
  return into_array<&RealDriver::cuMemcpyDtoA_v2, false>(Entry(), array, offset, from, bytes);
}
NVSHARE_EXPORT CUresult cuMemcpyDtoA_v2_ptds(CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
  return into_array<&RealDriver::cuMemcpyDtoA_v2_ptds, true>(Entry(), array, offset, from, bytes);
}
NVSHARE_EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
  return out_of_array<&RealDriver::cuMemcpyAtoD_v2, false>(Entry(), to, array, offset, bytes);
}
NVSHARE_EXPORT CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
  return out_of_array<&RealDriver::cuMemcpyAtoD_v2_ptds, true>(Entry(), to, array, offset, bytes);
}

}  // extern "C"
}  // namespace nvshare::interposer
