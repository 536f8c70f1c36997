#include "simgpu/array.h"

#include <algorithm>

#include "simgpu/memory.h"

namespace simgpu {
namespace {

constexpr uint64_t kRequirementUnit = 64 << 10;

struct Array {
  std::atomic<bool> alive{true};
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  uint64_t base = 0;  // 0: none yet (deferred mapping)
  uint64_t pitch = 0;
  bool level = false;  // of a mipmapped array, and destroyed with it
};

struct Mipmapped {
  std::atomic<bool> alive{true};
  unsigned flags = 0;
  uint64_t bytes = 0;
  std::vector<Array*> levels;
};

Array* find(CUarray handle) {
  auto* array = reinterpret_cast<Array*>(handle);
  return array != nullptr && array->alive.load() ? array : nullptr;
}

Mipmapped* find(CUmipmappedArray handle) {
  auto* array = reinterpret_cast<Mipmapped*>(handle);
  return array != nullptr && array->alive.load() ? array : nullptr;
}

unsigned element_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
  }
  return 4;
}

uint64_t pitch_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return round_up(shape.Width * shape.NumChannels * element_bytes(shape.Format), 512);
}

uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return pitch_of(shape) * std::max<size_t>(shape.Height, 1) * std::max<size_t>(shape.Depth, 1);
}

// Memory of its own comes at once, or with deferred mapping never: mapping physical memory into arrays is not modelled.
CUresult create(Array** out, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (shape.Width == 0 || shape.NumChannels == 0 || shape.NumChannels > 4) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr base = 0;
  if ((shape.Flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE)) == 0) {
    if (fault_strikes(Machine::get().faults().alloc_oom)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult result = allocate(*context, bytes_of(shape), RangeKind::kPlain, nullptr, &base)) return result;
  }
  *out = Kept<Array>::make();
  (*out)->shape = shape;
  (*out)->pitch = pitch_of(shape);
  (*out)->base = base;
  return CUDA_SUCCESS;
}

CUresult destroy(Array& array) {
  if (!array.alive.exchange(false)) return CUDA_ERROR_INVALID_HANDLE;
  return array.base != 0 ? free_range(array.base, true) : CUDA_SUCCESS;
}

CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, unsigned flags, uint64_t bytes) {
  if (out == nullptr || (flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = {round_up(bytes, kRequirementUnit), kRequirementUnit, {}};
  return CUDA_SUCCESS;
}

}  // namespace

bool locate(CUarray handle, uint64_t* base, uint64_t* pitch, uint64_t* height) {
  const Array* array = find(handle);
  if (array == nullptr || array->base == 0) return false;
  *base = array->base;
  *pitch = array->pitch;
  *height = std::max<size_t>(array->shape.Height, 1);
  return true;
}

uint64_t row_bytes(CUarray handle) {
  const Array* array = find(handle);
  return array != nullptr ? array->shape.Width * array->shape.NumChannels * element_bytes(array->shape.Format) : 0;
}

SIM_API CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  if (out == nullptr || shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create(reinterpret_cast<Array**>(out), *shape);
}
SIM_API CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* shape) {
  if (out == nullptr || shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create(reinterpret_cast<Array**>(out), {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0});
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
SIM_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle, CUdevice) {
  const Array* array = find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, array->shape.Flags, bytes_of(array->shape));
}
SIM_API CUresult cuArrayDestroy(CUarray handle) {
  if (const CUresult result = enter_process()) return result;
  Array* array = find(handle);
  return array == nullptr || array->level ? CUDA_ERROR_INVALID_HANDLE : destroy(*array);
}

SIM_API CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || shape == nullptr || levels == 0 || levels > 16) return CUDA_ERROR_INVALID_VALUE;
  auto* mipmapped = Kept<Mipmapped>::make();
  mipmapped->flags = shape->Flags;
  for (unsigned i = 0; i < levels; ++i) {
    CUDA_ARRAY3D_DESCRIPTOR smaller = *shape;
    smaller.Width = std::max<size_t>(shape->Width >> i, 1);
    if (shape->Height > 0) smaller.Height = std::max<size_t>(shape->Height >> i, 1);
    Array* level = nullptr;
    if (const CUresult result = create(&level, smaller)) {
      for (Array* made : mipmapped->levels) destroy(*made);
      Kept<Mipmapped>::drop(mipmapped);
      return result;
    }
    level->level = true;
    mipmapped->bytes += bytes_of(smaller);
    mipmapped->levels.push_back(level);
  }
  *out = reinterpret_cast<CUmipmappedArray>(mipmapped);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  const Mipmapped* mipmapped = find(handle);
  if (mipmapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || level >= mipmapped->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUarray>(mipmapped->levels[level]);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray handle, CUdevice) {
  const Mipmapped* mipmapped = find(handle);
  if (mipmapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, mipmapped->flags, mipmapped->bytes);
}
SIM_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  if (const CUresult result = enter_process()) return result;
  Mipmapped* mipmapped = find(handle);
  if (mipmapped == nullptr || !mipmapped->alive.exchange(false)) return CUDA_ERROR_INVALID_HANDLE;
  for (Array* level : mipmapped->levels) destroy(*level);
  return CUDA_SUCCESS;
}

}  // namespace simgpu
