// cuGetProcAddress: name, CUDA version and flags -> exactly the address of an exported symbol, as measured on the real driver.
#include <cstring>

#include "simgpu/core.h"
#include "simgpu/entry_table.h"

namespace simgpu {
namespace {

// The newest symbol of that name that the version knows.
const EntryPoint* newest(const char* name, int version, bool per_thread, bool* known) {
  const EntryPoint* best = nullptr;
  for (const auto& entries : {entry_points(), more_entry_points()}) {
    for (const EntryPoint& entry : entries) {
      if (entry.version == 0 || entry.per_thread != per_thread || std::strcmp(entry.base, name) != 0) continue;
      *known = true;
      if (entry.version <= version && (best == nullptr || entry.version > best->version)) best = &entry;
    }
  }
  return best;
}

CUresult look_up(const char* name, void** address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || address == nullptr || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  bool known = false;
  const EntryPoint* found = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? newest(name, version, true, &known) : nullptr;
  if (found == nullptr) found = newest(name, version, false, &known);
  *address = found != nullptr ? reinterpret_cast<void*>(found->address) : nullptr;
  *status = found != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
            : known          ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

SIM_API CUresult cuGetProcAddress_v2(const char* name, void** address, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  CUdriverProcAddressQueryResult ignored{};
  // With a place for the status a name that is not there is no error.
  const CUresult result = look_up(name, address, version, flags, status != nullptr ? status : &ignored);
  return result == CUDA_ERROR_NOT_FOUND && status != nullptr ? CUDA_SUCCESS : result;
}

SIM_API CUresult cuGetProcAddress(const char* name, void** address, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult ignored{};
  return look_up(name, address, version, flags, &ignored);
}

}  // namespace simgpu
