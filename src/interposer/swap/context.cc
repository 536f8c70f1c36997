#include "interposer/swap/context.h"

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

bool SwapContext::enter(CUresult* why) {
  const RealDriver& driver = real_driver();
  *why = cuda::CUDA_SUCCESS;
  CUcontext context = device_.process().contexts.pin(device_.ordinal());
  if (context == nullptr) return false;
  *why = driver.cuCtxPushCurrent_v2(context);
  if (*why != cuda::CUDA_SUCCESS) {
    device_.process().contexts.unpin(context);
    return false;
  }
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver.cuThreadExchangeStreamCaptureMode != nullptr) driver.cuThreadExchangeStreamCaptureMode(&mode);
  pinned_ = context;
  {
    Lock lock(mutex_);
    if (context_ == context) return true;
    context_ = context;
    *why = make_streams();
    if (*why == cuda::CUDA_SUCCESS) return true;
    drop_streams();
  }
  log(LogLevel::kError, "no stream for swapping could be made (CUDA error %d)", static_cast<int>(*why));
  leave();
  return false;
}

void SwapContext::leave() {
  CUcontext popped = nullptr;
  real_driver().cuCtxPopCurrent_v2(&popped);
  device_.process().contexts.unpin(pinned_);
  pinned_ = nullptr;
}

void SwapContext::gone(CUcontext context) {
  Lock lock(mutex_);
  if (context_ != context) return;
  const bool entered = real_driver().cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS;
  unchanged.drop();
  drop_streams();
  CUcontext popped = nullptr;
  if (entered) real_driver().cuCtxPopCurrent_v2(&popped);
}

CUresult SwapContext::make_streams() {
  const RealDriver& driver = real_driver();
  CUresult result = driver.cuStreamCreate(&out_, cuda::CU_STREAM_NON_BLOCKING);
  if (result == cuda::CUDA_SUCCESS) result = driver.cuStreamCreate(&in_, cuda::CU_STREAM_NON_BLOCKING);
  for (cuda::CUevent& event : events_) {
    if (result != cuda::CUDA_SUCCESS) break;
    result = driver.cuEventCreate(&event, cuda::CU_EVENT_BLOCKING_SYNC | cuda::CU_EVENT_DISABLE_TIMING);
  }
  return result;
}

void SwapContext::drop_streams() {
  const RealDriver& driver = real_driver();
  for (cuda::CUevent& event : events_) {
    if (event != nullptr) driver.cuEventDestroy_v2(event);
    event = nullptr;
  }
  if (out_ != nullptr) driver.cuStreamDestroy_v2(out_);
  if (in_ != nullptr) driver.cuStreamDestroy_v2(in_);
  out_ = in_ = nullptr;
  context_ = nullptr;
}

}  // namespace nvshare::interposer
