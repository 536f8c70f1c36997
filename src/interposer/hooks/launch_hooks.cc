// Launches whose stream is inside a struct.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/submit.h"

namespace nvshare::interposer {

namespace {

template <auto Function, bool PerThread>
CUresult launch(Entry entry, const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  CUstream stream = config != nullptr ? config->hStream : nullptr;
  return pass_gate(entry, Target{default_stream(stream, PerThread), true},
                   [&] { return call_real<Function>(config, function, parameters, extra); });
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  return launch<&RealDriver::cuLaunchKernelEx, false>(Entry(), config, function, parameters, extra);
}
NVSHARE_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  return launch<&RealDriver::cuLaunchKernelEx_ptsz, true>(Entry(), config, function, parameters, extra);
}

}  // extern "C"
}  // namespace nvshare::interposer
