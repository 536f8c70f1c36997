// Virtual memory management: addresses, physical handles and mappings apart from each other.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>

#include "simgpu/config.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

// Open handles. A handle holds its memory; so does every mapping of it.
struct Handles {
  std::mutex mutex;
  struct Each {
    std::shared_ptr<Physical> memory;
    unsigned references = 1;
  };
  std::unordered_map<uint64_t, Each> open;
  uint64_t next = 0x51000001;
  static Handles& get() {
    static auto* const kHandles = new Handles;
    return *kHandles;
  }
};

std::shared_ptr<Physical> look_up(uint64_t handle) {
  Handles& handles = Handles::get();
  std::lock_guard lock(handles.mutex);
  const auto found = handles.open.find(handle);
  return found == handles.open.end() ? nullptr : found->second.memory;
}

uint64_t open_handle(std::shared_ptr<Physical> memory) {
  Handles& handles = Handles::get();
  std::lock_guard lock(handles.mutex);
  if (memory->handle == 0) memory->handle = handles.next++;
  const uint64_t handle = memory->handle;  // also of memory that is mapped and has had no handle for a while
  handles.open[handle].memory = std::move(memory);
  return handle;
}

// Fills the file without mapping it: that saves the page faults.
bool poison(int fd, uint64_t bytes) {
  static const std::vector<unsigned char>* const kPattern = new std::vector<unsigned char>(kPageBytes, kPoison);
  for (uint64_t offset = 0; offset < bytes;) {
    // Not by pwrite: ThreadSanitizer would look at each word of the pattern.
    const ssize_t count = syscall(SYS_pwrite64, fd, kPattern->data(), std::min<uint64_t>(kPageBytes, bytes - offset), offset);
    if (count <= 0) return false;
    offset += static_cast<uint64_t>(count);
  }
  return true;
}

bool out_of_memory_by_fault(int device) {
  const Faults& faults = Machine::get().faults();
  if (fault_strikes(faults.create_oom)) return true;
  const uint32_t moment_ms = faults.create_oom_moment_ms.load(std::memory_order_relaxed);
  if (moment_ms == 0) return false;
  return now_ns() - Machine::get().released_at_ns(device) < moment_ms * uint64_t{1000000};
}

bool valid(const CUmemAllocationProp* properties) {
  return properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->location.id >= 0 &&
         properties->location.id < Machine::get().device_count();
}

// The file's name tells an importer which of the machine's GPUs the memory is of.
std::string file_name(int device) { return "simgpu-" + std::to_string(Machine::get().machine_number(device)); }

// -1: of one that this process does not see.
int device_of_file(int fd) {
  char target[64] = {};
  if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1) < 0) return 0;
  const char* number = std::strstr(target, "simgpu-");
  return Machine::get().device_of(number != nullptr ? std::strtoul(number + std::strlen("simgpu-"), nullptr, 10) : 0);
}

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

bool make_inaccessible(uint64_t address, uint64_t bytes) {
  return mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// The mappings that make up [address, address+bytes) exactly; empty when one is cut or there is a hole.
std::vector<Range*> whole_mappings(AddressSpace::Writing& writing, uint64_t address, uint64_t bytes) {
  std::vector<Range*> result;
  const uint64_t end = address + bytes;
  while (address < end) {
    Range* range = writing.find(address);
    if (range == nullptr || range->kind != RangeKind::kMapping || range->base != address || range->end() > end) return {};
    result.push_back(range);
    address = range->end();
  }
  return result;
}

}  // namespace

