// Managed memory: where its pages are, and what moving them takes. The data itself never moves: only capacity and time are modelled, in
// pages of 2 MiB, and access by the host is free.
#include <algorithm>
#include <utility>

#include "simgpu/capture.h"
#include "simgpu/context.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

// Pages that came to the device now will have been there the next time.
std::vector<bool> mark_seen(ManagedPages& pages, uint64_t offset, uint64_t count) {
  std::lock_guard lock(pages.mutex);
  std::vector<bool> before(pages.seen.begin() + static_cast<ptrdiff_t>(offset),
                           pages.seen.begin() + static_cast<ptrdiff_t>(offset + count));
  std::fill_n(pages.seen.begin() + static_cast<ptrdiff_t>(offset), count, true);
  return before;
}

void bring_in(Execution& execution, const Range& range, uint64_t address, uint64_t bytes, int device, bool prefetch) {
  const Pages pages = pages_of(address, bytes);
  const std::vector<bool> seen = mark_seen(*range.pages, pages.first - range.base / kPageBytes, pages.count);
  const Machine::Residency moved = Machine::get().make_resident(device, execution.slot, pages.first, pages.count, prefetch, seen);
  if (moved.evict_ns > 0) execution.occupy(Engine::kToHost, moved.evict_ns);
  if (moved.ns > 0) execution.occupy(Engine::kToDevice, moved.ns);
}

class PrefetchWork : public Work {
 public:
  PrefetchWork(uint64_t address, uint64_t bytes, int device) : address_(address), bytes_(bytes), device_(device) {}
  void run(Execution& execution) const override {
    Range range;
    {
      AddressSpace::Reading reading(here().memory);
      const Range* found = reading.find(address_);
      if (found == nullptr) return execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "a prefetch of memory that is gone");
      range = *found;
    }
    if (device_ >= 0) return bring_in(execution, range, address_, bytes_, device_, true);
    const Pages pages = pages_of(address_, bytes_);
    std::vector<bool> was_resident;
    const Machine::Residency moved = Machine::get().make_absent(execution.slot, pages.first, pages.count, false, &was_resident);
    if (moved.evict_ns > 0) execution.occupy(Engine::kToHost, moved.evict_ns);
  }
  void spans(std::vector<Span>& out) const override { out.push_back({address_, bytes_, false}); }
  const char* name() const override { return "a prefetch"; }

 private:
  const uint64_t address_;
  const uint64_t bytes_;
  const int device_;  // negative: to the host
};

CUresult find_managed(CUdeviceptr address, size_t bytes) {
  if (const CUresult result = enter_process()) return result;
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  if (range == nullptr || range->kind != RangeKind::kManaged || address + bytes > range->base + range->owned) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Calls `what` with where each of the pages was last prefetched to.
template <typename What>
void each_place(CUdeviceptr address, size_t bytes, What what) {
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  if (range == nullptr || !range->pages) return;  // another thread has freed it
  const Pages pages = pages_of(address, bytes);
  std::lock_guard lock(range->pages->mutex);
  for (uint64_t page = pages.first; page < pages.first + pages.count; ++page)
    what(range->pages->prefetched_to[page - range->base / kPageBytes]);
}

CUresult prefetch(CUdeviceptr address, size_t bytes, int device, CUstream handle, Default null_means) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (const CUresult result = find_managed(address, bytes)) return result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (device >= 0 && !valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  each_place(address, bytes, [&](int& place) { place = std::max(device, CU_DEVICE_CPU); });
  return submit(*stream, Submission::kOther, std::make_shared<PrefetchWork>(address, bytes, device));
}

int device_of(const CUmemLocation& location) { return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU; }

}  // namespace

bool Execution::prepare(const std::vector<Span>& needed, CUresult error, const char* who) {
  struct Managed {
    Range range;
    uint64_t address;
    uint64_t bytes;
  };
  std::vector<Managed> managed;
  {
    AddressSpace::Reading reading(here().memory);
    for (const Span& span : needed) {
      if (span.bytes == 0) continue;
      const uint64_t bad = reading.first_bad(span.address, span.bytes, span.write);
      if (bad != 0) {
        fault(error, "%s uses %llx, which is %s", who, static_cast<unsigned long long>(bad),
              reading.find(bad) != nullptr ? "mapped without access"
              : reading.reserved(bad)      ? "reserved but not mapped"
                                           : "no memory of the device");
        return false;
      }
      const Range* range = reading.find(span.address);
      if (range->kind == RangeKind::kManaged) managed.push_back({*range, span.address, span.bytes});
    }
  }
  for (const Managed& each : managed) bring_in(*this, each.range, each.address, each.bytes, device, false);
  return true;
}

