// Where the driver is to answer about what is no memory of the program's.
#pragma once

#include "cuda/driver_api.h"

namespace nvshare::interposer {

inline constexpr cuda::CUdeviceptr kNowhere = 0x1000;  // nothing is ever mapped in a process's first pages

}  // namespace nvshare::interposer
