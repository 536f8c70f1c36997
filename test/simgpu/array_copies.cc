// Copies between arrays and memory by length: within one row of the array, and within one allocation of the memory's (as a driver 580
// takes them, test/simgpu/recorded/h200-580.txt.gz).
#include "simgpu/array.h"
#include "simgpu/context.h"
#include "simgpu/copy.h"

namespace simgpu {
namespace {

struct Order {
  CUstream stream = nullptr;
  Default null_means = kLegacy;
  Timing timing = Timing::kBlocking;
};

// Where the array's bytes begin, or the error.
CUresult place_in(CUarray array, uint64_t offset, uint64_t bytes, uint64_t* place) {
  uint64_t pitch = 0, height = 0;
  if (!locate(array, place, &pitch, &height)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t row = row_bytes(array);
  if (offset > row || bytes > row - offset) return CUDA_ERROR_INVALID_VALUE;
  *place += offset;
  return CUDA_SUCCESS;
}

bool within_an_allocation(uint64_t address, uint64_t bytes) {
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  return range != nullptr && bytes <= range->end() - address;
}

CUresult copy_line(uint64_t target, uint64_t source, uint64_t bytes, const Order& order) {
  Transfer transfer;
  transfer.target = target;
  transfer.source = source;
  transfer.width = bytes;
  return copy(transfer, Expect::kAny, Expect::kAny, order.stream, order.null_means, order.timing);
}

// `memory_is`: kDevice for an address of the driver's memory.
CUresult into_array(CUarray array, size_t offset, uint64_t from, Expect memory_is, size_t bytes, const Order& order) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(order.stream, order.null_means, &stream)) return result;
  uint64_t place = 0;
  if (const CUresult result = place_in(array, offset, bytes, &place)) return result;
  if (memory_is == Expect::kDevice && !within_an_allocation(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return copy_line(place, from, bytes, order);
}

CUresult out_of_array(uint64_t to, Expect memory_is, CUarray array, size_t offset, size_t bytes, const Order& order) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(order.stream, order.null_means, &stream)) return result;
  uint64_t place = 0;
  if (const CUresult result = place_in(array, offset, bytes, &place)) return result;
  if (memory_is == Expect::kDevice && !within_an_allocation(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return copy_line(to, place, bytes, order);
}

}  // namespace

SIM_API CUresult cuMemcpyDtoA_v2(CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
  return into_array(array, offset, from, Expect::kDevice, bytes, {});
}
SIM_API CUresult cuMemcpyDtoA_v2_ptds(CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
  return into_array(array, offset, from, Expect::kDevice, bytes, {nullptr, kPerThread, Timing::kBlocking});
}
SIM_API CUresult cuMemcpyHtoA_v2(CUarray array, size_t offset, const void* from, size_t bytes) {
  return into_array(array, offset, address(from), Expect::kAny, bytes, {});
}
SIM_API CUresult cuMemcpyHtoA_v2_ptds(CUarray array, size_t offset, const void* from, size_t bytes) {
  return into_array(array, offset, address(from), Expect::kAny, bytes, {nullptr, kPerThread, Timing::kBlocking});
}
SIM_API CUresult cuMemcpyHtoAAsync_v2(CUarray array, size_t offset, const void* from, size_t bytes, CUstream stream) {
  return into_array(array, offset, address(from), Expect::kAny, bytes, {stream, kLegacy, Timing::kAsynchronous});
}
SIM_API CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray array, size_t offset, const void* from, size_t bytes, CUstream stream) {
  return into_array(array, offset, address(from), Expect::kAny, bytes, {stream, kPerThread, Timing::kAsynchronous});
}
SIM_API CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
  return out_of_array(to, Expect::kDevice, array, offset, bytes, {});
}
SIM_API CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
  return out_of_array(to, Expect::kDevice, array, offset, bytes, {nullptr, kPerThread, Timing::kBlocking});
}
SIM_API CUresult cuMemcpyAtoH_v2(void* to, CUarray array, size_t offset, size_t bytes) {
  return out_of_array(address(to), Expect::kAny, array, offset, bytes, {});
}
SIM_API CUresult cuMemcpyAtoH_v2_ptds(void* to, CUarray array, size_t offset, size_t bytes) {
  return out_of_array(address(to), Expect::kAny, array, offset, bytes, {nullptr, kPerThread, Timing::kBlocking});
}
SIM_API CUresult cuMemcpyAtoHAsync_v2(void* to, CUarray array, size_t offset, size_t bytes, CUstream stream) {
  return out_of_array(address(to), Expect::kAny, array, offset, bytes, {stream, kLegacy, Timing::kAsynchronous});
}
SIM_API CUresult cuMemcpyAtoHAsync_v2_ptsz(void* to, CUarray array, size_t offset, size_t bytes, CUstream stream) {
  return out_of_array(address(to), Expect::kAny, array, offset, bytes, {stream, kPerThread, Timing::kAsynchronous});
}

}  // namespace simgpu
