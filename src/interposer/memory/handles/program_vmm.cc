#include "interposer/memory/handles/program_vmm.h"

#include <algorithm>
#include <span>

#include "interposer/hooks/submit.h"
#include "interposer/hooks/unswappable.h"
#include "interposer/log.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUresult;

namespace {

// No address that is canonical and no small number: never one of the driver's handles.
constexpr uint64_t kNumberTag = uint64_t{0x6e76} << 48;
constexpr size_t kGranularity = size_t{2} << 20;  // the coarsest that the driver asks for

bool is_ours(cuda::CUmemGenericAllocationHandle number) { return (number & (uint64_t{0xffff} << 48)) == kNumberTag; }

// Memory that can move: on a GPU, of the usual kind, and not exportable in a way that only the driver can judge.
bool can_move(const cuda::CUmemAllocationProp& properties) {
  const bool types_known = (properties.requestedHandleTypes & ~cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
  return properties.type == cuda::CU_MEM_ALLOCATION_TYPE_PINNED && properties.location.type == cuda::CU_MEM_LOCATION_TYPE_DEVICE &&
         types_known && properties.win32HandleMetaData == nullptr && properties.allocFlags.compressionType == 0 &&
         properties.allocFlags.usage == 0;
}

bool descriptors_supported(int ordinal) {
  int supported = 0;
  return real_driver().cuDeviceGetAttribute(&supported, cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal) ==
             cuda::CUDA_SUCCESS &&
         supported != 0;
}

// As a submission: with the lock, so that all of the program's memory is on the GPU.
template <typename Call>
CUresult with_lock(Process& process, Call call) {
  return pass_gate(Within(process), Target{nullptr, false}, call);
}

// A handle of the driver's among what cannot move, beside arrays and pools, whose keys are addresses.
uint64_t holding_key(cuda::CUmemGenericAllocationHandle number) { return number ^ (uint64_t{1} << 63); }

// Mappings that follow each other, all of which the driver has, or none: what it has in one piece goes in one call.
using Stretch = std::span<Mapping* const>;
size_t bytes_of(Stretch stretch) { return stretch.back()->end() - stretch.front()->base; }
// Ends at the first error. `visit` may end the mappings of its stretch.
template <typename Visit>
CUresult for_each_stretch(Stretch mappings, Visit visit) {
  while (!mappings.empty()) {
    const bool placed = mappings.front()->placed;
    const auto end = std::find_if(mappings.begin(), mappings.end(), [&](const Mapping* each) { return each->placed != placed; });
    const auto count = static_cast<size_t>(end - mappings.begin());
    const CUresult result = visit(mappings.first(count));
    if (result != cuda::CUDA_SUCCESS) return result;
    mappings = mappings.subspan(count);
  }
  return cuda::CUDA_SUCCESS;
}

}  // namespace

bool ProgramVmm::has_context(int ordinal) {
  const cuda::CUcontext context = process_.contexts.pin(ordinal);
  if (context != nullptr) process_.contexts.unpin(context);
  return context != nullptr;
}

bool ProgramVmm::takes_turns(Device& device) { return device.link().shared() && has_context(device.ordinal()); }

Device* ProgramVmm::device_of(const ProgramHandle& handle) { return process_.device(handle.ordinal); }

// ---- addresses ----

CUresult ProgramVmm::reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  CUresult result = real_driver().cuMemAddressReserve(address, bytes, alignment, hint, flags);
  if (result != cuda::CUDA_SUCCESS) return result;
  Lock lock(mutex_);
  book_.add_reservation(*address, bytes);
  return result;
}

