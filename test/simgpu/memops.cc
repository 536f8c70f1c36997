// Memory operations of streams, as a driver 580 takes them (test/simgpu/recorded/h200-580.txt.gz): it refuses memory of pools. Those that
// wait are missing.
#include <algorithm>

#include "simgpu/capture.h"
#include "simgpu/context.h"
#include "simgpu/copy.h"

namespace simgpu {
namespace {

constexpr unsigned kFlags = 1;  // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
constexpr unsigned kMostOfBatch = 256;

bool is_of_pool(CUdeviceptr address) {
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  return range != nullptr && range->kind == RangeKind::kPool;
}

// Told before addresses are looked at, as of fills, of which it was measured.
bool captures_in_vain(const Stream& stream) {
  std::lock_guard lock(stream.context->mutex);
  const Capture* capture = stream.capture.load();
  return capture != nullptr && capture->invalid.load();
}

CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, uint32_t bytes, unsigned flags, Default null_means) {
  Stream* found = nullptr;
  if (const CUresult result = find_stream(stream, null_means, &found)) return result;
  if ((flags & ~kFlags) != 0 || address % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (captures_in_vain(*found)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (is_of_pool(address)) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t at = 0; at < bytes; at += 4) {
    const auto word = static_cast<uint32_t>(value >> (8 * at));
    if (const CUresult result = fill({address + at, 4, word, 4, 1, 1}, stream, null_means, Timing::kAsynchronous)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams* list, unsigned flags, Default null_means) {
  Stream* found = nullptr;
  if (const CUresult result = find_stream(stream, null_means, &found)) return result;
  if (count == 0) return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (list == nullptr || count > kMostOfBatch || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const auto& each = list[i].writeValue;
    const bool wide = each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!wide && each.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) return CUDA_ERROR_NOT_SUPPORTED;
    if (const CUresult result = write_value(stream, each.address, each.value64, wide ? 8 : 4, each.flags, null_means)) return result;
  }
  return CUDA_SUCCESS;
}

// A graph takes memory of pools; what launches it does not (recorded).
class MemOpsWork : public Work {
 public:
  MemOpsWork(std::vector<WorkPtr> fills, bool of_pool) : fills_(std::move(fills)), of_pool_(of_pool) {}
  void run(Execution& execution) const override {
    for (const WorkPtr& each : fills_) each->run(execution);
  }
  void spans(std::vector<Span>& out) const override {
    for (const WorkPtr& each : fills_) each->spans(out);
  }
  bool lacks_memory() const override {
    return std::any_of(fills_.begin(), fills_.end(), [](const WorkPtr& each) { return each->lacks_memory(); });
  }
  bool refused_by_streams() const override { return of_pool_; }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
  const char* name() const override { return "memory operations of a graph"; }

 private:
  const std::vector<WorkPtr> fills_;
  const bool of_pool_;
};

}  // namespace

CUresult make_memops(unsigned count, const CUstreamBatchMemOpParams* list, unsigned flags, WorkPtr* work) {
  if ((list == nullptr && count > 0) || count > kMostOfBatch || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<WorkPtr> fills;
  bool of_pool = false;
  for (unsigned i = 0; i < count; ++i) {
    const auto& each = list[i].writeValue;
    const bool wide = each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!wide && each.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) return CUDA_ERROR_NOT_SUPPORTED;
    const uint32_t bytes = wide ? 8 : 4;
    if ((each.flags & ~kFlags) != 0 || each.address % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    of_pool = of_pool || is_of_pool(each.address);
    for (uint32_t at = 0; at < bytes; at += 4) {
      fills.push_back(make_fill({each.address + at, 4, static_cast<uint32_t>(each.value64 >> (8 * at)), 4, 1, 1}));
      if (each.address != 0 && fills.back()->lacks_memory()) return CUDA_ERROR_INVALID_VALUE;  // null is taken (recorded)
    }
  }
  *work = std::make_shared<MemOpsWork>(std::move(fills), of_pool);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value(stream, address, value, 4, flags, kLegacy);
}
SIM_API CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value(stream, address, value, 4, flags, kPerThread);
}
SIM_API CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value(stream, address, value, 8, flags, kLegacy);
}
SIM_API CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value(stream, address, value, 8, flags, kPerThread);
}
SIM_API CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  return batch(stream, count, list, flags, kLegacy);
}
SIM_API CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  return batch(stream, count, list, flags, kPerThread);
}

}  // namespace simgpu
