#include "simgpu/graph_memory.h"

#include <algorithm>
#include <cstring>

#include "simgpu/bulk.h"
#include "simgpu/context.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

struct AllGraphMemory {
  std::mutex mutex;
  std::vector<std::shared_ptr<GraphAllocation>> allocations;
  std::array<uint64_t, kMaxDevices> used_high{};
  std::array<uint64_t, kMaxDevices> reserved_high{};
  static AllGraphMemory& get() {
    static auto* const kAll = new AllGraphMemory;
    return *kAll;
  }
  // mutex held
  uint64_t used(int device) const {
    uint64_t sum = 0;
    for (const auto& each : allocations) sum += each->device == device && (each->live || each->launches > 0) ? each->owned : 0;
    return sum;
  }
  uint64_t reserved(int device) const {
    uint64_t sum = 0;
    for (const auto& each : allocations) sum += each->device == device && each->mapped ? each->owned : 0;
    return sum;
  }
  void note_highs(int device) {
    const auto index = static_cast<size_t>(device);
    used_high[index] = std::max(used_high[index], used(device));
    reserved_high[index] = std::max(reserved_high[index], reserved(device));
  }
};

class AllocationWork : public Work {
 public:
  explicit AllocationWork(std::shared_ptr<GraphAllocation> allocation) : allocation_(std::move(allocation)) {}
  void run(Execution& execution) const override {
    bool usable = false;
    {
      AllGraphMemory& all = AllGraphMemory::get();
      std::lock_guard lock(all.mutex);
      usable = allocation_->mapped && !allocation_->live;
      allocation_->live = true;
      all.note_highs(allocation_->device);
    }
    if (!usable) return execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "a graph allocates memory that is allocated, or was trimmed");
    fill_bytes(allocation_->base, kPoison, allocation_->owned);
    Range range;
    range.kind = RangeKind::kPool;
    range.base = allocation_->base;
    range.size = allocation_->bytes;
    range.owned = allocation_->owned;
    range.device = allocation_->device;
    range.context = &execution.context;
    range.graph = allocation_;
    AddressSpace::Writing writing(here().memory);
    writing.add(std::move(range));
  }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
  const char* name() const override { return "a graph's allocation"; }
  const std::shared_ptr<GraphAllocation>& allocation() const { return allocation_; }

 private:
  const std::shared_ptr<GraphAllocation> allocation_;
};

class FreeingWork : public Work {
 public:
  explicit FreeingWork(uint64_t address) : address_(address) {}
  void run(Execution& execution) const override {
    if (free_range(address_, false) == CUDA_SUCCESS) return;
    execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "a graph frees %llx, which is not allocated", static_cast<unsigned long long>(address_));
  }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
  const char* name() const override { return "a graph's free"; }

 private:
  const uint64_t address_;
};

template <typename Action>
void for_each_allocation(const std::vector<WorkPtr>& work, Action action) {
  for (const WorkPtr& each : work) {
    if (each->node_type() == CU_GRAPH_NODE_TYPE_MEM_ALLOC) action(*static_cast<const AllocationWork&>(*each).allocation());
  }
}

}  // namespace

std::shared_ptr<GraphAllocation> reserve_graph_allocation(int device, uint64_t bytes) {
  auto allocation = std::make_shared<GraphAllocation>();
  allocation->bytes = bytes;
  allocation->owned = round_up(bytes, kPageBytes);
  allocation->device = device;
  allocation->base = map_memory(allocation->owned, kPageBytes);
  if (allocation->base == 0) return nullptr;
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  all.allocations.push_back(allocation);
  return allocation;
}

WorkPtr make_graph_allocation(std::shared_ptr<GraphAllocation> allocation) {
  return std::make_shared<AllocationWork>(std::move(allocation));
}

WorkPtr make_graph_free(uint64_t address) { return std::make_shared<FreeingWork>(address); }

bool is_graph_allocation(uint64_t address) {
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  return std::any_of(all.allocations.begin(), all.allocations.end(), [address](const auto& each) { return each->base == address; });
}

const GraphAllocation* allocation_of(const Work& work) {
  return work.node_type() == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? static_cast<const AllocationWork&>(work).allocation().get() : nullptr;
}

CUresult begin_graph_launch(const std::vector<WorkPtr>& work) {
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  std::vector<GraphAllocation*> mapped;
  bool fits = true;
  for_each_allocation(work, [&](GraphAllocation& allocation) {
    if (!fits || allocation.mapped) return;
    fits = Machine::get().charge(allocation.device, here().slot, Charge::kPlain, allocation.owned);
    allocation.mapped = fits;
    if (fits) mapped.push_back(&allocation);
  });
  if (!fits) {
    for (GraphAllocation* allocation : mapped) {
      Machine::get().release(allocation->device, here().slot, Charge::kPlain, allocation->owned);
      allocation->mapped = false;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for_each_allocation(work, [&](GraphAllocation& allocation) {
    ++allocation.launches;
    all.note_highs(allocation.device);
  });
  return CUDA_SUCCESS;
}

void graph_launch_ended(const std::vector<WorkPtr>& work) {
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  for_each_allocation(work, [&](GraphAllocation& allocation) { --allocation.launches; });
}

void graph_allocation_freed(GraphAllocation& allocation) {
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  allocation.live = false;
}

void trim_graph_memory(int device) {
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  for (const auto& each : all.allocations) {
    if (each->device != device || !each->mapped || each->live || each->launches > 0) continue;
    Machine::get().release(device, here().slot, Charge::kPlain, each->owned);
    each->mapped = false;
  }
}

SIM_API CUresult cuDeviceGraphMemTrim(CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  trim_graph_memory(device);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  AllGraphMemory& all = AllGraphMemory::get();
  std::lock_guard lock(all.mutex);
  const auto index = static_cast<size_t>(device);
  uint64_t answer = 0;
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      answer = all.used(device);
      break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      answer = all.used_high[index];
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      answer = all.reserved(device);
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      answer = all.reserved_high[index];
      break;
  }
  std::memcpy(value, &answer, sizeof answer);
  return CUDA_SUCCESS;
}

}  // namespace simgpu
