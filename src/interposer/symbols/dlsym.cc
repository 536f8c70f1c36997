// Like elf_image.cc, must not call libc on the way of a name that is not ours: lookups come from everywhere, and early.
#include "interposer/symbols/dlsym.h"

#include <dlfcn.h>

#include <atomic>

#include "interposer/symbols/elf_image.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/symbols/real_nvml.h"

namespace nvshare::interposer {
namespace {

std::atomic<void*> found_dlsym{nullptr};
std::atomic<void*> found_dlvsym{nullptr};

// In libc.so.6, or in libdl.so.2 before glibc 2.34. Both are there from the start, so the walk meets no object that may go away. Only a
// versioned definition is glibc's; ours and those of other interposers have no version.
void* find_in_glibc(const char* name, std::atomic<void*>& cache) {
  void* known = cache.load(std::memory_order_relaxed);
  if (known != nullptr) return known;
  for (const link_map* object = first_loaded_object(); object != nullptr; object = object->l_next) {
    void* function = ElfImage(*object).find_function(name, true);
    if (function == nullptr) continue;
    cache.store(function, std::memory_order_relaxed);
    return function;
  }
  return nullptr;
}

// What the thunk does next: jump to `target` with the caller's registers, or, if that is null, return `value`.
struct Route {
  void* target;
  void* value;
};

void* lookup(void* handle, const char* name, const char* version) {
  if (version == nullptr) return real_dlsym()(handle, name);
  const auto real = reinterpret_cast<DlvsymFunction>(find_in_glibc("dlvsym", found_dlvsym));
  return real(handle, name, version);
}

// The two libraries whose functions have hooks.
struct DriverNames {
  static bool present() { return driver_is_present(); }
  static bool has(size_t slot) { return driver_is_present() && function_of_slot(slot) != nullptr; }
  static void* hook(size_t slot) { return hook_of_slot(slot); }
  static size_t slot_of(const void* address, size_t preferred) { return slot_of_address(address, preferred); }
};
struct NvmlNames {
  static bool present() { return nvml_is_present(); }
  static bool has(size_t slot) { return nvml_is_present() && nvml_function(slot) != nullptr; }
  static void* hook(size_t slot) { return nvml_hook(slot); }
  static size_t slot_of(const void* address, size_t preferred) { return nvml_function(preferred) == address ? preferred : kNoSlot; }
};

// The answer for a hooked name. Our exports come first in the global scope, so a search there finds them even where there is no driver;
// what counts is what the search would have found without us.
template <typename Library>
void* hooked_lookup(void* handle, const char* name, const char* version, size_t slot) {
  void* const hook = Library::hook(slot);
  if (handle == RTLD_NEXT) return Library::has(slot) ? hook : lookup(RTLD_NEXT, name, version);
  void* const found = lookup(handle, name, version);
  if (found == nullptr) return nullptr;
  if (found == hook) return Library::has(slot) ? hook : lookup(RTLD_NEXT, name, version);
  if (!Library::present()) return found;
  const size_t real_slot = Library::slot_of(found, slot);
  void* const real_hook = real_slot != kNoSlot ? Library::hook(real_slot) : nullptr;
  return real_hook != nullptr ? real_hook : found;
}

Route route(void* handle, const char* name, const char* version, void* real) {
  if (real == nullptr || name == nullptr) return {real, nullptr};
  if (name[0] == 'c' && name[1] == 'u') {
    const size_t slot = slot_of_name(name);
    if (slot != kNoSlot && hook_of_slot(slot) != nullptr) return {nullptr, hooked_lookup<DriverNames>(handle, name, version, slot)};
  } else if (name[0] == 'n' && name[1] == 'v') {
    const size_t slot = nvml_slot_of_name(name);
    if (slot != kNoSlot && nvml_hook(slot) != nullptr) return {nullptr, hooked_lookup<NvmlNames>(handle, name, version, slot)};
  }
  return {real, nullptr};
}

}  // namespace

DlsymFunction real_dlsym() { return reinterpret_cast<DlsymFunction>(find_in_glibc("dlsym", found_dlsym)); }

// Called by dlsym.S only.
extern "C" [[gnu::used, gnu::visibility("hidden")]] Route nvshare_route_dlsym(void* handle, const char* name) {
  return route(handle, name, nullptr, find_in_glibc("dlsym", found_dlsym));
}

extern "C" [[gnu::used, gnu::visibility("hidden")]] Route nvshare_route_dlvsym(void* handle, const char* name, const char* version) {
  return route(handle, name, version, find_in_glibc("dlvsym", found_dlvsym));
}

}  // namespace nvshare::interposer
