#include "interposer/process/device.h"

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

bool Device::ask_uuid(int ordinal, cuda::CUuuid* uuid) {
  const RealDriver& driver = real_driver();
  auto ask = driver.cuDeviceGetUuid_v2 != nullptr ? driver.cuDeviceGetUuid_v2 : driver.cuDeviceGetUuid;
  return ask != nullptr && ask(uuid, ordinal) == cuda::CUDA_SUCCESS;
}

bool Device::identify() {
  const RealDriver& driver = real_driver();
  if (!ask_uuid(ordinal_, &uuid_)) return false;
  gpu_.set_uuid(uuid_.bytes);
  if (driver.cuDeviceTotalMem_v2(&total_, ordinal_) != cuda::CUDA_SUCCESS) return false;
  int exportable = 0;
  if (driver.cuDeviceGetAttribute(&exportable, cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal_) ==
      cuda::CUDA_SUCCESS) {
    exportable_ = exportable != 0;
  }
  if (driver.cuDeviceGetName(name_, sizeof name_, ordinal_) != cuda::CUDA_SUCCESS) name_[0] = '\0';
  name_[sizeof name_ - 1] = '\0';
  return true;
}

}  // namespace nvshare::interposer
