// cuMemAlloc and its relatives: physical memory and address in one.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "simgpu/bulk.h"
#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/context.h"
#include "simgpu/graph_memory.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

CUresult allocate_checked(CUdeviceptr* out, uint64_t bytes) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = check_unsafe_call()) return result;  // before the size is looked at (recorded)
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (fault_strikes(Machine::get().faults().alloc_oom)) return CUDA_ERROR_OUT_OF_MEMORY;
  return allocate(*context, bytes, RangeKind::kPlain, nullptr, out);
}

}  // namespace

uint64_t map_memory(uint64_t bytes, uint64_t alignment) {
  void* at = mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  const auto base = reinterpret_cast<uint64_t>(at);
  const uint64_t aligned = round_up(base, alignment);
  if (aligned > base) unmap_memory(base, aligned - base);
  if (aligned < base + alignment) unmap_memory(aligned + bytes, base + alignment - aligned);
  return aligned;
}

namespace {

void drain_all_of(int device) {
  std::vector<Context*> contexts;
  {
    std::lock_guard lock(here().mutex);
    for (Context* each : here().contexts) {
      if (each->device == device && each->alive.load()) contexts.push_back(each);
    }
  }
  for (Context* each : contexts) drain(*each);
}

}  // namespace

void unmap_memory(uint64_t address, uint64_t bytes) {
  forget_shared(address);
  munmap(reinterpret_cast<void*>(address), bytes);
}

Blocks& Blocks::get() {
  static auto* const kBlocks = new Blocks;
  return *kBlocks;
}

uint64_t Blocks::allocate(Context* context, int device, uint64_t bytes) {
  bytes = round_up(bytes, kSmallUnit);
  std::lock_guard lock(mutex_);
  for (Block& block : blocks_) {
    if (block.context != context || block.device != device) continue;
    const auto hole = std::find_if(block.free.begin(), block.free.end(), [&](const auto& each) { return each.second >= bytes; });
    if (hole == block.free.end()) continue;
    const auto [offset, size] = *hole;
    block.free.erase(hole);
    if (size > bytes) block.free[offset + bytes] = size - bytes;
    return block.base + offset;
  }
  if (!Machine::get().charge(device, here().slot, Charge::kPlain, kPageBytes)) return 0;
  const uint64_t base = map_memory(kPageBytes, kPageBytes);
  if (base == 0) {
    Machine::get().release(device, here().slot, Charge::kPlain, kPageBytes);
    return 0;
  }
  blocks_.push_back({context, device, base, {{bytes, kPageBytes - bytes}}});
  return base;
}

void Blocks::free(uint64_t address, uint64_t bytes) {
  bytes = round_up(bytes, kSmallUnit);
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return address - b.base < kPageBytes; });
  if (found == blocks_.end()) return;
  auto& holes = found->free;
  auto at = holes.emplace(address - found->base, bytes).first;
  if (const auto next = std::next(at); next != holes.end() && at->first + at->second == next->first) {
    at->second += next->second;
    holes.erase(next);
  }
  if (at != holes.begin() && std::prev(at)->first + std::prev(at)->second == at->first) {
    at = std::prev(at);
    at->second += std::next(at)->second;
    holes.erase(std::next(at));
  }
  if (at->second != kPageBytes) return;
  const int device = found->device;
  unmap_memory(found->base, kPageBytes);
  blocks_.erase(found);
  Machine::get().release(device, here().slot, Charge::kPlain, kPageBytes);
}

void Blocks::drop(Context& context) {
  std::lock_guard lock(mutex_);
  std::erase_if(blocks_, [&](const Block& block) {
    if (block.context != &context) return false;
    unmap_memory(block.base, kPageBytes);
    Machine::get().release(context.device, here().slot, Charge::kPlain, kPageBytes);
    return true;
  });
}

