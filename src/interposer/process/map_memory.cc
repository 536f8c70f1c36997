#include "interposer/process/map_memory.h"

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

cuda::CUresult map_memory(cuda::CUdeviceptr address, size_t bytes, size_t offset, cuda::CUmemGenericAllocationHandle handle) {
  const RealDriver& driver = real_driver();
  const cuda::CUresult result = driver.cuMemMap(address, bytes, offset, handle, 0);
  if (result == cuda::CUDA_SUCCESS || result == cuda::CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (driver.cuMemUnmap(address, bytes) != cuda::CUDA_SUCCESS) return result;
  return driver.cuMemMap(address, bytes, offset, handle, 0);
}

}  // namespace nvshare::interposer
