// Called by dlsym.cc: no libc on the way of a name that is not ours.
#include "interposer/symbols/real_nvml.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "interposer/symbols/elf_image.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {
namespace {

constexpr char kNvmlName[] = "libnvidia-ml.so.1";

// Two threads that find the functions at once write the same addresses.
std::atomic<void*> functions[kNvmlSlots];
std::atomic<bool> found{false};

bool same(const char* left, const char* right) {
  while (*left != '\0' && *left == *right) {
    ++left;
    ++right;
  }
  return *left == *right;
}

// Keeps the handle: hooks were handed out that call it.
bool fill(void* handle) {
  link_map* object = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0) return false;
  const ElfImage image(*object);
  for (size_t slot = 0; slot < kNvmlSlots; ++slot) functions[slot].store(image.find_function(kNvmlNames[slot]), std::memory_order_relaxed);
  found.store(true, std::memory_order_release);
  return true;
}

}  // namespace

bool nvml_is_present() {
  if (found.load(std::memory_order_acquire)) return true;
  void* handle = dlopen(kNvmlName, RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr && fill(handle);
}

size_t nvml_slot_of_name(const char* name) {
  for (size_t slot = 0; slot < kNvmlSlots; ++slot) {
    if (same(kNvmlNames[slot], name)) return slot;
  }
  return kNoSlot;
}

void* nvml_function(size_t slot) { return slot < kNvmlSlots ? functions[slot].load(std::memory_order_relaxed) : nullptr; }

void* nvml_hook(size_t slot) {
  void* hook;
  std::memcpy(&hook, reinterpret_cast<const char*>(&kNvmlHooks) + slot * sizeof hook, sizeof hook);
  return hook;
}

void* find_nvml_function(size_t slot) {
  if (!nvml_is_present()) {
    void* handle = dlopen(kNvmlName, RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) dlerror();  // the failure is ours, not the program's
    if (handle == nullptr || !fill(handle)) return nullptr;
  }
  return nvml_function(slot);
}

}  // namespace nvshare::interposer
