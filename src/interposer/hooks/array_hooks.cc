// CUDA arrays and mipmapped arrays: memory in a layout of the driver's own, which cannot move. Counted, and allocated with the lock only.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/unswappable.h"
#include "interposer/memory/arrays.h"
#include "interposer/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

uint64_t key_of(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

template <typename Handle, typename Create>
CUresult create(Handle* handle, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels, Create create_real) {
  CUcontext context = nullptr;
  Device* device = handle != nullptr ? process().current_device(&context) : nullptr;
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
CUresult destroy(Handle handle) {
  Device* owner = nullptr;
  size_t bytes = 0;
  if (process().active()) {
    process().for_each_device([&](Device& device) {
      if (owner != nullptr) return;
      bytes = device.memory().release_unswappable(key_of(handle));
      if (bytes > 0) owner = &device;
    });
  }
  CUresult result = call_real<Function>(handle);
  if (owner != nullptr && result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED && result != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    CUcontext context = nullptr;
    real_driver().cuCtxGetCurrent(&context);
    owner->memory().hold_again({key_of(handle), bytes, context});
  }
  return result;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* shape) {
  auto real = [&] { return call_real<&RealDriver::cuArrayCreate_v2>(array, shape); };
  if (shape == nullptr) return real();
  return create(array, {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0}, 0, real);
}

NVSHARE_EXPORT CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  auto real = [&] { return call_real<&RealDriver::cuArray3DCreate_v2>(array, shape); };
  return shape == nullptr ? real() : create(array, *shape, 0, real);
}

NVSHARE_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  auto real = [&] { return call_real<&RealDriver::cuMipmappedArrayCreate>(array, shape, levels); };
  return shape == nullptr || levels == 0 ? real() : create(array, *shape, levels, real);
}

NVSHARE_EXPORT CUresult cuArrayDestroy(CUarray array) { return destroy<&RealDriver::cuArrayDestroy>(array); }
NVSHARE_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return destroy<&RealDriver::cuMipmappedArrayDestroy>(array); }

}  // extern "C"
}  // namespace nvshare::interposer
