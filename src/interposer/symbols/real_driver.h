// The real CUDA driver: found once, on first use, never unloaded. Thread-safe; nothing here needs a constructor.
//
// real_driver() is what hooks call. Everything else serves lookups (dlsym.cc, proc_address.cc): a *slot* is an index into RealDriver.
#pragma once

#include <atomic>
#include <cstddef>

#include "interposer/generated/real_driver_table.h"

namespace nvshare::interposer {

using namespace cuda;

namespace detail {
extern std::atomic<const RealDriver*> loaded_driver;
const RealDriver& load_driver();
}  // namespace detail

// The driver's functions; loads libcuda.so.1 if the program has not (it called a hook through plain linking, so it means to use CUDA).
// Any function may be called: one that the driver lacks, or all when it cannot be loaded, answers missing_function().
inline const RealDriver& real_driver() {
  const RealDriver* driver = detail::loaded_driver.load(std::memory_order_acquire);
  return driver != nullptr ? *driver : detail::load_driver();
}

// What stands in for a function that the driver lacks answers this: CUDA_ERROR_NO_DEVICE when there is no driver at all (what programs
// expect of a machine without one), else CUDA_ERROR_NOT_FOUND, as cuGetProcAddress answers for such a name.
CUresult missing_function();

// For wrappers that only pass on.
template <auto Function, typename... Arguments>
CUresult call_real(Arguments... arguments) {
  return (real_driver().*Function)(arguments...);
}

// True, and loads the table, if libcuda.so.1 is in the process already. Never loads the driver.
bool driver_is_present();

inline constexpr size_t kNoSlot = static_cast<size_t>(-1);

// Slot of the function called `name`, or kNoSlot. Needs no driver, calls nothing.
size_t slot_of_name(const char* name);
// Slot of the function that the driver has at `address`, or kNoSlot. When several slots share the address (a driver may export aliases),
// `preferred` decides, if it is one of them (kNoSlot: no preference). Only after the driver was loaded.
size_t slot_of_address(const void* address, size_t preferred);
// The driver's function; null when it has none, or was not loaded yet.
void* function_of_slot(size_t slot);
// Of all that the driver exports, known to us or not: the function called `name`, and the name of the function at `address`; null: none,
// or the driver was not loaded yet.
void* driver_export(const char* name);
const char* driver_export_at(const void* address);
// What libnvshare.so exports in place of that function; null: not hooked. Needs no driver, calls nothing.
void* hook_of_slot(size_t slot);

}  // namespace nvshare::interposer
