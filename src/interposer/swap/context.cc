#include "interposer/swap/context.h"

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

bool is_lost(CUresult result) {
  switch (static_cast<int>(result)) {
    case cuda::CUDA_ERROR_DEINITIALIZED:
    case cuda::CUDA_ERROR_DEVICE_UNAVAILABLE:
    case cuda::CUDA_ERROR_ECC_UNCORRECTABLE:
    case cuda::CUDA_ERROR_ILLEGAL_ADDRESS:
    case cuda::CUDA_ERROR_LAUNCH_TIMEOUT:
    case cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case 710:  // assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case cuda::CUDA_ERROR_LAUNCH_FAILED:
    case 805:  // no connection to the MPS server
    case 806:  // nothing comes back from it: it has ended
    case 810:  // it has ended this client
    case cuda::CUDA_ERROR_UNKNOWN:
      return true;
    default:  // an open set of the driver's
      return false;
  }
}

bool SwapContext::enter(CUresult* why) {
  Contexts& contexts = device_.process().contexts;
  for (;;) {
    CUcontext context = contexts.pin(device_.ordinal());
    *why = cuda::CUDA_SUCCESS;
    if (context == nullptr) return false;
    *why = enter_pinned(context);
    if (*why == cuda::CUDA_SUCCESS) return true;
    contexts.unpin(context);
    if (!is_lost(*why) || !contexts.failed(context)) return false;
  }
}

CUresult SwapContext::enter_pinned(CUcontext context) {
  const RealDriver& driver = real_driver();
  CUresult result = driver.cuCtxPushCurrent_v2(context);
  if (result != cuda::CUDA_SUCCESS) return result;
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver.cuThreadExchangeStreamCaptureMode != nullptr) driver.cuThreadExchangeStreamCaptureMode(&mode);
  CUcontext popped = nullptr;
  pinned_ = context;
  Lock lock(mutex_);
  if (context_ == context) {
    result = driver.cuStreamQuery(out_);  // on which nothing is: the context's own state
    if (!is_lost(result)) return cuda::CUDA_SUCCESS;
  } else {
    abandon();
    context_ = context;
    result = make_streams();
    if (result == cuda::CUDA_SUCCESS) return result;
    drop_streams();
    log(LogLevel::kError, "no stream for swapping could be made (CUDA error %d)", static_cast<int>(result));
  }
  driver.cuCtxPopCurrent_v2(&popped);
  pinned_ = nullptr;
  return result;
}

bool SwapContext::has_another() { return device_.process().contexts.failed(pinned_); }

void SwapContext::leave() {
  CUcontext popped = nullptr;
  real_driver().cuCtxPopCurrent_v2(&popped);
  device_.process().contexts.unpin(pinned_);
  pinned_ = nullptr;
}

void SwapContext::gone(CUcontext context) {
  Lock lock(mutex_);
  if (context_ == context) abandon();
}

void SwapContext::abandon() {
  if (context_ == nullptr) return;
  const bool entered = real_driver().cuCtxPushCurrent_v2(context_) == cuda::CUDA_SUCCESS;
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
