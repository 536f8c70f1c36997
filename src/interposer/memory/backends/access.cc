#include "interposer/memory/backends/access.h"

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;

CUresult grant_access(CUdeviceptr address, size_t bytes, uint32_t accessors, uint32_t before) {
  cuda::CUmemAccessDesc descriptions[32];
  size_t count = 0;
  const uint32_t concerned = accessors | before;
  for (int ordinal = 0; ordinal < 32; ++ordinal) {
    if ((concerned >> ordinal & 1) == 0) continue;
    descriptions[count] = {};
    descriptions[count].location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    descriptions[count].location.id = ordinal;
    descriptions[count].flags =
        (accessors >> ordinal & 1) != 0 ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE : cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ++count;
  }
  return real_driver().cuMemSetAccess(address, bytes, descriptions, count);
}

uint32_t reachable(uint32_t gpus, int other) {
  for (int ordinal = 0; ordinal < 32; ++ordinal) {
    int can = 0;
    if ((gpus >> ordinal & 1) == 0) continue;
    const CUresult asked = real_driver().cuDeviceCanAccessPeer(&can, ordinal, other);
    if (asked != cuda::CUDA_SUCCESS || can == 0) gpus &= ~(1u << ordinal);
  }
  return gpus;
}

}  // namespace nvshare::interposer
