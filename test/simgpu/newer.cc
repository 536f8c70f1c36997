// The stand-in's second variant: a driver newer than nvshare's list (newer_calls.h).
#include "simgpu/core.h"
#include "simgpu/driver_calls.h"
#include "simgpu/entry_table.h"
#include "simgpu/newer_calls.h"

namespace simgpu {
namespace {

constexpr int kNewVersion = 13090;

using Words = UnknownArguments;

template <typename Function>
auto address(Function function) {
  return reinterpret_cast<int (*)()>(reinterpret_cast<void*>(function));
}

}  // namespace

#define SIM_UNKNOWN(symbol)                                                                                                              \
  SIM_API CUresult symbol(CUdeviceptr to, CUdeviceptr source, size_t bytes, CUstream stream, unsigned long long a, unsigned long long b, \
                          unsigned long long c, unsigned long long d, double e, double f, double g, double h, double i, double j,        \
                          double k, double l, double m) {                                                                                \
    const bool whole = a == Words::kWords[0] && b == Words::kWords[1] && c == Words::kWords[2] && d == Words::kWords[3] &&               \
                       e == Words::kNumbers[0] && f == Words::kNumbers[1] && g == Words::kNumbers[2] && h == Words::kNumbers[3] &&       \
                       i == Words::kNumbers[4] && j == Words::kNumbers[5] && k == Words::kNumbers[6] && l == Words::kNumbers[7] &&       \
                       m == Words::kNumbers[8];                                                                                          \
    return whole ? cuMemcpyDtoDAsync_v2(to, source, bytes, stream) : CUDA_ERROR_INVALID_VALUE;                                           \
  }
SIM_UNKNOWN_RISKY(SIM_UNKNOWN)
SIM_UNKNOWN_HARMLESS(SIM_UNKNOWN)
#undef SIM_UNKNOWN

// Of the newer functions that nvshare knows.
SIM_API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr source, size_t bytes, CUmemcpyAttributes*, CUstream stream) {
  return cuMemcpyDtoDAsync_v2(to, source, bytes, stream);
}
// Says which version was reached: they differ in what their arguments mean.
SIM_API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle, CUdevice, size_t, CUmemGenericAllocationHandle, size_t, size_t bytes,
                                       unsigned long long flags) {
  return bytes == (size_t{2} << 20) && flags == 7 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_API CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void* data, unsigned mode) {
  return mode == 1 ? cuLaunchHostFunc(stream, function, data) : CUDA_ERROR_INVALID_VALUE;
}

std::span<const EntryPoint> more_entry_points() {
#define SIM_ROW(symbol) {#symbol, #symbol, kNewVersion, false, address(&symbol)},
  static const EntryPoint kRows[] = {
      SIM_UNKNOWN_RISKY(SIM_ROW) SIM_UNKNOWN_HARMLESS(SIM_ROW)  // each by its own name
      {"cuMemcpyAsync_v9", "cuMemcpyAsync", kNewVersion, false, address(&cuMemcpyAsync_v9)},
      {"cuMemcpyAsync_v9_ptsz", "cuMemcpyAsync", kNewVersion, true, address(&cuMemcpyAsync_v9_ptsz)},
      {"cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync", 13020, false, address(&cuMemcpyWithAttributesAsync)},
      {"cuMulticastBindMem_v2", "cuMulticastBindMem", 13010, false, address(&cuMulticastBindMem_v2)},
      {"cuLaunchHostFunc_v2", "cuLaunchHostFunc", 13020, false, address(&cuLaunchHostFunc_v2)},
  };
#undef SIM_ROW
  return kRows;
}

}  // namespace simgpu
