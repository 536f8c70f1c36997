#include "interposer/hooks/memory_kinds.h"

#include <algorithm>

#include "interposer/memory/handles/program_vmm.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

CUcontext plain_context(Process& process, CUdeviceptr address) {
  AllocationRange range;
  return process.owner(address, &range) != nullptr && process.pools.placed_at(range.base).pool == nullptr ? range.context : nullptr;
}

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
  const auto is_plain = [&](CUdeviceptr address) { return plain_context(process, address) != nullptr; };
  const auto is_other = [&](CUdeviceptr address) { return kind_of(process, address) == MemoryKind::kOfNone; };
  return std::any_of(named.begin(), named.end(), is_plain) && std::any_of(named.begin(), named.end(), is_other);
}

bool need_no_context(Process& process, const Addresses& named) {
  bool plain = named.empty();
  for (const CUdeviceptr address : named) {
    if (plain_context(process, address) != nullptr) {
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

}  // namespace nvshare::interposer
