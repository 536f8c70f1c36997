#include "interposer/memory/limits/charges.h"

#include "interposer/process/device.h"

namespace nvshare::interposer {

bool charge(Device& device, size_t bytes, const char* what) {
  Turns& turns = device.turns();
  if (turns.charge(bytes)) return true;
  // What the driver keeps for the program's next use.
  const uint64_t before = device.limit().charged();
  device.memory().driver.trim();
  if (device.limit().charged() < before && turns.charge(bytes)) return true;
  device.limit().log_refusal(what, bytes, kChargeUnitBytes, kSmallChargeUnitBytes);
  return false;
}

void refund(Device& device, size_t bytes) { device.limit().lease().refund(bytes); }

}  // namespace nvshare::interposer
