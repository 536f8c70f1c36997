// Pointer queries: our memory answers as a plain cuMemAlloc's would, also while it is swapped out.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/capture_rules.h"
#include "interposer/hooks/entry.h"
#include "interposer/hooks/memory_kinds.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/green_contexts.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

// A driver maps plain memory in such pieces, of which small allocations share one, and pools' memory in larger ones (measured).
constexpr CUdeviceptr kMappingBytes = SlabSet::kPieceBytes;
constexpr CUdeviceptr kPoolMappingBytes = 32 << 20;

// Numbers of ours among the driver's, whose ids count up from one.
constexpr uint64_t kIdTag = uint64_t{0x6e77} << 48;

struct Tokens {
  unsigned long long peer = 0;
  unsigned address_space = 0;
};

template <typename T>
CUresult answer(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

// Of the address space, for drivers of other devices. A driver answers for plain memory only, with the same at each address (measured), so
// it is asked about 512 bytes of its own, which stay with their context: to free them would wait for the GPU. Not while something captures.
class TokensOfContexts {
 public:
  Tokens of(Process& process, CUcontext context) {
    Lock lock(mutex_);
    for (const Known& known : known_) {
      if (known.context == context) return known.tokens;
    }
    Tokens tokens;
    CUdeviceptr piece = 0;
    CUcontext popped = nullptr;
    const RealDriver& driver = real_driver();
    if (process.captures.capturing() || driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return tokens;
    if (driver.cuMemAlloc_v2(&piece, kSmallChargeUnitBytes) == CUDA_SUCCESS &&
        driver.cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, piece) == CUDA_SUCCESS) {
      known_[next_++ % kContexts] = {context, tokens};
    }
    driver.cuCtxPopCurrent_v2(&popped);
    return tokens;
  }

 private:
  static constexpr size_t kContexts = 16;  // the oldest is asked about again
  struct Known {
    CUcontext context = nullptr;
    Tokens tokens;
  };
  Mutex mutex_;
  Known known_[kContexts] GUARDED_BY(mutex_);
  size_t next_ GUARDED_BY(mutex_) = 0;
};
constinit TokensOfContexts tokens_of_contexts;

// A driver's pools map pieces of 32 MiB, and none of 71 allocations that were no larger lay in two (recorded; of 20 MiB three of five did).
// Ours may lie across the multiple of a piece: then the piece begins where its own memory does.
CUdeviceptr mapping_begin(const AllocationRange& range, CUdeviceptr piece) {
  const CUdeviceptr end = range.base + range.bytes;
  const CUdeviceptr begin = range.base / piece * piece;
  const CUdeviceptr nearest = range.base / kMappingBytes * kMappingBytes;
  return end > begin + piece && end <= nearest + piece ? nearest : begin;
}
size_t mapping_size(const AllocationRange& range, CUdeviceptr piece) {
  const CUdeviceptr bytes = range.base + range.bytes - mapping_begin(range, piece);
  return static_cast<size_t>((bytes + piece - 1) / piece * piece);
}

// What the answers about an allocation depend on, beside its range.
struct Owner {
  int ordinal;       // of the GPU whose memory it is
  bool ipc_capable;  // cuIpcGetMemHandle takes it
  bool of_pool;
  bool imported;  // from another process
};

// A context is current, and it has not ended: a pool's memory stays when its context ends.
bool context_lives(Process& process) {
  CUcontext current = nullptr;
  if (real_driver().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == nullptr) return false;
  return !process.current_is_gone();
}

bool is_current(Process& process, CUcontext context) {
  CUcontext current = nullptr;
  return real_driver().cuCtxGetCurrent(&current) == CUDA_SUCCESS && process.green_contexts.primary_of(current) == context;
}

// The current context may use it. What another process handed over is for the context that opened it (measured).
bool is_for_current(Process& process, const Owner& owner, const AllocationRange& range) {
  return owner.imported ? is_current(process, range.context) : may_use(process, owner.ordinal, range.base, owner.of_pool);
}

CUresult attribute_of(Process& process, void* data, CUpointer_attribute attribute, CUdeviceptr address, const Owner& owner,
                      const AllocationRange& range) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUdeviceptr piece = owner.of_pool ? kPoolMappingBytes : kMappingBytes;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer<CUcontext>(data, owner.of_pool ? nullptr : range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer<unsigned>(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:  // the only one that is asked of a context (measured)
      if (!context_lives(process)) return CUDA_ERROR_INVALID_CONTEXT;
      return is_for_current(process, owner, range) ? answer<CUdeviceptr>(data, address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      answer<void*>(data, nullptr);
      return CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return answer<unsigned>(data, range.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer<unsigned long long>(data, kIdTag | range.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer<int>(data, owner.ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer<unsigned>(data, owner.ipc_capable ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer<CUdeviceptr>(data, range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer<size_t>(data, range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer<unsigned long long>(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer<unsigned>(data, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<CUmemoryPool>(data, process.pools.placed_at(range.base).pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer<size_t>(data, mapping_size(range, piece));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer<CUdeviceptr>(data, mapping_begin(range, piece));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer<unsigned long long>(data, kIdTag | range.id);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      process.set_sync_memops(address, true);  // the question switches it on (measured)
      return answer<Tokens>(data, tokens_of_contexts.of(process, range.context));
  }
  return real_driver().cuPointerGetAttribute(data, attribute, address);
}

// Memory that the program manages itself, while it is not on the GPU: as a driver 580 answers of mapped virtual memory
// (bench/results/h200-probe.json). Two numbers are ours at all times, because the driver's change with each move.
CUresult attribute_of(Process& process, void* data, CUpointer_attribute attribute, CUdeviceptr address, const ProgramVmm::View& view) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer<CUcontext>(data, nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer<unsigned>(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (!context_lives(process)) return CUDA_ERROR_INVALID_CONTEXT;
      return may_use_virtual(process, address) ? answer<CUdeviceptr>(data, address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer<unsigned long long>(data, view.mapping_id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer<int>(data, view.ordinal);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer<CUdeviceptr>(data, view.reservation);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer<size_t>(data, view.reserved);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer<unsigned long long>(data, view.handle_types);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer<unsigned>(data, view.rdma_capable ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer<unsigned>(data, view.access);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<CUmemoryPool>(data, nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer<size_t>(data, view.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer<CUdeviceptr>(data, view.base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer<unsigned long long>(data, view.handle_id);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

bool is_number_of_ours(CUpointer_attribute attribute) {
  return attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID || attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
}

CUresult attributes_of(Process& process, unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address,
                       const ProgramVmm::View& view) {
  CUresult result = call_real<&RealDriver::cuPointerGetAttributes>(count, attributes, data, address);
  if (result != CUDA_SUCCESS || attributes == nullptr || data == nullptr) return result;
  for (unsigned i = 0; i < count; ++i) {
    // What a single question would fail at reads as zero, as the driver has written it.
    if (!view.placed || is_number_of_ours(attributes[i])) attribute_of(process, data[i], attributes[i], address, view);
  }
  return result;
}

// An allocation of ours, or of another process that this one has imported; false: the driver is to answer, about *address, which is then
// one that it knows nothing of where the program has no memory but we do: what was freed or closed, or never given out.
bool find_owner(Process& process, CUdeviceptr* address, AllocationRange* range, Owner* owner) {
  if (!process.active()) return false;
  bool within = false;
  Device* device = process.owner(*address, range, &within);
  if (device != nullptr && !device->memory().stream_frees.is_over(*range)) {
    const bool of_pool = process.pools.placed_at(range->base).pool != nullptr;
    *owner = {device->ordinal(), device->backend() != protocol::Backend::kManaged && !of_pool, of_pool, false};
    return true;
  }
  if (within || device != nullptr) *address = kNowhere;
  owner->ipc_capable = owner->of_pool = false;
  owner->imported = true;
  if (process.ipc.find(*address, range, &owner->ordinal)) return true;
  if (process.ipc.overlaps(*address, 1)) *address = kNowhere;
  return false;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Process& process = Entry().process();
  AllocationRange range;
  Owner owner{};
  if (!find_owner(process, &address, &range, &owner)) {
    ProgramVmm::View view;
    if (process.active() && process.vmm.find(address, &view) && (!view.placed || is_number_of_ours(attribute))) {
      return attribute_of(process, data, attribute, address, view);
    }
    return call_real<&RealDriver::cuPointerGetAttribute>(data, attribute, address);
  }
  return attribute_of(process, data, attribute, address, owner, range);
}

NVSHARE_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  Process& process = Entry().process();
  AllocationRange range;
  Owner owner{};
  const bool is_ours = find_owner(process, &address, &range, &owner);
  ProgramVmm::View view;
  if (!is_ours && process.active() && process.vmm.find(address, &view)) {
    return attributes_of(process, count, attributes, data, address, view);
  }
  if (!is_ours || count == 0 || attributes == nullptr || data == nullptr) {  // which the driver refuses, or says itself
    return call_real<&RealDriver::cuPointerGetAttributes>(count, attributes, data, address);
  }
  for (unsigned i = 0; i < count; ++i) {
    CUresult result = attribute_of(process, data[i], attributes[i], address, owner, range);
    // Asked for many at once, the driver leaves a zero where a single question would fail.
    if (result != CUDA_SUCCESS && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
      result = answer<CUdeviceptr>(data[i], 0);
    }
    if (result != CUDA_SUCCESS && attributes[i] != CU_POINTER_ATTRIBUTE_HOST_POINTER) return result;
  }
  return CUDA_SUCCESS;
}

NVSHARE_EXPORT CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Process& process = Entry().process();
  AllocationRange range;
  Owner owner{};
  if (value != nullptr && find_owner(process, &address, &range, &owner)) {
    if (owner.of_pool && process.current_is_gone()) return CUDA_ERROR_INVALID_VALUE;  // recorded
    // Whatever is set (measured).
    if (const CUresult refused = forbidden_by_a_capture(process, owner.ordinal); refused != CUDA_SUCCESS) return refused;
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    process.set_sync_memops(address, *static_cast<const bool*>(value));
    return CUDA_SUCCESS;
  }
  ProgramVmm::View view;
  if (process.active() && value != nullptr && process.vmm.find(address, &view) && !view.placed) {
    return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  return call_real<&RealDriver::cuPointerSetAttribute>(value, attribute, address);
}

NVSHARE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Process& process = Entry().process();
  AllocationRange range;
  Owner owner{};
  const bool is_ours = find_owner(process, &address, &range, &owner);
  if (!is_ours) {
    ProgramVmm::View view;
    if (!process.active() || !process.vmm.find(address, &view) || view.placed) {
      return call_real<&RealDriver::cuMemGetAddressRange_v2>(base, bytes, address);
    }
    if (!may_use_virtual(process, address)) return CUDA_ERROR_NOT_FOUND;
    range.base = view.base;  // of virtual memory, the driver names the one mapping
    range.bytes = view.bytes;
  }
  CUcontext context = nullptr;
  if (real_driver().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (process.current_is_gone()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (is_ours && !is_for_current(process, owner, range)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range.base;
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}

}  // extern "C"
}  // namespace nvshare::interposer
