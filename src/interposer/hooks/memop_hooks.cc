// Memory operations of streams and graphs (memop_nodes.h). A driver refuses them on memory of pools (measured: cuStreamWriteValue32,
// cuStreamWriteValue64 and cuStreamBatchMemOp on memory of cuMemAllocAsync and cuMemAllocFromPoolAsync return "invalid value", each time).
// Such memory is virtual memory to the driver where we serve the pool, and it would take that.
#include <string.h>

#include "interposer/generated/hooks.h"
#include "interposer/hooks/graph_copies.h"
#include "interposer/hooks/looks.h"
#include "interposer/hooks/memop_nodes.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/submit.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

bool is_of_pool(Process& process, CUdeviceptr address) {
  if (!process.pools.placed_any() || !process.active()) [[likely]]
    return false;
  AllocationRange range;
  return process.owner(address, &range) != nullptr && process.pools.placed_at(range.base).pool != nullptr;
}

// A stream's operation does not reach it: memory of a pool, or of another GPU that a copy alone has opened, also imported, or that was
// opened by IPC in another context (measured: bench/results/h200x2-asked-of-two-gpus.txt).
bool is_out_of_reach(Process& process, CUdeviceptr address, CUstream stream) {
  if (is_of_pool(process, address)) return true;
  if (!opened_to_others.load(std::memory_order_relaxed) || !process.active()) return false;
  return fill_lacks_access(process, address, stream) || opened_by_a_copy(process, address, stream);
}

// Then it is an address without memory, so that the driver says what is wrong first.
CUdeviceptr as_the_driver_sees(Process& process, CUdeviceptr address, CUstream stream) {
  return is_out_of_reach(process, address, stream) ? kNowhere : address;
}

template <auto Function, bool PerThread, typename Value>
CUresult write_value(Entry entry, CUstream stream, CUdeviceptr address, Value value, unsigned flags) {
  Process& process = entry.process();
  return submit<Function, 0, PerThread>(entry, stream, as_the_driver_sees(process, address, default_stream(stream, PerThread)), value,
                                        flags);
}

bool has_address(const CUstreamBatchMemOpParams& each) {
  return each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

constexpr unsigned kMost = 256;  // as the driver takes of a batch; it refuses more

template <auto Function, bool PerThread>
CUresult batch(Entry entry, CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  Process& process = entry.process();
  const CUstream own = default_stream(stream, PerThread);
  bool beyond = false;
  for (unsigned i = 0; list != nullptr && count <= kMost && i < count; ++i) {
    beyond = beyond || (has_address(list[i]) && is_out_of_reach(process, list[i].writeValue.address, own));
  }
  if (!beyond) return submit<Function, 0, PerThread>(entry, stream, count, list, flags);
  std::vector<CUstreamBatchMemOpParams> seen(list, list + count);
  for (CUstreamBatchMemOpParams& each : seen) {
    if (has_address(each)) each.writeValue.address = as_the_driver_sees(process, each.writeValue.address, own);
  }
  return submit<Function, 0, PerThread>(entry, stream, count, seen.data(), flags);
}

// A page of the driver's own default pool on each GPU, made when it is first needed and kept.
class DriverPoolPages {
 public:
  // 0: the driver gives none.
  CUdeviceptr on(Process& process, int ordinal) {
    Lock lock(mutex_);
    CUdeviceptr& page = pages_[ordinal];
    if (page == 0 || !is_there(page)) page = make(process, ordinal);
    return page;
  }

 private:
  // It goes with the GPU's last context.
  static bool is_there(CUdeviceptr page) {
    CUmemoryPool pool = nullptr;
    return real_driver().cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, page) == CUDA_SUCCESS && pool != nullptr;
  }

  static CUdeviceptr make(Process& process, int ordinal) {
    const RealDriver& driver = real_driver();
    const CUcontext context = process.contexts.pin(ordinal);
    if (context == nullptr) return 0;
    CUdeviceptr page = 0;
    CUcontext popped = nullptr;
    const RelaxedCaptureMode relaxed(process.captures);
    if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
      CUmemoryPool pool = nullptr;
      CUstream stream = nullptr;
      if (driver.cuDeviceGetDefaultMemPool(&pool, ordinal) == CUDA_SUCCESS &&
          driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
        if (driver.cuMemAllocFromPoolAsync(&page, kBytes, pool, stream) != CUDA_SUCCESS) page = 0;
        driver.cuStreamSynchronize(stream);
        driver.cuStreamDestroy_v2(stream);
      }
      driver.cuCtxPopCurrent_v2(&popped);
    }
    process.contexts.unpin(context);
    return page;
  }

  static constexpr size_t kBytes = 4096;
  Mutex mutex_;
  CUdeviceptr pages_[kDevicesMax] GUARDED_BY(mutex_) = {};
};
constinit DriverPoolPages driver_pool_pages;