CUresult allocate(Context& context, uint64_t bytes, RangeKind kind, void* pool, CUdeviceptr* out) {
  if (bytes > SIZE_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;  // what rounding up would make small
  Range range;
  range.kind = kind;
  range.size = bytes;
  range.device = context.device;
  range.context = context.parent != nullptr ? context.parent : &context;  // a green context has no memory of its own
  range.pool = pool;
  if (bytes < kSmallMax) {
    range.base = Blocks::get().allocate(kind == RangeKind::kPool ? nullptr : range.context, context.device, bytes);
    if (range.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    range.owned = round_up(bytes, kPageBytes);
    if (!Machine::get().charge(context.device, here().slot, Charge::kPlain, range.owned)) return CUDA_ERROR_OUT_OF_MEMORY;
    range.base = map_memory(range.owned, kind == RangeKind::kPool ? kPoolPieceBytes : kPageBytes);
    if (range.base == 0) {
      Machine::get().release(context.device, here().slot, Charge::kPlain, range.owned);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  fill_bytes(range.base, kPoison, range.owned != 0 ? range.owned : bytes);
  *out = range.base;
  AddressSpace::Writing writing(here().memory);
  writing.add(std::move(range));
  return CUDA_SUCCESS;
}

CUresult free_range(CUdeviceptr address, bool check) {
  Process& process = here();
  Range range;
  {
    AddressSpace::Reading reading(process.memory);
    const Range* found = reading.find(address);
    if (found == nullptr || found->base != address) return CUDA_ERROR_INVALID_VALUE;
    range = *found;
  }
  const bool imported = range.kind == RangeKind::kImported && range.pool != nullptr;
  if (range.kind != RangeKind::kPlain && range.kind != RangeKind::kPool && range.kind != RangeKind::kManaged && !imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The real cuMemFree waits for all work of the context. Memory of a pool may be another one's by now.
  if (check && range.context->alive.load()) {
    drain(*range.context);
  } else if (check && range.kind == RangeKind::kPool) {
    drain_all_of(range.device);
  }
  if (imported) return free_imported(address);
  {
    AddressSpace::Writing writing(process.memory);
    if (writing.ranges().erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  if (range.graph) {
    graph_allocation_freed(*range.graph);
    return CUDA_SUCCESS;
  }
  if (range.kind == RangeKind::kManaged) forget_managed(range);
  if (range.owned != 0) {
    unmap_memory(range.base, range.owned);
    if (range.kind != RangeKind::kManaged) Machine::get().release(range.device, process.slot, Charge::kPlain, range.owned);
  } else {
    Blocks::get().free(range.base, range.size);
  }
  return CUDA_SUCCESS;
}

void free_memory_of(Context& context) {
  Process& process = here();
  std::vector<Range> mine;
  {
    AddressSpace::Reading reading(process.memory);
    reading.each([&](const Range& range) {
      // Memory of pools stays: it is the device's (measured: a reset or release of the primary context leaves it where it is).
      const bool of_device = range.kind == RangeKind::kPool && !range.graph;
      if (range.context == &context && !of_device) mine.push_back(range);
    });
  }
  for (const Range& range : mine) {
    if (range.on_host()) {
      AddressSpace::Writing writing(process.memory);
      writing.ranges().erase(range.base);
      if (range.kind == RangeKind::kHost) unmap_memory(range.base, range.owned);
    } else if (range.kind == RangeKind::kImported) {
      free_imported(range.base);
    } else if (range.kind != RangeKind::kMapping) {  // virtual memory belongs to no context
      free_range(range.base, false);
    }
  }
  Blocks::get().drop(context);
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) { return allocate_checked(out, bytes); }

SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  if (pitch == nullptr || element == 0) return CUDA_ERROR_INVALID_VALUE;
  *pitch = round_up(width, 512);
  size_t bytes = 0;
  return allocate_checked(out, __builtin_mul_overflow(*pitch, height, &bytes) ? SIZE_MAX : bytes);
}

// The address decides, not the thread's context (measured: 1 for a pointer that is none, where a call that needs a context answers 201);
// but with a current context that is gone it is 709 for every address (recorded).
SIM_API CUresult cuMemFree_v2(CUdeviceptr address) {
  if (t_thread.in_callback) return CUDA_ERROR_NOT_PERMITTED;  // documented of host functions
  Context* context = nullptr;
  const CUresult entered = enter(&context);
  if (entered != CUDA_SUCCESS && entered != CUDA_ERROR_INVALID_CONTEXT) return entered;
  if (const CUresult result = check_unsafe_call()) return result;  // also where nothing is to be freed (recorded)
  if (address == 0) return CUDA_SUCCESS;
  return free_range(address, true);
}

SIM_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const MemoryUse use = Machine::get().memory(context->device);
  if (free != nullptr) *free = use.total - use.used;
  if (total != nullptr) *total = use.total;
  return CUDA_SUCCESS;
}

}  // namespace simgpu