CUresult ProgramVmm::free_range(CUdeviceptr address, size_t bytes) {
  Lock lock(mutex_);
  // The driver does not know of what is mapped there while it is not on the GPU.
  for (const Mapping* mapping : book_.touched(address, bytes)) {
    if (!mapping->placed) return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = real_driver().cuMemAddressFree(address, bytes);
  if (result == cuda::CUDA_SUCCESS) book_.remove_reservation(address);
  return result;
}

// ---- handles ----

CUresult ProgramVmm::create(Handle* out, size_t bytes, const cuda::CUmemAllocationProp* properties, unsigned long long flags) {
  const RealDriver& driver = real_driver();
  size_t granularity = 0;
  // The driver refuses in its own words what is not plainly right.
  const bool plain =
      out != nullptr && properties != nullptr && flags == 0 && bytes > 0 && bytes < SIZE_MAX / 2 && can_move(*properties) &&
      driver.cuMemGetAllocationGranularity(&granularity, properties, cuda::CU_MEM_ALLOC_GRANULARITY_MINIMUM) == cuda::CUDA_SUCCESS &&
      granularity > 0 && bytes % granularity == 0;
  Device* device = plain ? process_.attach(properties->location.id) : nullptr;
  if (device == nullptr || device->backend() != protocol::Backend::kVmm || !device->link().shared() ||
      (properties->requestedHandleTypes != cuda::CU_MEM_HANDLE_TYPE_NONE && !descriptors_supported(device->ordinal()))) {
    return create_at_driver(out, bytes, properties, flags);
  }
  if (device->refused()) return cuda::CUDA_ERROR_NOT_PERMITTED;
  auto* handle = new ProgramHandle;
  handle->properties = *properties;
  handle->bytes = bytes;
  handle->ordinal = device->ordinal();
  CUresult result = device->memory().allocations.allocate_handle(handle);
  if (result != cuda::CUDA_SUCCESS) {
    delete handle;
    return result;
  }
  Lock lock(mutex_);
  handle->id = next_id_++;
  handle->number = kNumberTag | handle->id;
  book_.add_handle(handle);
  *out = handle->number;
  return cuda::CUDA_SUCCESS;
}

CUresult ProgramVmm::create_at_driver(Handle* out, size_t bytes, const cuda::CUmemAllocationProp* properties, unsigned long long flags) {
  Device* owner = nullptr;
  if (properties != nullptr && properties->location.type == cuda::CU_MEM_LOCATION_TYPE_DEVICE) {
    owner = process_.attach(properties->location.id);
    if (owner != nullptr && owner->refused()) return cuda::CUDA_ERROR_NOT_PERMITTED;
  }
  const bool counted = owner != nullptr && out != nullptr && bytes > 0;
  const bool held = counted && flags == 0 && bytes % protocol::kArenaUnitBytes == 0 && takes_turns(*owner);
  CUresult result = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (held) {
    result = allocate_unswappable(*owner, "virtual memory", bytes, nullptr, [&](uint64_t* key) {
      const CUresult made = real_driver().cuMemCreate(out, bytes, properties, flags);
      if (made == cuda::CUDA_SUCCESS) *key = holding_key(*out);
      return made;
    });
  } else {
    if (counted && (bytes > SIZE_MAX / 2 || !charge(*owner, bytes, "virtual memory"))) return result;
    result = real_driver().cuMemCreate(out, bytes, properties, flags);
    if (result != cuda::CUDA_SUCCESS && counted) refund(*owner, bytes);
  }
  if (result != cuda::CUDA_SUCCESS || out == nullptr || properties == nullptr) return result;
  auto* handle = new ProgramHandle;
  handle->counted = counted && !held;
  handle->held = held;
  handle->number = *out;
  handle->properties = *properties;
  handle->bytes = bytes;
  if (properties->location.type == cuda::CU_MEM_LOCATION_TYPE_DEVICE) handle->ordinal = properties->location.id;
  Lock lock(mutex_);
  handle->id = next_id_++;
  book_.add_handle(handle);
  return result;
}

ProgramHandle* ProgramVmm::open_handle(Handle number) {
  ProgramHandle* handle = book_.handle(number);
  return handle != nullptr && handle->references > 0 ? handle : nullptr;
}

bool ProgramVmm::is_hidden(Handle number) {
  if (is_ours(number)) return open_handle(number) == nullptr;
  if (book_.handle(number) != nullptr) return false;
  bool hidden = false;
  process_.for_each_device([&](Device& device) { hidden = hidden || device.memory().blocks.owns_handle(number); });
  return hidden;
}

bool ProgramVmm::end_if_unused(ProgramHandle* handle) {
  if (handle->references > 0 || !handle->mappings.empty()) return false;
  book_.remove_handle(handle);
  return true;
}

void ProgramVmm::dispose(ProgramHandle* handle) {
  if (handle->block != nullptr) {
    device_of(*handle)->memory().allocations.free_handle(handle->block);
  } else {
    if (handle->counted) refund(*device_of(*handle), handle->bytes);
    if (handle->held) device_of(*handle)->memory().driver.release(holding_key(handle->number));
    delete handle;
  }
}

CUresult ProgramVmm::release(Handle number) {
  ProgramHandle* ended = nullptr;
  {
    Lock lock(mutex_);
    ProgramHandle* handle = open_handle(number);
    if (handle == nullptr || handle->block == nullptr) {
      CUresult result = is_hidden(number) ? cuda::CUDA_ERROR_INVALID_VALUE : real_driver().cuMemRelease(number);
      if (handle == nullptr || result != cuda::CUDA_SUCCESS) return result;
    }
    --handle->references;
    if (end_if_unused(handle)) ended = handle;
  }
  if (ended != nullptr) dispose(ended);
  return cuda::CUDA_SUCCESS;
}

CUresult ProgramVmm::retain(Handle* out, void* address) {
  Lock lock(mutex_);
  Mapping* mapping = book_.find(reinterpret_cast<uintptr_t>(address));
  if (mapping == nullptr || out == nullptr) return real_driver().cuMemRetainAllocationHandle(out, address);
  ProgramHandle* handle = mapping->handle;
  if (handle->block != nullptr) {
    ++handle->references;
    *out = handle->number;
    return cuda::CUDA_SUCCESS;
  }
  CUresult result = real_driver().cuMemRetainAllocationHandle(out, address);
  if (result != cuda::CUDA_SUCCESS) return result;
  if (*out == handle->number) {
    ++handle->references;
  } else if (ProgramHandle* other = book_.handle(*out)) {
    ++other->references;
  } else {
    auto* alias = new ProgramHandle;  // another name of the same memory
    alias->number = *out;
    alias->properties = handle->properties;
    alias->bytes = handle->bytes;
    alias->ordinal = handle->ordinal;
    alias->id = handle->id;
    book_.add_handle(alias);
  }
  return result;
}

CUresult ProgramVmm::properties_of(cuda::CUmemAllocationProp* properties, Handle number) {
  Lock lock(mutex_);
  if (is_hidden(number)) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (!is_ours(number)) return real_driver().cuMemGetAllocationPropertiesFromHandle(properties, number);
  ProgramHandle* handle = open_handle(number);
  if (handle == nullptr || properties == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *properties = handle->properties;
  return cuda::CUDA_SUCCESS;
}

// ---- what leaves the books ----

void ProgramVmm::keep(ProgramHandle* handle) {
  if (handle->block != nullptr) device_of(*handle)->memory().residency.make_unswappable(*handle->block);
}

ProgramVmm::Handle ProgramVmm::pin(Handle number) {
  Lock lock(mutex_);
  if (is_hidden(number)) return 0;  // which is no handle
  ProgramHandle* handle = open_handle(number);
  if (handle == nullptr || handle->block == nullptr) return number;
  keep(handle);
  return handle->block->chunks[0].handle;
}

void ProgramVmm::pin_range(CUdeviceptr address, size_t bytes) {
  if (mapped_.load(std::memory_order_relaxed) == 0) return;
  Lock lock(mutex_);
  for (Mapping* mapping : book_.touched(address, bytes)) keep(mapping->handle);
}

CUresult ProgramVmm::export_handle(void* out, Handle number, cuda::CUmemAllocationHandleType type, unsigned long long flags) {
  const auto function = real_driver().cuMemExportToShareableHandle;
  Block* block = nullptr;
  int ordinal = -1;
  {
    Lock lock(mutex_);
    if (is_hidden(number)) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (!is_ours(number)) return function(out, number, type, flags);
    ProgramHandle* handle = open_handle(number);
    if (handle == nullptr || out == nullptr || flags != 0 || type == 0 || (handle->properties.requestedHandleTypes & type) == 0) {
      return cuda::CUDA_ERROR_INVALID_VALUE;
    }
    if (handle->block->unswappable) return function(out, handle->block->chunks[0].handle, type, flags);
    block = handle->block;
    ordinal = handle->ordinal;
    ++handle->references;  // it stays until this is done
  }
  // As a parent does that hands memory to its children: there are no turns to wait for.
  CUresult result = cuda::CUDA_SUCCESS;
  if (!has_context(ordinal)) result = process_.device(ordinal)->memory().pieces.place_without_context(*block);
  if (result == cuda::CUDA_SUCCESS) result = with_lock(process_, [&] { return function(out, pin(number), type, flags); });
  release(number);
  return result;
}

CUresult ProgramVmm::import_handle(Handle* out, void* os_handle, cuda::CUmemAllocationHandleType type) {
  CUresult result = real_driver().cuMemImportFromShareableHandle(out, os_handle, type);
  if (result != cuda::CUDA_SUCCESS) return result;
  Lock lock(mutex_);
  if (ProgramHandle* known = book_.handle(*out)) {
    ++known->references;
    return result;
  }
  auto* handle = new ProgramHandle;
  handle->number = *out;
  handle->id = next_id_++;
  book_.add_handle(handle);
  return result;
}

// ---- mappings ----

CUresult ProgramVmm::place_mapping(Mapping& mapping, Handle driver_handle) {
  const RealDriver& driver = real_driver();
  CUresult result = driver.cuMemMap(mapping.base, mapping.bytes, mapping.offset, driver_handle, 0);
  if (result != cuda::CUDA_SUCCESS) return result;
  if (!mapping.access.empty()) {
    result = driver.cuMemSetAccess(mapping.base, mapping.bytes, mapping.access.data(), mapping.access.size());
    if (result != cuda::CUDA_SUCCESS) {
      driver.cuMemUnmap(mapping.base, mapping.bytes);
      return result;
    }
  }
  mapping.placed = true;
  return result;
}

CUresult ProgramVmm::map_locked(CUdeviceptr address, size_t bytes, size_t offset, ProgramHandle* handle, unsigned long long flags) {
  const Handle driver_handle = handle->block != nullptr ? handle->block->chunks[0].handle : handle->number;
  auto* mapping = new Mapping;
  mapping->base = address;
  mapping->bytes = bytes;
  mapping->offset = offset;
  mapping->handle = handle;
  if (driver_handle != 0) {
    CUresult result = real_driver().cuMemMap(address, bytes, offset, driver_handle, flags);
    if (result != cuda::CUDA_SUCCESS) {
      delete mapping;
      return result;
    }
    mapping->placed = true;
  }
  mapping->id = next_id_++;
  book_.insert(mapping);
  mapped_.store(book_.mapping_count(), std::memory_order_relaxed);
  return cuda::CUDA_SUCCESS;
}

CUresult ProgramVmm::map(CUdeviceptr address, size_t bytes, size_t offset, Handle number, unsigned long long flags) {
  {
    Lock lock(mutex_);
    ProgramHandle* handle = open_handle(number);
    if (handle == nullptr)
      return is_hidden(number) ? cuda::CUDA_ERROR_INVALID_VALUE : real_driver().cuMemMap(address, bytes, offset, number, flags);
    const bool plain = flags == 0 && offset == 0 && bytes == handle->bytes && address % kGranularity == 0 &&
                       book_.reservation(address, bytes) != nullptr && !book_.overlaps(address, bytes);
    // Of what is not ours the driver knows all, but for what else is mapped there.
    if (plain || (handle->block == nullptr && !book_.overlaps(address, bytes))) return map_locked(address, bytes, offset, handle, flags);
  }
  return with_lock(process_, [&] {
    Lock lock(mutex_);
    ProgramHandle* handle = open_handle(number);
    if (handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (handle->block != nullptr && handle->block->chunks[0].handle == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    return map_locked(address, bytes, offset, handle, flags);
  });
}

CUresult ProgramVmm::unmap(CUdeviceptr address, size_t bytes) {
  std::vector<ProgramHandle*> ended;
  {
    Lock lock(mutex_);
    std::vector<Mapping*> mappings = book_.cover(address, bytes);
    if (mappings.empty()) {
      for (const Mapping* mapping : book_.touched(address, bytes)) {
        if (mapping->handle->block != nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
      }
      return real_driver().cuMemUnmap(address, bytes);  // no memory of ours: the driver judges
    }
    const CUresult result = for_each_stretch(mappings, [&](Stretch stretch) {
      held(mutex_);
      const CUdeviceptr base = stretch.front()->base;
      const CUresult unmapped = stretch.front()->placed ? real_driver().cuMemUnmap(base, bytes_of(stretch)) : cuda::CUDA_SUCCESS;
      if (unmapped != cuda::CUDA_SUCCESS) return unmapped;
      for (Mapping* mapping : stretch) {
        ProgramHandle* handle = mapping->handle;
        book_.erase(mapping);
        if (end_if_unused(handle)) ended.push_back(handle);
      }
      return unmapped;
    });
    if (result != cuda::CUDA_SUCCESS) return result;
    mapped_.store(book_.mapping_count(), std::memory_order_relaxed);
  }
  for (ProgramHandle* handle : ended) dispose(handle);
  return cuda::CUDA_SUCCESS;
}

// ---- access ----

bool ProgramVmm::plain_access(const std::vector<Mapping*>& mappings, const cuda::CUmemAccessDesc* descriptions, size_t count) {
  if (mappings.empty() || descriptions == nullptr || count == 0) return false;
  for (size_t i = 0; i < count; ++i) {
    const cuda::CUmemAccessDesc& each = descriptions[i];
    if (each.location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE) return false;
    if (each.flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE && each.flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_READ &&
        each.flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return false;
    }
    for (const Mapping* mapping : mappings) {
      if (mapping->handle->ordinal == each.location.id) continue;
      int can = 0;
      if (mapping->handle->ordinal < 0 ||
          real_driver().cuDeviceCanAccessPeer(&can, each.location.id, mapping->handle->ordinal) != cuda::CUDA_SUCCESS || can == 0) {
        return false;
      }
    }
  }
  return true;
}

CUresult ProgramVmm::set_access(CUdeviceptr address, size_t bytes, const cuda::CUmemAccessDesc* descriptions, size_t count) {
  const RealDriver& driver = real_driver();
  auto record = [&](const std::vector<Mapping*>& mappings) {
    for (Mapping* mapping : mappings) {
      for (size_t i = 0; i < count; ++i) mapping->set_access(descriptions[i]);
    }
  };
  {
    Lock lock(mutex_);
    std::vector<Mapping*> mappings = book_.cover(address, bytes);
    const std::vector<Mapping*> touched = book_.touched(address, bytes);
    const bool all_placed = std::all_of(touched.begin(), touched.end(), [](const Mapping* each) { return each->placed; });
    if (all_placed && !mappings.empty()) {
      CUresult result = driver.cuMemSetAccess(address, bytes, descriptions, count);
      if (result == cuda::CUDA_SUCCESS) record(mappings);
      return result;
    }
    if (touched.empty()) return driver.cuMemSetAccess(address, bytes, descriptions, count);
    if (plain_access(mappings, descriptions, count)) {
      const CUresult result = for_each_stretch(mappings, [&](Stretch stretch) {
        const Mapping& first = *stretch.front();
        return first.placed ? driver.cuMemSetAccess(first.base, bytes_of(stretch), descriptions, count) : cuda::CUDA_SUCCESS;
      });
      if (result == cuda::CUDA_SUCCESS) record(mappings);
      return result;
    }
  }
  return with_lock(process_, [&] {
    Lock lock(mutex_);
    CUresult result = driver.cuMemSetAccess(address, bytes, descriptions, count);
    if (result != cuda::CUDA_SUCCESS) return result;
    std::vector<Mapping*> mappings = book_.cover(address, bytes);
    record(mappings);
    if (mappings.empty()) {
      // Access to a part of a mapping cannot be replayed: that memory stays where it is.
      for (Mapping* mapping : book_.touched(address, bytes)) keep(mapping->handle);
    }
    return result;
  });
}

CUresult ProgramVmm::get_access(unsigned long long* flags, const cuda::CUmemLocation* location, CUdeviceptr address) {
  {
    Lock lock(mutex_);
    const Mapping* mapping = book_.find(address);
    if (mapping != nullptr && !mapping->placed) {
      if (flags == nullptr || location == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
      *flags = mapping->access_of(*location);
      return cuda::CUDA_SUCCESS;
    }
  }
  return real_driver().cuMemGetAccess(flags, location, address);
}

// ---- queries ----

bool ProgramVmm::find(CUdeviceptr address, View* view) {
  if (mapped_.load(std::memory_order_relaxed) == 0) return false;
  Lock lock(mutex_);
  const Mapping* mapping = book_.find(address);
  if (mapping == nullptr || mapping->handle->block == nullptr) return false;
  const ProgramHandle& handle = *mapping->handle;
  const AddressBook::Reservation* reservation = book_.reservation(address, 1);
  *view = {};
  view->base = mapping->base;
  view->bytes = mapping->bytes;
  view->reservation = reservation != nullptr ? reservation->base : mapping->base;
  view->reserved = reservation != nullptr ? reservation->bytes : mapping->bytes;
  view->ordinal = handle.ordinal;
  view->access = mapping->access_of(handle.properties.location);
  view->handle_types = handle.properties.requestedHandleTypes;
  view->rdma_capable = handle.properties.allocFlags.gpuDirectRDMACapable != 0;
  view->mapping_id = kNumberTag | mapping->id;
  view->handle_id = kNumberTag | handle.id;
  view->placed = mapping->placed;
  return true;
}

// ---- the swap engine's ----

// What an unmapping left that failed: it keeps all of the handle's memory on the GPU. Where nothing is mapped, unmapping does no harm.
void ProgramVmm::take_left(Block& block) {
  const RealDriver& driver = real_driver();
  bool all = true;
  for (const Mapping* mapping : block.handle->mappings) {
    if (!mapping->placed) all = driver.cuMemUnmap(mapping->base, mapping->bytes) == cuda::CUDA_SUCCESS && all;
  }
  if (block.base != 0 && !block.window_mapped) all = driver.cuMemUnmap(block.base, block.bytes) == cuda::CUDA_SUCCESS && all;
  block.chunks[0].left_mapped = !all;
}

CUresult ProgramVmm::place(Block& block) {
  Lock lock(mutex_);
  Handle& physical = block.chunks[0].handle;
  if (physical != 0) return cuda::CUDA_SUCCESS;
  ProgramHandle& handle = *block.handle;
  if (block.chunks[0].left_mapped) take_left(block);
  CUresult result = real_driver().cuMemCreate(&physical, block.bytes, &handle.properties, 0);
  if (result != cuda::CUDA_SUCCESS) {
    physical = 0;
    return result;
  }
  for (Mapping* mapping : handle.mappings) {
    result = place_mapping(*mapping, physical);
    if (result == cuda::CUDA_SUCCESS) continue;
    log(LogLevel::kError, "mapping the program's memory at %llx again failed (CUDA error %d)", mapping->base, static_cast<int>(result));
    for (Mapping* done : handle.mappings) {
      if (done->placed) real_driver().cuMemUnmap(done->base, done->bytes);
      done->placed = false;
    }
    real_driver().cuMemRelease(physical);
    physical = 0;
    return result;
  }
  return result;
}

void ProgramVmm::displace(Block& block) {
  const RealDriver& driver = real_driver();
  Lock lock(mutex_);
  Handle& physical = block.chunks[0].handle;
  if (physical == 0) return;
  CUresult worst = cuda::CUDA_SUCCESS;
  auto note = [&](CUresult result) {
    if (result != cuda::CUDA_SUCCESS) worst = result;
  };
  for (Mapping* mapping : block.handle->mappings) {
    if (mapping->placed) note(driver.cuMemUnmap(mapping->base, mapping->bytes));
    mapping->placed = false;
  }
  if (block.window_mapped) note(driver.cuMemUnmap(block.base, block.bytes));
  block.window_mapped = false;
  const bool left = worst != cuda::CUDA_SUCCESS && worst != cuda::CUDA_ERROR_DEINITIALIZED;
  block.chunks[0].left_mapped = block.chunks[0].left_mapped || left;
  note(driver.cuMemRelease(physical));
  physical = 0;
  // A driver that has gone (the program frees in its last exit handlers) took the memory with it.
  if (worst == cuda::CUDA_SUCCESS || worst == cuda::CUDA_ERROR_DEINITIALIZED) return;
  log(LogLevel::kError, "giving back %zu bytes of GPU memory failed (CUDA error %d)", block.bytes, static_cast<int>(worst));
}

CUresult ProgramVmm::open_window(Blocks& blocks, Block& block) {
  if (block.kind != BlockKind::kHandle) return cuda::CUDA_SUCCESS;
  const RealDriver& driver = real_driver();
  Lock lock(mutex_);
  if (block.window_mapped) return cuda::CUDA_SUCCESS;
  CUresult result = cuda::CUDA_SUCCESS;
  if (block.base == 0) {
    CUdeviceptr base = 0;
    result = driver.cuMemAddressReserve(&base, block.bytes, 0, 0, 0);
    if (result != cuda::CUDA_SUCCESS) return result;
    blocks.set_window(block, base, block.bytes);
  }
  result = driver.cuMemMap(block.base, block.bytes, 0, block.chunks[0].handle, 0);
  if (result != cuda::CUDA_SUCCESS) return result;
  cuda::CUmemAccessDesc access{block.handle->properties.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  result = driver.cuMemSetAccess(block.base, block.bytes, &access, 1);
  if (result == cuda::CUDA_SUCCESS) {
    block.window_mapped = true;
  } else {
    driver.cuMemUnmap(block.base, block.bytes);
  }
  return result;
}

void ProgramVmm::reset_after_fork() {
  mutex_.reset_after_fork();
  book_ = AddressBook{};  // the parent's; a child that was forked has no driver
  mapped_.store(0, std::memory_order_relaxed);
}

}  // namespace nvshare::interposer
