// Access of one device to another's memory. Plain memory follows cuCtxEnablePeerAccess, virtual memory only cuMemSetAccess, memory of pools
// only cuMemPoolSetAccess, as on the real driver (measured). Copies of plain memory need none.
#include "simgpu/config.h"
#include "simgpu/context.h"
#include "simgpu/memory.h"

namespace simgpu {

bool may_use(const Context& context, const Range& range) {
  switch (range.kind) {
    case RangeKind::kMapping:
      return (range.accessors >> context.device & 1) != 0;
    case RangeKind::kPlain:
      return range.device == context.device || (context.peers.load() >> range.device & 1) != 0;
    case RangeKind::kPool:
      return range.device == context.device || pool_is_open_to(range.pool, context.device);
    case RangeKind::kManaged:
    case RangeKind::kHost:
    case RangeKind::kRegistered:
    case RangeKind::kImported:
      return true;
  }
  return true;
}

uint64_t out_of_reach(const Context& context, const std::vector<Span>& spans) {
  AddressSpace::Reading reading(here().memory);
  for (const Span& span : spans) {
    for (uint64_t at = span.address; at < span.address + span.bytes;) {
      const Range* range = reading.find(at);
      if (range == nullptr) return at;
      if (!may_use(context, *range)) return at;
      at = range->end();
    }
  }
  return 0;
}

SIM_API CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const Context* peer = to_context(handle);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer == nullptr || !peer->alive.load() || peer->device == context->device) return CUDA_ERROR_INVALID_CONTEXT;
  if (config().no_peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;  // as documented
  const uint32_t bit = 1u << peer->device;
  return (context->peers.fetch_or(bit) & bit) != 0 ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const Context* peer = to_context(handle);
  if (peer == nullptr || !peer->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  const uint32_t bit = 1u << peer->device;
  return (context->peers.fetch_and(~bit) & bit) == 0 ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_SUCCESS;
}

}  // namespace simgpu
