#include "interposer/hooks/reach.h"

#include <algorithm>
#include <cstring>

#include "interposer/hooks/current_context.h"
#include "interposer/hooks/memory_kinds.h"
#include "interposer/memory/backends/access.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

bool in_a_capture(Process& process, const CUstream* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!process.captures.capturing()) return false;
  if (stream == nullptr || *stream == nullptr || *stream == CU_STREAM_LEGACY) return true;  // it may not even be asked
  return real_driver().cuStreamIsCapturing(*stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void name_current(CUDA_MEMCPY3D_PEER* copy) {
  CUcontext current = nullptr;
  real_driver().cuCtxGetCurrent(&current);
  copy->srcContext = copy->dstContext = current;
}

// The contexts of `copy` are those of what has none of its own.
bool peer_copy(Process& process, CUDA_MEMCPY3D_PEER copy, const CUstream* stream, bool per_thread, CUresult* result) {
  if (in_a_capture(process, stream)) return false;
  const RealDriver& driver = real_driver();
  const bool from_array = copy.srcMemoryType == CU_MEMORYTYPE_ARRAY;
  const bool to_array = copy.dstMemoryType == CU_MEMORYTYPE_ARRAY;
  const CUcontext from = from_array || copy.srcMemoryType == CU_MEMORYTYPE_HOST ? nullptr : plain_context(process, copy.srcDevice);
  const CUcontext to = to_array || copy.dstMemoryType == CU_MEMORYTYPE_HOST ? nullptr : plain_context(process, copy.dstDevice);
  if (from == nullptr && to == nullptr) return false;
  // Refused natively, too, and the peer variant would take it for the current context's.
  if (has_no_context(process, copy.srcMemoryType, copy.srcDevice) || has_no_context(process, copy.dstMemoryType, copy.dstDevice))
    return false;
  if (from != nullptr) copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  if (to != nullptr) copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  if (from != nullptr) copy.srcContext = from;
  if (to != nullptr) copy.dstContext = to;
  if (stream == nullptr) {
    *result = (per_thread ? driver.cuMemcpy3DPeer_ptds : driver.cuMemcpy3DPeer)(&copy);
  } else {
    *result = (per_thread ? driver.cuMemcpy3DPeerAsync_ptsz : driver.cuMemcpy3DPeerAsync)(&copy, *stream);
  }
  return true;
}

}  // namespace

bool names_several_gpus(Process& process, const Addresses& named) {
  const uint32_t gpus = gpus_in_use(process);
  if ((gpus & (gpus - 1)) == 0) return false;
  AllocationRange range;
  int ordinal = -1;
  return std::any_of(named.begin(), named.end(), [&](CUdeviceptr address) {
    return plain_context(process, address) != nullptr || process.ipc.find(address, &range, &ordinal);
  });
}

bool reach_each_other(Process& process, const Addresses& named) {
  const uint32_t gpus = gpus_in_use(process);
  if ((gpus & (gpus - 1)) == 0) return false;
  bool opened = false;
  for (const CUdeviceptr address : named) {
    AllocationRange range;
    Device* owner = process.owner(address, &range);
    if (owner == nullptr) {
      opened = process.ipc.open_to(address, gpus) || opened;
      continue;
    }
    if (process.pools.placed_at(range.base).pool != nullptr) continue;
    opened = owner->memory().access.open_to(address, gpus) || opened;
  }
  if (opened) opened_to_others.store(true, std::memory_order_relaxed);
  return opened;
}

bool fill_lacks_access(Process& process, CUdeviceptr address, CUstream stream) {
  AllocationRange range;
  int ordinal = -1;
  if (!process.active()) return false;
  Device* owner = process.owner(address, &range);
  const bool imported = owner == nullptr && process.ipc.find(address, &range, &ordinal);
  if (!imported && (owner == nullptr || process.pools.placed_at(range.base).pool != nullptr)) return false;
  AtStream at(process, stream);
  if (imported) return at.context() != nullptr && at.context() != range.context;
  return !may_use(process, owner->ordinal(), range.base, false);
}

bool opened_by_a_copy(Process& process, CUdeviceptr address, CUstream stream) {
  const uint32_t gpus = process.active() ? process.ipc.opened_to(address) : 0;
  if (gpus == 0) return false;
  AtStream at(process, stream);
  int ordinal = -1;
  return real_driver().cuCtxGetDevice(&ordinal) == CUDA_SUCCESS && ordinal >= 0 && (gpus >> ordinal & 1) != 0;
}

bool copy_by_peers(Process& process, CUdeviceptr to, CUdeviceptr from, size_t bytes, const CUstream* stream, bool per_thread,
                   CUresult* result) {
  const CUcontext source = plain_context(process, from);
  const CUcontext target = plain_context(process, to);
  if (source == nullptr || target == nullptr || in_a_capture(process, stream)) return false;
  const RealDriver& driver = real_driver();
  if (stream == nullptr) {
    *result = (per_thread ? driver.cuMemcpyPeer_ptds : driver.cuMemcpyPeer)(to, target, from, source, bytes);
  } else {
    *result = (per_thread ? driver.cuMemcpyPeerAsync_ptsz : driver.cuMemcpyPeerAsync)(to, target, from, source, bytes, *stream);
  }
  return true;
}

bool copy_by_peers(Process& process, const CUDA_MEMCPY3D& copy, const CUstream* stream, bool per_thread, CUresult* result) {
  CUDA_MEMCPY3D_PEER peer{};
  static_assert(sizeof peer == sizeof copy);  // the same, with contexts in the reserved places
  memcpy(&peer, &copy, sizeof peer);
  name_current(&peer);
  return peer_copy(process, peer, stream, per_thread, result);
}

bool lie_apart(Process& process, CUdeviceptr one, CUdeviceptr other) {
  AllocationRange range;
  const Device* first = process.owner(one, &range);
  const Device* second = process.owner(other, &range);
  if (first == nullptr || second == nullptr || first == second) return false;
  return reachable(1u << first->ordinal(), second->ordinal()) == 0 || reachable(1u << second->ordinal(), first->ordinal()) == 0;
}

bool copy_by_peers(Process& process, const CUDA_MEMCPY3D_PEER& copy, const CUstream* stream, bool per_thread, CUresult* result) {
  return lie_apart(process, copy.srcDevice, copy.dstDevice) && peer_copy(process, copy, stream, per_thread, result);
}

bool copy_by_peers(Process& process, const CUDA_MEMCPY2D& copy, const CUstream* stream, bool per_thread, CUresult* result) {
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcXInBytes = copy.srcXInBytes;
  peer.srcY = copy.srcY;
  peer.srcMemoryType = copy.srcMemoryType;
  peer.srcHost = copy.srcHost;
  peer.srcDevice = copy.srcDevice;
  peer.srcArray = copy.srcArray;
  peer.srcPitch = copy.srcPitch;
  peer.srcHeight = peer.dstHeight = copy.Height;
  peer.dstXInBytes = copy.dstXInBytes;
  peer.dstY = copy.dstY;
  peer.dstMemoryType = copy.dstMemoryType;
  peer.dstHost = copy.dstHost;
  peer.dstDevice = copy.dstDevice;
  peer.dstArray = copy.dstArray;
  peer.dstPitch = copy.dstPitch;
  peer.WidthInBytes = copy.WidthInBytes;
  peer.Height = copy.Height;
  peer.Depth = 1;
  name_current(&peer);
  return peer_copy(process, peer, stream, per_thread, result);
}

}  // namespace nvshare::interposer
