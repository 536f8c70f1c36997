// The real NVML, as far as libnvshare.so stands in for it: found once, on first use, never unloaded. Thread-safe; nothing here needs a
// constructor. A *slot* is an index into NvmlTable (generated/nvml_table.h). Names and hooks need no NVML and call nothing.
#pragma once

#include <cstddef>
#include <type_traits>

#include "interposer/generated/nvml_table.h"

namespace nvshare::interposer {

// True, and finds its functions, if libnvidia-ml.so.1 is in the process already. Never loads it.
bool nvml_is_present();

// Slot of the function called `name`, or kNoSlot (real_driver.h).
size_t nvml_slot_of_name(const char* name);
// NVML's own function; null when it has none, or was not found yet.
void* nvml_function(size_t slot);
// What libnvshare.so exports in its place; null: not hooked.
void* nvml_hook(size_t slot);

// NVML's own function by its place in the table, loading NVML if the program has not (it reached a hook by plain linking); null: there is
// none.
void* find_nvml_function(size_t slot);

// Calls it; answers as NVML's own loaders do when it is missing.
template <auto Function, typename... Arguments>
Return call_nvml(Arguments... arguments) {
  static constexpr NvmlTable kAny{};
  const auto* const place = &(kAny.*Function);
  const auto slot = static_cast<size_t>(reinterpret_cast<const char*>(place) - reinterpret_cast<const char*>(&kAny)) / sizeof(void*);
  const auto function = reinterpret_cast<std::remove_cvref_t<decltype(kAny.*Function)>>(find_nvml_function(slot));
  if (function == nullptr) return nvml_is_present() ? cuda::nvml::kFunctionNotFound : cuda::nvml::kLibraryNotFound;
  return function(arguments...);
}

}  // namespace nvshare::interposer
