#include "interposer/symbols/real_driver.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "interposer/symbols/dlsym.h"
#include "interposer/symbols/elf_image.h"
#include "interposer/symbols/missing.h"

namespace nvshare::interposer {
namespace {

constexpr char kDriverName[] = "libcuda.so.1";

// Open addressing with linear probing, at most a third full.
constexpr size_t kBuckets = 2048;
static_assert(kDriverSlots * 3 <= kBuckets && (kBuckets & (kBuckets - 1)) == 0);
constexpr uint16_t kEmpty = 0xffff;
static_assert(kDriverSlots < kEmpty);

// A complete result of loading, immutable once published. Two threads that load at once each build one and the first to publish wins: so
// nobody ever waits (a waiter could be holding the dynamic linker's lock that the loader needs), and a fork in between harms nobody.
struct LoadedDriver {
  RealDriver functions;
  const link_map* object;
  uint16_t slots[kBuckets];
};

void* read_slot(const RealDriver& table, size_t slot) {
  void* function;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + slot * sizeof function, sizeof function);
  return function;
}

void write_slot(RealDriver& table, size_t slot, void* function) {
  std::memcpy(reinterpret_cast<char*>(&table) + slot * sizeof function, &function, sizeof function);
}

size_t bucket_of(const void* address) {
  return (static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) * 0x9e3779b97f4a7c15u) >> (64 - 11);
}
static_assert(kBuckets == 1 << 11);

const LoadedDriver* loaded() {
  // RealDriver is LoadedDriver's first member.
  return reinterpret_cast<const LoadedDriver*>(detail::loaded_driver.load(std::memory_order_acquire));
}

void fill(LoadedDriver& driver, void* handle) {
  driver.functions = kMissing;
  std::memset(driver.slots, 0xff, sizeof driver.slots);
  link_map* object = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0) return;
  driver.object = object;
  // Reads the driver's own tables: dlsym would leave a message for the program's next dlerror() for each function that it lacks.
  const ElfImage image(*object);
  for (size_t slot = 0; slot < kDriverSlots; ++slot) {
    void* function = image.find_function(kSlotNames[slot]);
    if (function == nullptr) continue;
    write_slot(driver.functions, slot, function);
    size_t bucket = bucket_of(function);
    while (driver.slots[bucket] != kEmpty) bucket = (bucket + 1) % kBuckets;
    driver.slots[bucket] = static_cast<uint16_t>(slot);
  }
}

// Keeps the handle: the driver is never unloaded.
const LoadedDriver* publish(void* handle) {
  void* memory = mmap(nullptr, sizeof(LoadedDriver), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* driver = static_cast<LoadedDriver*>(memory);
  fill(*driver, handle);
  mprotect(memory, sizeof(LoadedDriver), PROT_READ);
  const RealDriver* expected = nullptr;
  if (!detail::loaded_driver.compare_exchange_strong(expected, &driver->functions, std::memory_order_acq_rel)) {
    munmap(memory, sizeof(LoadedDriver));
  }
  return loaded();
}

bool less(const char* left, const char* right) {
  while (*left != '\0' && *left == *right) {
    ++left;
    ++right;
  }
  return static_cast<unsigned char>(*left) < static_cast<unsigned char>(*right);
}

}  // namespace

namespace detail {

constinit std::atomic<const RealDriver*> loaded_driver{nullptr};

const RealDriver& load_driver() {
  if (driver_is_present()) return loaded()->functions;
  void* handle = dlopen(kDriverName, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    dlerror();  // the failure is ours, not the program's
    return kMissing;
  }
  const LoadedDriver* driver = publish(handle);
  return driver != nullptr ? driver->functions : kMissing;
}

}  // namespace detail

bool driver_is_present() {
  if (loaded() != nullptr) return true;
  void* handle = dlopen(kDriverName, RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr && publish(handle) != nullptr;
}

CUresult missing_function() { return loaded() != nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NO_DEVICE; }

size_t slot_of_name(const char* name) {
  size_t low = 0, high = kDriverSlots;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (less(kSlotNames[middle], name)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < kDriverSlots && !less(name, kSlotNames[low]) ? low : kNoSlot;
}

size_t slot_of_address(const void* address, size_t preferred) {
  const LoadedDriver* driver = loaded();
  if (driver == nullptr || address == nullptr) return kNoSlot;
  if (preferred != kNoSlot && read_slot(driver->functions, preferred) == address) return preferred;
  for (size_t bucket = bucket_of(address); driver->slots[bucket] != kEmpty; bucket = (bucket + 1) % kBuckets) {
    if (read_slot(driver->functions, driver->slots[bucket]) == address) return driver->slots[bucket];
  }
  return kNoSlot;
}

void* function_of_slot(size_t slot) {
  const LoadedDriver* driver = loaded();
  if (driver == nullptr) return nullptr;
  void* const function = read_slot(driver->functions, slot);
  return function != read_slot(kMissing, slot) ? function : nullptr;
}

void* driver_export(const char* name) {
  const LoadedDriver* driver = loaded();
  return driver != nullptr && driver->object != nullptr ? ElfImage(*driver->object).find_function(name) : nullptr;
}

const char* driver_export_at(const void* address) {
  const LoadedDriver* driver = loaded();
  return driver != nullptr && driver->object != nullptr ? ElfImage(*driver->object).name_of_function(address) : nullptr;
}

void* hook_of_slot(size_t slot) { return read_slot(kHooks, slot); }

}  // namespace nvshare::interposer
