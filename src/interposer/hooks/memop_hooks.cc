// Memory operations of streams. A driver refuses them on memory of pools (measured: cuStreamWriteValue32, cuStreamWriteValue64 and
// cuStreamBatchMemOp on memory of cuMemAllocAsync and cuMemAllocFromPoolAsync return "invalid value", each time). Such memory is virtual
// memory to the driver where we serve the pool, and it would take that.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/submit.h"
#include "interposer/memory/pools.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

bool is_of_pool(CUdeviceptr address) {
  if (!pools().placed_any() || !process().active()) [[likely]]
    return false;
  Memory::Range range;
  return process().owner(address, &range) != nullptr && pools().pool_of(range.base) != nullptr;
}

// Of pools it is an address without memory, so that the driver says what is wrong first.
CUdeviceptr as_the_driver_sees(CUdeviceptr address) { return is_of_pool(address) ? kNowhere : address; }

template <auto Function, bool PerThread, typename Value>
CUresult write_value(CUstream stream, CUdeviceptr address, Value value, unsigned flags) {
  return submit<Function, 0, PerThread>(stream, as_the_driver_sees(address), value, flags);
}

bool has_address(const CUstreamBatchMemOpParams& each) {
  return each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

template <auto Function, bool PerThread>
CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  constexpr unsigned kMost = 256;  // as the driver takes; it refuses more
  bool of_pool = false;
  for (unsigned i = 0; list != nullptr && count <= kMost && i < count; ++i) {
    of_pool = of_pool || (has_address(list[i]) && is_of_pool(list[i].writeValue.address));
  }
  if (!of_pool) return submit<Function, 0, PerThread>(stream, count, list, flags);
  std::vector<CUstreamBatchMemOpParams> seen(list, list + count);
  for (CUstreamBatchMemOpParams& each : seen) {
    if (has_address(each)) each.writeValue.address = as_the_driver_sees(each.writeValue.address);
  }
  return submit<Function, 0, PerThread>(stream, count, seen.data(), flags);
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue32_v2, false>(stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue32_v2_ptsz, true>(stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue64_v2, false>(stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue64_v2_ptsz, true>(stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  return batch<&RealDriver::cuStreamBatchMemOp_v2, false>(stream, count, list, flags);
}
NVSHARE_EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  return batch<&RealDriver::cuStreamBatchMemOp_v2_ptsz, true>(stream, count, list, flags);
}

}  // extern "C"
}  // namespace nvshare::interposer
