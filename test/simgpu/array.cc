#include "simgpu/array.h"

#include <algorithm>

#include "simgpu/memory.h"

namespace simgpu {
namespace {

struct Array {
  std::atomic<bool> alive{true};
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  uint64_t base = 0;
  uint64_t pitch = 0;
};

Array* find(CUarray handle) {
  auto* array = reinterpret_cast<Array*>(handle);
  return array != nullptr && array->alive.load() ? array : nullptr;
}

unsigned element_bytes(CUarray_format format) {
  switch (static_cast<unsigned>(format)) {
    case 0x01:  // 8-bit integers
    case 0x08:
      return 1;
    case 0x02:  // 16-bit integers and halves
    case 0x09:
    case 0x10:
      return 2;
    default:  // not an enumeration of ours: whatever else there is has 32 bits
      return 4;
  }
}

CUresult create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr || shape.Width == 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t pitch = round_up(shape.Width * shape.NumChannels * element_bytes(shape.Format), 512);
  const uint64_t rows = std::max<size_t>(shape.Height, 1) * std::max<size_t>(shape.Depth, 1);
  CUdeviceptr base = 0;
  if (const CUresult result = allocate(*context, pitch * rows, RangeKind::kPlain, nullptr, &base)) return result;
  Array* array = Kept<Array>::make();
  array->shape = shape;
  array->pitch = pitch;
  array->base = base;
  *out = reinterpret_cast<CUarray>(array);
  return CUDA_SUCCESS;
}

}  // namespace

bool locate(CUarray handle, uint64_t* base, uint64_t* pitch, uint64_t* height) {
  const Array* array = find(handle);
  if (array == nullptr) return false;
  *base = array->base;
  *pitch = array->pitch;
  *height = std::max<size_t>(array->shape.Height, 1);
  return true;
}

SIM_API CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* shape) {
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create(out, {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0});
}
SIM_API CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  return shape == nullptr ? CUDA_ERROR_INVALID_VALUE : create(out, *shape);
}
SIM_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  const Array* array = find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = array->shape;
  return CUDA_SUCCESS;
}
SIM_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  const Array* array = find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = {array->shape.Width, array->shape.Height, array->shape.Format, array->shape.NumChannels};
  return CUDA_SUCCESS;
}
SIM_API CUresult cuArrayDestroy(CUarray handle) {
  if (const CUresult result = enter_process()) return result;
  Array* array = find(handle);
  if (array == nullptr || !array->alive.exchange(false)) return CUDA_ERROR_INVALID_HANDLE;
  return free_range(array->base, true);
}

}  // namespace simgpu