// As far aligned as the address.
CUdeviceptr in_driver_pool(Process& process, CUdeviceptr address) {
  if (!is_of_pool(process, address)) return address;
  AllocationRange range;
  const Device* owner = process.owner(address, &range);
  const CUdeviceptr page = owner != nullptr ? driver_pool_pages.on(process, owner->ordinal()) : 0;
  return page != 0 ? page + address % 256 : address;
}

}  // namespace

MemopsSeen::MemopsSeen(Process& process, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) : changed_{}, seen_(parameters) {
  if (parameters == nullptr || parameters->paramArray == nullptr || parameters->count > kMost || !process.pools.placed_any()) return;
  for (unsigned i = 0; i < parameters->count; ++i) {
    const CUstreamBatchMemOpParams& each = parameters->paramArray[i];
    if (!has_address(each) || !is_of_pool(process, each.writeValue.address)) continue;
    if (operations_.empty()) operations_.assign(parameters->paramArray, parameters->paramArray + parameters->count);
    operations_[i].writeValue.address = in_driver_pool(process, each.writeValue.address);
  }
  if (operations_.empty()) return;
  changed_ = *parameters;
  changed_.paramArray = operations_.data();
  seen_ = &changed_;
}

namespace {

const CUDA_BATCH_MEM_OP_NODE_PARAMS* memops_of(const CUgraphNodeParams* parameters) {
  const bool has_memops = parameters != nullptr && parameters->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  return has_memops ? reinterpret_cast<const CUDA_BATCH_MEM_OP_NODE_PARAMS*>(parameters->rest) : nullptr;
}

}  // namespace

NodeSeen::NodeSeen(Process& process, CUgraphNodeParams* parameters)
    : memops_(process, memops_of(parameters)), changed_{}, seen_(parameters) {
  if (memops_.get() == memops_of(parameters)) return;
  changed_ = *parameters;
  memcpy(changed_.rest, memops_.get(), sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS));
  seen_ = &changed_;
}

extern "C" {

NVSHARE_EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  const Entry entry;
  Process& process = entry.process();
  return look<&RealDriver::cuGraphAddBatchMemOpNode>(entry, node, graph, dependencies, count, MemopsSeen(process, parameters).get());
}
NVSHARE_EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  const Entry entry;
  Process& process = entry.process();
  return look<&RealDriver::cuGraphBatchMemOpNodeSetParams>(entry, node, MemopsSeen(process, parameters).get());
}
NVSHARE_EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                                           const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  const Entry entry;
  Process& process = entry.process();
  return look<&RealDriver::cuGraphExecBatchMemOpNodeSetParams>(entry, graph, node, MemopsSeen(process, parameters).get());
}
NVSHARE_EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
  const Entry entry;
  Process& process = entry.process();
  return look<&RealDriver::cuGraphNodeSetParams>(entry, node, NodeSeen(process, parameters).get());
}
NVSHARE_EXPORT CUresult cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams* parameters) {
  const Entry entry;
  Process& process = entry.process();
  return look<&RealDriver::cuGraphNodeSetParams_v2>(entry, node, NodeSeen(process, parameters).get());
}
NVSHARE_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec graph, CUgraphNode node, CUgraphNodeParams* parameters) {
  const Entry entry;
  Process& process = entry.process();
  if (parameters != nullptr && parameters->type == CU_GRAPH_NODE_TYPE_MEMCPY &&
      process.graph_copies.changes_kind(process, graph, node,
                                        reinterpret_cast<const CUDA_MEMCPY_NODE_PARAMS*>(parameters->rest)->copyParams)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return look<&RealDriver::cuGraphExecNodeSetParams>(entry, graph, node, NodeSeen(process, parameters).get());
}

NVSHARE_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue32_v2, false>(Entry(), stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue32_v2_ptsz, true>(Entry(), stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue64_v2, false>(Entry(), stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value<&RealDriver::cuStreamWriteValue64_v2_ptsz, true>(Entry(), stream, address, value, flags);
}
NVSHARE_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  return batch<&RealDriver::cuStreamBatchMemOp_v2, false>(Entry(), stream, count, list, flags);
}
NVSHARE_EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) {
  return batch<&RealDriver::cuStreamBatchMemOp_v2_ptsz, true>(Entry(), stream, count, list, flags);
}

}  // extern "C"
}  // namespace nvshare::interposer
