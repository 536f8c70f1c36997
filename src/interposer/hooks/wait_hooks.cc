// Waits for the GPU. They do what the driver does; the return of one tells that the program's work may have ended, which the swap engine
// sees later, or looks for only when another program waits for the GPU (turn/idleness.h). In programs of very many threads it would cost
// them too much, so there it is told only while a compute limit applies.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/entry.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

namespace {

template <auto Function, typename... Arguments>
CUresult wait(Entry entry, Arguments... arguments) {
  const CUresult result = call_real<Function>(arguments...);
  const int64_t at = now_ns();
  if (const auto entries = entry.gate().entries((entry.gate().flags() & Gate::kLimited) != 0)) entry.gate().waits.returned(at, *entries);
  return result;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuCtxSynchronize() { return wait<&RealDriver::cuCtxSynchronize>(Entry()); }
NVSHARE_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) { return wait<&RealDriver::cuCtxSynchronize_v2>(Entry(), context); }
NVSHARE_EXPORT CUresult cuEventSynchronize(CUevent event) { return wait<&RealDriver::cuEventSynchronize>(Entry(), event); }
NVSHARE_EXPORT CUresult cuStreamSynchronize(CUstream stream) { return wait<&RealDriver::cuStreamSynchronize>(Entry(), stream); }
NVSHARE_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { return wait<&RealDriver::cuStreamSynchronize_ptsz>(Entry(), stream); }

}  // extern "C"

}  // namespace nvshare::interposer
