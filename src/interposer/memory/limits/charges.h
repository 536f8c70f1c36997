// What an allocation counts against its tenant's memory limit (memory_limit.h), and counting it.
#pragma once

#include <cstddef>

#include "interposer/memory/blocks/slab.h"

namespace nvshare::interposer {

class Device;

// What the driver would take for an allocation of so many bytes. Small ones share its pages.
inline constexpr size_t kChargeUnitBytes = size_t{2} << 20;
inline constexpr size_t kSmallChargeUnitBytes = 512;
inline size_t charged_bytes(size_t bytes) {
  const size_t unit = bytes > SlabSet::kSlotBytesMax ? kChargeUnitBytes : kSmallChargeUnitBytes;
  return (bytes + unit - 1) / unit * unit;
}

// Charges so many bytes, with what is kept for nobody given back first where the limit is near. False, and a line in the log: past the
// limit. No lock held, outside the gate.
bool charge(Device& device, size_t bytes, const char* what = "an allocation");
void refund(Device& device, size_t bytes);

}  // namespace nvshare::interposer
