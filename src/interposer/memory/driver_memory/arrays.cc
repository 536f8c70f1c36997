#include "interposer/memory/driver_memory/arrays.h"

#include <algorithm>

namespace nvshare::interposer {

using cuda::CUDA_ARRAY3D_DESCRIPTOR;

namespace {

constexpr size_t kTileBytes = 64;  // of a row
constexpr size_t kTileRows = 8;
constexpr size_t kUnit = size_t{64} << 10;
constexpr size_t kElementBytesMax = 16;

size_t rounded_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  size_t channel = 0;
  switch (shape.Format) {
    case cuda::CU_AD_FORMAT_UNSIGNED_INT8:
    case cuda::CU_AD_FORMAT_SIGNED_INT8:
      channel = 1;
      break;
    case cuda::CU_AD_FORMAT_UNSIGNED_INT16:
    case cuda::CU_AD_FORMAT_SIGNED_INT16:
    case cuda::CU_AD_FORMAT_HALF:
      channel = 2;
      break;
    case cuda::CU_AD_FORMAT_UNSIGNED_INT32:
    case cuda::CU_AD_FORMAT_SIGNED_INT32:
    case cuda::CU_AD_FORMAT_FLOAT:
      channel = 4;
      break;
  }
  return channel == 0 ? kElementBytesMax : channel * std::max(shape.NumChannels, 1u);  // a format of a later driver
}

// What an overflow gives is refused by the limit or the driver; it must only not come out small.
size_t product(size_t a, size_t b) {
  size_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? SIZE_MAX / 4 : std::min(result, SIZE_MAX / 4);
}

}  // namespace

size_t array_bytes_computed(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  if ((shape.Flags & (cuda::CUDA_ARRAY3D_SPARSE | cuda::CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  const bool layered = (shape.Flags & (cuda::CUDA_ARRAY3D_LAYERED | cuda::CUDA_ARRAY3D_CUBEMAP)) != 0;
  size_t sum = 0;
  for (unsigned level = 0; level < std::max(levels, 1u) && level < 32; ++level) {
    const size_t width = std::max<size_t>(shape.Width >> level, 1);
    const size_t height = std::max<size_t>(shape.Height >> level, 1);
    const size_t depth = layered ? std::max<size_t>(shape.Depth, 1) : std::max<size_t>(shape.Depth >> level, 1);
    const size_t row = rounded_up(product(width, element_bytes(shape)), kTileBytes);
    const size_t rows = shape.Height == 0 ? 1 : rounded_up(height, kTileRows);
    sum = std::min(sum + product(product(row, rows), depth), SIZE_MAX / 4);
  }
  return rounded_up(sum, kUnit);
}

}  // namespace nvshare::interposer