Physical::~Physical() {
  close(fd);
  if (charged && process() != nullptr) Machine::get().release(device, here().slot, Charge::kPhysical, bytes);
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags option) {
  if (const CUresult result = enter_process()) return result;
  if (granularity == nullptr || !valid(properties) || static_cast<unsigned>(option) > 1) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kPageBytes;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || bytes == 0 || bytes % kPageBytes != 0 || flags != 0 || (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (hint % kPageBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  alignment = std::max<size_t>(alignment, kPageBytes);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  uint64_t base = 0;
  if (hint != 0 && hint % alignment == 0) {
    void* at = mmap(pointer(hint), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MAP_FAILED) base = reinterpret_cast<uint64_t>(at);
  }
  if (base == 0) {
    void* at = mmap(nullptr, bytes + alignment, PROT_NONE, kFlags, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto start = reinterpret_cast<uint64_t>(at);
    base = round_up(start, alignment);
    if (base > start) unmap_memory(start, base - start);
    unmap_memory(base + bytes, start + alignment - base);
  }
  *out = base;
  AddressSpace::Writing writing(here().memory);
  writing.reservations()[base] = bytes;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  if (const CUresult result = enter_process()) return result;
  AddressSpace::Writing writing(here().memory);
  const auto found = writing.reservations().find(address);
  if (found == writing.reservations().end() || found->second != bytes || writing.overlaps(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  writing.reservations().erase(found);
  unmap_memory(address, bytes);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties,
                             unsigned long long flags) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || bytes == 0 || bytes % kPageBytes != 0 || flags != 0 || !valid(properties)) return CUDA_ERROR_INVALID_VALUE;
  const int device = properties->location.id;
  if (out_of_memory_by_fault(device)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!Machine::get().charge(device, here().slot, Charge::kPhysical, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = memfd_create(file_name(device).c_str(), MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 || !poison(fd, bytes)) {
    if (fd >= 0) close(fd);
    Machine::get().release(device, here().slot, Charge::kPhysical, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = open_handle(std::make_shared<Physical>(fd, bytes, device, static_cast<int>(properties->requestedHandleTypes)));
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const CUresult result = enter_process()) return result;
  Handles& handles = Handles::get();
  std::shared_ptr<Physical> last;  // freed outside the lock
  std::lock_guard lock(handles.mutex);
  const auto found = handles.open.find(handle);
  if (found == handles.open.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references > 0) return CUDA_SUCCESS;
  last = std::move(found->second.memory);
  handles.open.erase(found);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (const CUresult result = enter_process()) return result;
  const std::shared_ptr<Physical> memory = look_up(handle);
  if (!memory || flags != 0 || bytes == 0 || address % kPageBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes % kPageBytes != 0 || offset % kPageBytes != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (offset + bytes > memory->bytes) return CUDA_ERROR_INVALID_VALUE;
  AddressSpace::Writing writing(here().memory);
  if (!writing.within_reservation(address, bytes) || writing.overlaps(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Range range;
  range.base = address;
  range.size = bytes;
  range.kind = RangeKind::kMapping;
  range.device = memory->device;
  range.readable = range.writable = false;  // until cuMemSetAccess
  range.physical = memory;
  range.physical_offset = offset;
  writing.add(std::move(range));
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions, size_t count) {
  if (const CUresult result = enter_process()) return result;
  if (descriptions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  AddressSpace::Writing writing(here().memory);
  const std::vector<Range*> ranges = whole_mappings(writing, address, bytes);
  if (ranges.empty()) return CUDA_ERROR_INVALID_VALUE;
  unsigned access = 0;
  uint32_t named = 0;
  uint32_t granted = 0;
  for (size_t i = 0; i < count; ++i) {
    if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || descriptions[i].location.id < 0 ||
        descriptions[i].location.id >= Machine::get().device_count()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint32_t device = 1u << descriptions[i].location.id;
    named |= device;
    if (descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) granted |= device;
    access |= descriptions[i].flags;
  }
  const auto is_out_of_reach = [&](const Range* range) { return (granted & ~(1u << range->device)) != 0; };
  if (config().no_peers && std::any_of(ranges.begin(), ranges.end(), is_out_of_reach)) return CUDA_ERROR_INVALID_DEVICE;
  // Devices that are not named keep what they have.
  for (const Range* range : ranges) {
    if ((range->accessors & ~named) != 0) access |= CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  const bool readable = (access & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0;
  const bool writable = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const int protection = writable ? PROT_READ | PROT_WRITE : readable ? PROT_READ : PROT_NONE;
  if (mprotect(pointer(address), bytes, protection) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (writable) madvise(pointer(address), bytes, MADV_POPULATE_WRITE);  // one call instead of many page faults; older kernels refuse
  for (Range* range : ranges) {
    range->readable = readable;
    range->writable = writable;
    range->accessors = (range->accessors & ~named) | granted;
  }
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation*, CUdeviceptr address) {
  if (const CUresult result = enter_process()) return result;
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (range->kind != RangeKind::kMapping) {
    *flags = 0;
    return CUDA_SUCCESS;
  }
  *flags = range->writable   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : range->readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                             : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (const CUresult result = enter_process()) return result;
  Process& process = here();
  {
    AddressSpace::Writing writing(process.memory);
    if (whole_mappings(writing, address, bytes).empty()) {
      // A reservation with nothing in it is unmapped already.
      const bool empty = bytes > 0 && writing.within_reservation(address, bytes) && !writing.overlaps(address, bytes);
      return empty ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (fault_strikes(Machine::get().faults().unmap_fail)) return CUDA_ERROR_UNMAP_FAILED;
  if (const char* name = work_in_flight_on(address, bytes)) {
    char text[160];
    std::snprintf(text, sizeof text, "unmapped under work in flight: %llx, %zu bytes, used by %s", address, bytes, name);
    Context* context = t_thread.current();
    if (context == nullptr) {
      std::lock_guard lock(process.mutex);
      context = process.contexts.front();  // there is one: it has work
    }
    report_fault(*context, CUDA_ERROR_LAUNCH_FAILED, text);
  }
  std::vector<Range> gone;  // their memory is given back outside the lock
  AddressSpace::Writing writing(process.memory);
  if (!make_inaccessible(address, bytes)) return CUDA_ERROR_UNMAP_FAILED;
  for (Range* range : whole_mappings(writing, address, bytes)) {
    const uint64_t base = range->base;
    gone.push_back(std::move(*range));
    writing.ranges().erase(base);
  }
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  if (const CUresult result = enter_process()) return result;
  std::shared_ptr<Physical> memory;
  {
    AddressSpace::Reading reading(here().memory);
    const Range* range = reading.find(reinterpret_cast<uint64_t>(address));
    if (range == nullptr || range->kind != RangeKind::kMapping) return CUDA_ERROR_INVALID_VALUE;
    memory = range->physical;
  }
  Handles& handles = Handles::get();
  {
    std::lock_guard lock(handles.mutex);
    for (auto& [handle, each] : handles.open) {
      if (each.memory != memory) continue;
      ++each.references;
      *out = handle;
      return CUDA_SUCCESS;
    }
  }
  *out = open_handle(std::move(memory));
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  if (const CUresult result = enter_process()) return result;
  const std::shared_ptr<Physical> memory = look_up(handle);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location = {CU_MEM_LOCATION_TYPE_DEVICE, memory->device};
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(memory->handle_types);
  return CUDA_SUCCESS;
}

// There are no multicast objects here, but what is no virtual memory is refused for that.
SIM_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr address, size_t, unsigned long long) {
  if (const CUresult result = enter_process()) return result;
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  return range == nullptr || range->kind != RangeKind::kMapping ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  if (const CUresult result = enter_process()) return result;
  const std::shared_ptr<Physical> memory = look_up(handle);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;  // there are no flags (recorded)
  if (!memory || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (memory->handle_types & static_cast<int>(type)) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle, CUmemAllocationHandleType type) {
  if (const CUresult result = enter_process()) return result;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), F_DUPFD_CLOEXEC, 0);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || info.st_size == 0) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_UNKNOWN;
  }
  const int device = device_of_file(fd);
  if (device < 0) {
    close(fd);
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto memory = std::make_shared<Physical>(fd, static_cast<uint64_t>(info.st_size), device, static_cast<int>(type));
  memory->charged = false;  // the exporter pays for it
  *out = open_handle(std::move(memory));
  return CUDA_SUCCESS;
}

}  // namespace simgpu
