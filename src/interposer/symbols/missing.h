// For each type of driver function, one that only says that the driver lacks it.
#pragma once

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

template <typename Pointer>
inline constexpr Pointer missing = nullptr;

template <typename... Parameters>
inline constexpr cuda::CUresult (*missing<cuda::CUresult (*)(Parameters...)>)(Parameters...) =
    [](Parameters...) { return missing_function(); };

}  // namespace nvshare::interposer
