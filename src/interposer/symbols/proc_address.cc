#include "interposer/symbols/proc_address.h"

#include <cstring>

#include "interposer/generated/hooks.h"
#include "interposer/symbols/unknown_calls.h"

namespace nvshare::interposer {
namespace {

constexpr size_t kSuffixLength = 5;  // of _ptsz and _ptds

bool is_per_thread(const char* name) {
  const size_t length = std::strlen(name);
  if (length <= kSuffixLength) return false;
  const char* suffix = name + length - kSuffixLength;
  return std::strcmp(suffix, "_ptsz") == 0 || std::strcmp(suffix, "_ptds") == 0;
}

// cuMemcpyHtoD_v2_ptds is a version of cuMemcpyHtoD; cuMemcpyHtoDAsync is not.
bool is_version_of(const char* name, const char* symbol) {
  const size_t length = std::strlen(symbol);
  if (std::strncmp(name, symbol, length) != 0) return false;
  const char* rest = name + length;
  if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9') rest += 3;
  return *rest == '\0' || std::strcmp(rest, "_ptsz") == 0 || std::strcmp(rest, "_ptds") == 0;
}

}  // namespace

size_t slot_of_request(const char* symbol, int cuda_version, cuuint64_t flags) {
  size_t best = kNoSlot;
  bool best_per_thread = false;
  for (size_t slot = 0; slot < kDriverSlots; ++slot) {
    const int since = kSlotSince[slot];
    if (since == 0 || since > cuda_version || !is_version_of(kSlotNames[slot], symbol)) continue;
    const bool per_thread = is_per_thread(kSlotNames[slot]);
    if (per_thread && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == 0) continue;
    const bool better = best == kNoSlot || per_thread > best_per_thread || (per_thread == best_per_thread && since > kSlotSince[best]);
    if (!better) continue;
    best = slot;
    best_per_thread = per_thread;
  }
  return best;
}

void* replace_proc_address(void* address, const char* symbol, int cuda_version, cuuint64_t flags) {
  if (address == nullptr || symbol == nullptr) return address;
  const size_t requested = slot_of_request(symbol, cuda_version, flags);
  size_t slot = slot_of_address(address, requested);
  if (slot == kNoSlot) {
    // A function that has no hook, known to us or of a driver newer than our list: never the hook of another version of it.
    if (const char* exported = driver_export_at(address)) return guard_unknown(address, exported);
    // An address that is no export: our hook can stand in only if it has a function of the driver to call, and no version that came after
    // our list may be meant.
    if (cuda_version > kNewestListed) return is_risky_name(symbol) ? guard_unnamed(address) : address;
    if (requested != kNoSlot && function_of_slot(requested) != nullptr) slot = requested;
  }
  void* const hook = slot != kNoSlot ? hook_of_slot(slot) : nullptr;
  return hook != nullptr ? hook : address;
}

extern "C" {

NVSHARE_EXPORT CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  const CUresult result = call_real<&RealDriver::cuGetProcAddress>(symbol, pfn, cudaVersion, flags);
  if (result == CUDA_SUCCESS && pfn != nullptr) *pfn = replace_proc_address(*pfn, symbol, cudaVersion, flags);
  return result;
}

NVSHARE_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                            CUdriverProcAddressQueryResult* symbolStatus) {
  const CUresult result = call_real<&RealDriver::cuGetProcAddress_v2>(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result == CUDA_SUCCESS && pfn != nullptr) *pfn = replace_proc_address(*pfn, symbol, cudaVersion, flags);
  return result;
}

}  // extern "C"

}  // namespace nvshare::interposer
