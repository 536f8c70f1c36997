// Like elf_image.cc, must not call libc on the way of a name that is not ours: lookups come from everywhere, and early.
#include "interposer/symbols/dlsym.h"

#include <dlfcn.h>
#include <elf.h>

#include <atomic>
#include <cstring>

#include "interposer/symbols/elf_image.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/symbols/real_nvml.h"
#include "interposer/symbols/references.h"
#include "interposer/symbols/unknown_calls.h"

// Ours, in dlsym.S. Not by <dlfcn.h>'s names, which may be bound to glibc's.
extern "C" {
[[gnu::visibility("hidden")]] extern char nvshare_own_dlsym[];
[[gnu::visibility("hidden")]] extern char nvshare_own_dlvsym[];
[[gnu::visibility("hidden")]] extern char nvshare_own_dlopen[];
[[gnu::visibility("hidden")]] extern char nvshare_own_dlmopen[];
}

namespace nvshare::interposer {
namespace {

struct Lookup {
  const char* name;
  char* own;
};
constexpr Lookup kLookups[] = {
    {"dlsym", nvshare_own_dlsym}, {"dlvsym", nvshare_own_dlvsym}, {"dlopen", nvshare_own_dlopen}, {"dlmopen", nvshare_own_dlmopen}};
constexpr size_t kLookupCount = sizeof kLookups / sizeof kLookups[0];
constinit std::atomic<void*> found_lookups[kLookupCount] = {};
constexpr char kDriverName[] = "libcuda.so.1";
constinit std::atomic<bool> copies{false};

bool same(const char* left, const char* right) {
  while (*left != '\0' && *left == *right) {
    ++left;
    ++right;
  }
  return *left == *right;
}

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

void* lookup(void* handle, const char* name, const char* version) {
  if (version == nullptr) return real_dlsym()(handle, name);
  const auto real = reinterpret_cast<DlvsymFunction>(real_lookup(LookupFunction::kDlvsym));
  return real(handle, name, version);
}

// The two libraries whose functions have hooks.
struct DriverNames {
  static bool present() { return driver_is_present(); }
  static bool has(size_t slot) { return driver_is_present() && function_of_slot(slot) != nullptr; }
  static void* hook(size_t slot) { return hook_of_slot(slot); }
  static size_t slot_of(const void* address, size_t preferred) { return slot_of_address(address, preferred); }
  static bool owns(const void* address, const char* name) { return driver_owns(address, name); }
};
struct NvmlNames {
  static bool present() { return nvml_is_present(); }
  static bool has(size_t slot) { return nvml_is_present() && nvml_function(slot) != nullptr; }
  static void* hook(size_t slot) { return nvml_hook(slot); }
  static size_t slot_of(const void* address, size_t preferred) { return nvml_function(preferred) == address ? preferred : kNoSlot; }
  static bool owns(const void*, const char*) { return false; }
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
  if (!Library::present()) return Library::owns(found, name) ? hook : found;
  const size_t real_slot = Library::slot_of(found, slot);
  if (real_slot == kNoSlot) return Library::owns(found, name) ? hook : found;
  void* const real_hook = Library::hook(real_slot);
  return real_hook != nullptr ? real_hook : found;
}

// The object that contains `address`. Walks without the dynamic linker's lock: interposers ask when the process starts, and what is loaded
// later stands behind them.
const link_map* object_of(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const link_map* found = nullptr;
  for (const link_map* object = first_loaded_object(); object != nullptr; object = object->l_next) {
    // By the nearest beginning below: objects do not overlap.
    if (object->l_addr <= at && (found == nullptr || object->l_addr > found->l_addr)) found = object;
  }
  return found;
}

// A lookup of a function that looks up: glibc's would see nothing of ours. What other interposers define is theirs to hand out.
Route lookup_of_lookup(size_t which, void* handle, const char* version, const void* caller, void* real) {
  const char* const name = kLookups[which].name;
  void* found = nullptr;
  if (handle == RTLD_NEXT) {
    const link_map* object = object_of(caller);
    for (object = object != nullptr ? object->l_next : nullptr; object != nullptr && found == nullptr; object = object->l_next) {
      found = ElfImage(*object).find_function(name, version != nullptr);
    }
    if (found == nullptr) return {real, nullptr};
  } else {
    found = lookup(handle, name, version);
  }
  if (found == find_in_glibc(name, found_lookups[which])) found = kLookups[which].own;
  return {nullptr, found};
}

// The answer for a name that a driver newer than our list may have: a stub where the search finds the driver's function. Where it would
// find none, or another library's, the caller's own search decides.
Route unknown_lookup(void* handle, const char* name, const char* version, void* real) {
  void* const function = driver_is_present() ? driver_export(name) : nullptr;
  if (function == nullptr) return {real, nullptr};
  void* const found = handle == RTLD_NEXT ? nullptr : lookup(handle, name, version);
  // The driver may be in the caller's own scope only, so what that finds of the driver's has a stub, too.
  if (found == function || (found == nullptr && (handle == RTLD_NEXT || handle == RTLD_DEFAULT))) {
    const size_t slot = slot_of_address(function, kNoSlot);  // another name of a function that we know
    if (slot != kNoSlot) return {nullptr, hook_of_slot(slot) != nullptr ? hook_of_slot(slot) : function};
    const char* const exported = driver_export_at(function);  // the driver's own copy of the name, which stays
    return {nullptr, exported != nullptr ? guard_unknown(function, exported) : function};
  }
  return {real, nullptr};
}

// The same of a name that has no hook, where another copy of the driver may be found.
Route lookup_among_copies(void* handle, const char* name, const char* version, void* real) {
  void* const found = handle == RTLD_NEXT || handle == RTLD_DEFAULT ? nullptr : lookup(handle, name, version);
  if (found != nullptr && driver_owns(found, name)) return {nullptr, one_drivers(name)};
  return is_risky_name(name) && !is_known_name(name) ? unknown_lookup(handle, name, version, real) : Route{real, nullptr};
}

Route route(void* handle, const char* name, const char* version, const void* caller, void* real) {
  if (real == nullptr || name == nullptr) return {real, nullptr};
  look_at_opened_objects();
  if (name[0] == 'd' && name[1] == 'l') {
    for (size_t which = 0; which < kLookupCount; ++which) {
      if (same(name, kLookups[which].name)) return lookup_of_lookup(which, handle, version, caller, real);
    }
  }
  const bool may_open = (name[0] == 'c' && name[1] == 'u' && name[2] == 'v') || (name[0] == 'N' && name[1] == 'v') ||
                        (name[0] == 'o' && name[1] == 'p' && name[2] == 't');
  // Its library is opened to be looked into: what RTLD_NEXT means there is the caller's own affair.
  if (may_open && handle != RTLD_NEXT && session_opened_by(name) != nullptr) {
    return {nullptr, guard_session(lookup(handle, name, version), name)};
  }
  if (name[0] == 'c' && name[1] == 'u') {
    const size_t slot = slot_of_name(name);
    if (slot != kNoSlot && hook_of_slot(slot) != nullptr) return {nullptr, hooked_lookup<DriverNames>(handle, name, version, slot)};
    if (copies.load(std::memory_order_relaxed)) return lookup_among_copies(handle, name, version, real);
    if (slot == kNoSlot && is_risky_name(name) && !is_known_name(name)) return unknown_lookup(handle, name, version, real);
  } else if (name[0] == 'n' && name[1] == 'v') {
    const size_t slot = nvml_slot_of_name(name);
    if (slot != kNoSlot && nvml_hook(slot) != nullptr) return {nullptr, hooked_lookup<NvmlNames>(handle, name, version, slot)};
  }
  return {real, nullptr};
}

}  // namespace

void* real_lookup(LookupFunction function) {
  const auto which = static_cast<size_t>(function);
  return find_in_glibc(kLookups[which].name, found_lookups[which]);
}

DlsymFunction real_dlsym() { return reinterpret_cast<DlsymFunction>(real_lookup(LookupFunction::kDlsym)); }

void* own_lookup(const char* name) {
  for (const Lookup& each : kLookups) {
    if (same(name, each.name)) return each.own;
  }
  return nullptr;
}

void driver_may_have_copies() { copies.store(true, std::memory_order_relaxed); }

void* one_drivers(const char* name) {
  const size_t slot = slot_of_name(name);
  if (slot != kNoSlot && hook_of_slot(slot) != nullptr) return hook_of_slot(slot);
  real_driver();
  void* const function = driver_export(name);
  const char* const exported = function != nullptr ? driver_export_at(function) : nullptr;
  return exported != nullptr ? guard_unknown(function, exported) : function;
}

bool driver_owns(const void* function, const char* name) {
  if (driver_is_present() && driver_export(name) == function) return true;
  // Another file of that name in our own namespace may be a layer of somebody's, which calls the driver through us.
  if (!copies.load(std::memory_order_relaxed)) return false;
  Dl_info info;
  void* extra = nullptr;
  Lmid_t space = LM_ID_BASE;
  if (dladdr1(function, &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == nullptr) return false;
  if (dlinfo(extra, RTLD_DI_LMID, &space) != 0 || space == LM_ID_BASE) return false;  // glibc's handles are its objects
  const ElfImage image(*static_cast<const link_map*>(extra));
  return image.soname() != nullptr && same(image.soname(), kDriverName) && image.find_function(name) == function;
}

// Called by dlsym.S only.
extern "C" [[gnu::used, gnu::visibility("hidden")]] Route nvshare_route_dlsym(void* handle, const char* name, const char*,
                                                                              const void* caller) {
  return route(handle, name, nullptr, caller, real_lookup(LookupFunction::kDlsym));
}

extern "C" [[gnu::used, gnu::visibility("hidden")]] Route nvshare_route_dlvsym(void* handle, const char* name, const char* version,
                                                                               const void* caller) {
  return route(handle, name, version, caller, real_lookup(LookupFunction::kDlvsym));
}

}  // namespace nvshare::interposer
