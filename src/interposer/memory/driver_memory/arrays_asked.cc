#include "interposer/memory/driver_memory/arrays.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUDA_ARRAY3D_DESCRIPTOR;

size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels, cuda::CUdevice device) {
  const size_t computed = array_bytes_computed(shape, levels);
  if (computed == 0) return 0;
  const RealDriver& driver = real_driver();
  CUDA_ARRAY3D_DESCRIPTOR twin = shape;
  twin.Flags |= cuda::CUDA_ARRAY3D_DEFERRED_MAPPING;
  cuda::CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  if (levels > 0) {
    cuda::CUmipmappedArray array = nullptr;
    if (driver.cuMipmappedArrayCreate(&array, &twin, levels) != cuda::CUDA_SUCCESS) return computed;
    if (driver.cuMipmappedArrayGetMemoryRequirements(&needs, array, device) != cuda::CUDA_SUCCESS) needs.size = 0;
    driver.cuMipmappedArrayDestroy(array);
  } else {
    cuda::CUarray array = nullptr;
    if (driver.cuArray3DCreate_v2(&array, &twin) != cuda::CUDA_SUCCESS) return computed;
    if (driver.cuArrayGetMemoryRequirements(&needs, array, device) != cuda::CUDA_SUCCESS) needs.size = 0;
    driver.cuArrayDestroy(array);
  }
  return needs.size != 0 ? needs.size : computed;
}

}  // namespace nvshare::interposer
