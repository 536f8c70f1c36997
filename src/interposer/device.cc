#include "interposer/device.h"

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

bool Device::identify() {
  const RealDriver& driver = real_driver();
  auto uuid = driver.cuDeviceGetUuid_v2 != nullptr ? driver.cuDeviceGetUuid_v2 : driver.cuDeviceGetUuid;
  if (uuid == nullptr || uuid(&uuid_, ordinal_) != cuda::CUDA_SUCCESS) return false;
  if (driver.cuDeviceTotalMem_v2(&total_, ordinal_) != cuda::CUDA_SUCCESS) return false;
  if (driver.cuDeviceGetName(name_, sizeof name_, ordinal_) != cuda::CUDA_SUCCESS) name_[0] = '\0';
  name_[sizeof name_ - 1] = '\0';
  return true;
}

}  // namespace nvshare::interposer
