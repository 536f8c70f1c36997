// How many GPUs of one process are governed: by its ordinals, the first so many. Each has a flag of the gate (gate/gate.h).
#pragma once

namespace nvshare::interposer {

inline constexpr int kDevicesMax = 16;

}  // namespace nvshare::interposer