void forget_managed(const Range& range) {
  const Pages pages = pages_of(range.base, range.owned);
  std::vector<bool> was_resident;
  Machine::get().make_absent(here().slot, pages.first, pages.count, true, &was_resident);
}

SIM_API CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_unsafe_call()) return result;
  if (fault_strikes(Machine::get().faults().alloc_oom)) return CUDA_ERROR_OUT_OF_MEMORY;
  return allocate_managed(*context, bytes, flags, nullptr, out);
}

CUresult allocate_managed(Context& context, uint64_t bytes, unsigned flags, void* pool, CUdeviceptr* out) {
  Range range;
  range.kind = RangeKind::kManaged;
  range.size = bytes;
  range.owned = round_up(bytes, kPageBytes);
  range.base = map_memory(range.owned, kPageBytes);  // zeros, as on the real driver
  if (range.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range.device = context.device;
  range.context = context.parent != nullptr ? context.parent : &context;
  range.pool = pool;
  range.flags = flags;
  range.sync_memops = true;
  range.pages = std::make_shared<ManagedPages>();
  range.pages->seen.assign(range.owned / kPageBytes, false);
  range.pages->prefetched_to.assign(range.owned / kPageBytes, ManagedPages::kNowhere);
  *out = range.base;
  AddressSpace::Writing writing(here().memory);
  writing.add(std::move(range));
  return CUDA_SUCCESS;
}

namespace {

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (bytes == 0 || advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) return CUDA_ERROR_INVALID_VALUE;
  return find_managed(address, bytes);
}

}  // namespace

SIM_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, device, stream, Default::kLegacy);
}
SIM_API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, device, stream, Default::kPerThread);
}
SIM_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned, CUstream stream) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return prefetch(address, bytes, device_of(location), stream, Default::kLegacy);
}
SIM_API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned, CUstream stream) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return prefetch(address, bytes, device_of(location), stream, Default::kPerThread);
}
// Advice is checked and has no effect.
SIM_API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice) { return advise(address, bytes, advice); }
SIM_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation) {
  return advise(address, bytes, advice);
}

namespace {

// As advice has no effect: no GPU, and not read mostly. The last prefetch is that of all pages, or of none.
CUresult range_attribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address, size_t bytes) {
  constexpr unsigned kReadMostly = 1, kLastPrefetch = 4;
  if (data == nullptr || data_bytes == 0 || data_bytes % sizeof(int) != 0 || attribute < kReadMostly || attribute > kLastPrefetch ||
      bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = find_managed(address, bytes)) return result;
  int value = attribute == kReadMostly ? 0 : ManagedPages::kNowhere;
  if (attribute == kLastPrefetch) {
    bool first = true, same = true;
    each_place(address, bytes, [&](int place) {
      same &= first || place == value;
      value = std::exchange(first, false) ? place : value;
    });
    if (!same) value = ManagedPages::kNowhere;
  }
  std::fill_n(static_cast<int*>(data), data_bytes / sizeof(int), value);
  return CUDA_SUCCESS;
}

}  // namespace

SIM_API CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address, size_t bytes) {
  return range_attribute(data, data_bytes, attribute, address, bytes);
}
SIM_API CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
                                         CUdeviceptr address, size_t bytes) {
  if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (const CUresult result = range_attribute(data[i], data_bytes[i], attributes[i], address, bytes)) return result;
  }
  return CUDA_SUCCESS;
}

namespace {

// A piece of memory cannot belong to a default stream alone.
CUresult attach(CUstream handle, Default null_means, CUdeviceptr address, unsigned flags) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  constexpr unsigned kSingle = 4;  // CU_MEM_ATTACH_SINGLE
  if (flags == kSingle && handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return find_managed(address, 0);
}

}  // namespace

SIM_API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t, unsigned flags) {
  return attach(stream, Default::kLegacy, address, flags);
}
SIM_API CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t, unsigned flags) {
  return attach(stream, Default::kPerThread, address, flags);
}

}  // namespace simgpu
