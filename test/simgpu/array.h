// CUDA arrays, as plain memory in rows: enough to be counted and copied.
#pragma once

#include "simgpu/core.h"

namespace simgpu {

// Where an array's first row is, and the distances between rows (bytes) and slices (rows). False: no such array.
bool locate(CUarray array, uint64_t* base, uint64_t* pitch, uint64_t* height);
// The bytes of a row that are elements.
uint64_t row_bytes(CUarray array);

}  // namespace simgpu
