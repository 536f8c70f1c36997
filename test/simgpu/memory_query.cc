// What the driver says about an address. Modelled on the answers of a driver 580 (bench/results/h200-probe.json): an address without
// memory is unknown also when it is reserved, and virtual memory answers with the mapping for some attributes, the reservation for others.
#include <cstring>

#include "simgpu/capture.h"
#include "simgpu/context.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

constexpr CUdevice kNoDevice = -2;
constexpr uint32_t kAddressSpaceToken = 65024;  // as an H200 answers for plain and pool memory

struct Answer {
  Range range;
  uint64_t outer_base;  // of the allocation or the reservation
  uint64_t outer_size;
};

CUresult find(CUdeviceptr address, Answer* answer) {
  Process& process = here();
  AddressSpace::Reading reading(process.memory);
  const Range* range = reading.find(address);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *answer = {*range, range->base, range->size};
  if (range->kind == RangeKind::kMapping) reading.reservation(address, &answer->outer_base, &answer->outer_size);
  return CUDA_SUCCESS;
}

template <typename T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

void set_sync_memops(CUdeviceptr address, bool wanted) {
  AddressSpace::Writing writing(here().memory);
  if (Range* range = writing.find(address)) range->sync_memops = wanted;
}

// What another process handed over is for the context that opened it (measured), of green ones for their primary one.
bool is_handed_to_another(const Context& context, const Range& range) {
  const Context* own = context.parent != nullptr ? context.parent : &context;
  return range.kind == RangeKind::kImported && range.pool == nullptr && range.context != own;
}

// No allocation of a pool that is no larger than a piece lies in two (recorded); here one may lie across a multiple of it.
uint64_t mapping_begin(const Range& range, uint64_t piece) {
  const uint64_t begin = range.base / piece * piece;
  const uint64_t nearest = range.base / kPageBytes * kPageBytes;
  return range.end() > begin + piece && range.end() <= nearest + piece ? nearest : begin;
}

CUresult attribute_of(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Answer answer;
  if (const CUresult result = find(address, &answer)) return result;
  const Range& range = answer.range;
  const bool mapping = range.kind == RangeKind::kMapping;
  const uint64_t piece = range.kind == RangeKind::kPool ? kPoolPieceBytes : kPageBytes;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, mapping || range.kind == RangeKind::kPool ? nullptr : range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, range.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      // Of all attributes this one alone (measured).
      if (t_thread.current() == nullptr || !t_thread.current()->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
      if (!may_use(*t_thread.current(), range) || is_handed_to_another(*t_thread.current(), range)) return CUDA_ERROR_INVALID_VALUE;
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return range.on_device() ? CUDA_ERROR_INVALID_VALUE : put(data, address);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      if (range.on_host()) return CUDA_ERROR_INVALID_VALUE;
      std::memset(data, 0, 8);
      std::memcpy(static_cast<char*>(data) + 8, &kAddressSpaceToken, sizeof kAddressSpaceToken);
      set_sync_memops(address, true);  // the question switches it on, also of virtual memory
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, range.sync_memops ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, range.kind == RangeKind::kManaged ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(data, range.kind == RangeKind::kPlain ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, answer.outer_base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, answer.outer_size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      if (mapping) return put(data, static_cast<unsigned long long>(range.physical->handle_types));
      return put(data, range.kind == RangeKind::kPool ? static_cast<unsigned long long>(handle_types_of_pool(range.pool)) : 0ull);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, range.kind == RangeKind::kPlain ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data, range.writable   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                       : range.readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                        : CU_MEM_ACCESS_FLAGS_PROT_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, range.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      if (mapping) return put(data, range.size);
      return put(data, round_up(range.end() - mapping_begin(range, piece), piece));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, mapping ? range.base : mapping_begin(range, piece));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put(data, static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(data, 0u);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SIM_API CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = enter_process()) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of(data, attribute, address);
}

// An unknown address is no error here: everything reads as null or zero.
SIM_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  if (const CUresult result = enter_process()) return result;
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (attribute_of(data[i], attributes[i], address) == CUDA_SUCCESS) continue;
    const bool wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT || attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER || attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE || attributes[i] == CU_POINTER_ATTRIBUTE_MAPPING_SIZE ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR || attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
    std::memset(data[i], 0, wide ? 8 : 4);
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) put(data[i], kNoDevice);
  }
  return CUDA_SUCCESS;
}

SIM_API CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = enter_process()) return result;
  Answer answer;
  if (const CUresult result = find(address, &answer)) return result;
  const bool mapping = answer.range.kind == RangeKind::kMapping;
  Context* context = nullptr;
  // Memory of a pool outlives its context, and is refused where that is still the current one (recorded).
  if (answer.range.kind == RangeKind::kPool && enter(&context) == CUDA_ERROR_CONTEXT_IS_DESTROYED) return CUDA_ERROR_INVALID_VALUE;
  if (!mapping) {
    if (const CUresult result = check_unsafe_call()) return result;
  }
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  if (mapping) return CUDA_ERROR_NOT_SUPPORTED;
  set_sync_memops(address, *static_cast<const bool*>(value));
  return CUDA_SUCCESS;
}

// Of virtual memory, the single handle's mapping and not the allocation.
SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  Answer answer;
  if (find(address, &answer) != CUDA_SUCCESS || !may_use(*context, answer.range)) return CUDA_ERROR_NOT_FOUND;
  if (is_handed_to_another(*context, answer.range)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = answer.range.base;
  if (size != nullptr) *size = answer.range.size;
  return CUDA_SUCCESS;
}

// Descriptors of plain memory are missing: whole pages are refused as by a GPU that cannot.
SIM_API CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t size, CUmemRangeHandleType, unsigned long long) {
  if (const CUresult result = enter_process()) return result;
  constexpr size_t kHostPage = 4096;
  Answer answer;
  if (handle == nullptr || size == 0 || (address | size) % kHostPage != 0 || find(address, &answer) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace simgpu
