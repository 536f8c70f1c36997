// How much GPU memory a CUDA array takes.
#pragma once

#include <cstddef>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

// From its description; 0 for one that gets its memory later by mapping (sparse, or with deferred mapping). Rounded as tiles of 64 bytes by
// 8 rows are, and at the end to 64 KiB; at least what the driver takes for the formats that it names, a guess of 16 bytes an element for
// others. Pure.
size_t array_bytes_computed(const cuda::CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels);

// As the driver says: it tells the requirements of arrays with deferred mapping, which take no memory, so it is asked for a twin of that
// kind. Else computed. `levels`: 0 for an array without mipmaps. With the context current.
size_t array_bytes(const cuda::CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels, cuda::CUdevice device);

}  // namespace nvshare::interposer
