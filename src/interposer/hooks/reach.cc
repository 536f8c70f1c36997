#include "interposer/hooks/reach.h"

#include <algorithm>
#include <cstring>

#include "interposer/hooks/at_stream.h"
#include "interposer/memory/backends/access.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

// The context in which plain memory of ours lies, or null.
CUcontext context_of(Process& process, CUdeviceptr address) {
  AllocationRange range;
  return process.owner(address, &range) != nullptr && process.pools.placed_at(range.base).pool == nullptr ? range.context : nullptr;
}

bool in_a_capture(Process& process, const CUstream* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!process.captures.capturing()) return false;
  if (stream == nullptr || *stream == nullptr || *stream == CU_STREAM_LEGACY) return true;  // it may not even be asked
  return real_driver().cuStreamIsCapturing(*stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Memory of a pool, or virtual: refused natively, too, and the peer variant would take it for the current context's.
bool has_no_context(Process& process, CUmemorytype type, CUdeviceptr address) {
  if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) return false;
  const MemoryKind kind = kind_of(process, type, address);
  if (kind != MemoryKind::kUnknown) return kind == MemoryKind::kOfNone;
  unsigned memory = 0;
  CUcontext context = nullptr;
  const RealDriver& driver = real_driver();
  return driver.cuPointerGetAttribute(&memory, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
         memory == CU_MEMORYTYPE_DEVICE && driver.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS &&
         context == nullptr;
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
  const CUcontext from = from_array || copy.srcMemoryType == CU_MEMORYTYPE_HOST ? nullptr : context_of(process, copy.srcDevice);
  const CUcontext to = to_array || copy.dstMemoryType == CU_MEMORYTYPE_HOST ? nullptr : context_of(process, copy.dstDevice);
  if (from == nullptr && to == nullptr) return false;
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

uint32_t gpus_in_use(Process& process) { return process.active() ? process.contexts.gpus() : 0; }

BorrowedContext::BorrowedContext(Process& process, int ordinal) : process_(process) {
  CUcontext current = nullptr;
  const RealDriver& driver = real_driver();
  if (driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != nullptr) return;
  context_ = process.contexts.pin(ordinal);
  if (context_ == nullptr || driver.cuCtxPushCurrent_v2(context_) == CUDA_SUCCESS) return;
  process.contexts.unpin(context_);
  context_ = nullptr;
}
BorrowedContext::~BorrowedContext() {
  if (context_ == nullptr) return;
  CUcontext popped = nullptr;
  real_driver().cuCtxPopCurrent_v2(&popped);
  process_.contexts.unpin(context_);
}

bool may_use(Process& process, int ordinal, CUdeviceptr base, bool of_pool) {
  CUcontext context = nullptr;
  const Device* current = process.current_device(&context);
  if (current == nullptr || current->ordinal() == ordinal) return true;
  return of_pool ? (process.pools.placed_at(base).open_to >> current->ordinal() & 1) != 0 : process.peers.is_open(context, ordinal);
}

bool may_use_virtual(Process& process, CUdeviceptr address) {
  CUdevice current = -1;
  if (real_driver().cuCtxGetDevice(&current) != CUDA_SUCCESS || current < 0) return true;
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, current};
  unsigned long long flags = 0;
  return process.vmm.get_access(&flags, &location, address) != CUDA_SUCCESS || flags != 0;
}

namespace {

MemoryKind kind_of(Process& process, CUdeviceptr address) {
  AllocationRange range;
  ProgramVmm::View view;
  if (process.owner(address, &range) != nullptr) {
    return process.pools.placed_at(range.base).pool != nullptr ? MemoryKind::kOfNone : MemoryKind::kOfContext;
  }
  if (process.vmm.find(address, &view)) return MemoryKind::kOfNone;
  return process.managed_owner(address) != nullptr ? MemoryKind::kOfContext : MemoryKind::kUnknown;
}

}  // namespace

MemoryKind kind_of(Process& process, CUmemorytype type, CUdeviceptr address) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? kind_of(process, address) : MemoryKind::kUnknown;
}

MemoryKind kind_by_driver(Process& process, CUmemorytype type, CUdeviceptr address) {
  const MemoryKind kind = kind_of(process, type, address);
  return kind == MemoryKind::kUnknown && has_no_context(process, type, address) ? MemoryKind::kOfNone : kind;
}

bool mixes_plain_and_other(Process& process, const Addresses& named) {
  CUcontext current = nullptr;
  if (!process.active() || real_driver().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != nullptr) return false;
  const auto is_plain = [&](CUdeviceptr address) { return context_of(process, address) != nullptr; };
  const auto is_other = [&](CUdeviceptr address) { return kind_of(process, address) == MemoryKind::kOfNone; };
  return std::any_of(named.begin(), named.end(), is_plain) && std::any_of(named.begin(), named.end(), is_other);
}

bool need_no_context(Process& process, const Addresses& named) {
  bool plain = named.empty();
  for (const CUdeviceptr address : named) {
    if (context_of(process, address) != nullptr) {
      plain = true;
      continue;
    }
    AllocationRange range;
    ProgramVmm::View view;
    unsigned type = 0;
    int ordinal = -1;
    if (process.ipc.find(address, &range, &ordinal)) {
      plain = true;
      continue;
    }
    if (process.owner(address, &range) != nullptr || process.vmm.find(address, &view)) return false;
    const CUresult known = real_driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (known == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE) return false;
  }
  return plain;
}

bool names_several_gpus(Process& process, const Addresses& named) {
  const uint32_t gpus = process.active() ? process.contexts.gpus() : 0;
  if ((gpus & (gpus - 1)) == 0) return false;
  AllocationRange range;
  int ordinal = -1;
  return std::any_of(named.begin(), named.end(), [&](CUdeviceptr address) {
    return context_of(process, address) != nullptr || process.ipc.find(address, &range, &ordinal);
  });
}

bool reach_each_other(Process& process, const Addresses& named) {
  const uint32_t gpus = process.active() ? process.contexts.gpus() : 0;
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
  const CUcontext source = context_of(process, from);
  const CUcontext target = context_of(process, to);
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
