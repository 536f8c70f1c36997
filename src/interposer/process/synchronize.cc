#include "interposer/process/synchronize.h"

#include <vector>

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

bool synchronize(Contexts& contexts, Captures& captures, int ordinal) {
  const NotCancelled whole_wait;  // a driver's wait may be a thread's end, and captures would be held off for good
  const CapturesHeldOff held_off(captures);
  if (!held_off) return false;
  std::vector<CUcontext> pinned;
  bool whole = contexts.pin_all(ordinal, &pinned);
  const RealDriver& driver = real_driver();
  for (CUcontext context : pinned) {
    // A context that has faulted runs nothing any more: its work has ended, if badly.
    if (whole && driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
      const CUresult result = driver.cuCtxSynchronize();
      whole = result < cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result > cuda::CUDA_ERROR_CAPTURED_EVENT;  // one that no hook saw
      CUcontext popped = nullptr;
      driver.cuCtxPopCurrent_v2(&popped);
    }
    contexts.unpin(context);
  }
  return whole;
}

bool synchronize_before_free(Captures& captures, CUcontext context, CUresult* result) {
  const NotCancelled whole_wait;
  const CapturesHeldOff held_off(captures);
  if (!held_off) return false;
  const RealDriver& driver = real_driver();
  CUcontext current = nullptr;
  driver.cuCtxGetCurrent(&current);
  const bool elsewhere = context != nullptr && current != context;
  *result = elsewhere ? driver.cuCtxPushCurrent_v2(context) : cuda::CUDA_SUCCESS;
  if (*result == cuda::CUDA_SUCCESS) {
    *result = driver.cuCtxSynchronize();
    CUcontext popped = nullptr;
    if (elsewhere) driver.cuCtxPopCurrent_v2(&popped);
  }
  return true;
}

}  // namespace nvshare::interposer
