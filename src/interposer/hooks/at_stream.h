// Stream-ordered calls happen in the context of their stream, whatever context the calling thread has current: that context is current
// while this lives.
#pragma once

#include "interposer/process/green_contexts.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

class AtStream {
 public:
  // `stream`: with the per-thread default stream resolved.
  AtStream(Process& process, cuda::CUstream stream) : process_(process) {
    const RealDriver& driver = real_driver();
    if (!process.active()) return;
    driver.cuCtxGetCurrent(&context_);
    if (stream == nullptr || stream == cuda::CU_STREAM_LEGACY || stream == cuda::CU_STREAM_PER_THREAD) return;  // of the current context
    cuda::CUcontext of_stream = nullptr;
    if (driver.cuStreamGetCtx(stream, &of_stream) != cuda::CUDA_SUCCESS || of_stream == context_) return;  // else the driver will say so
    if (driver.cuCtxPushCurrent_v2(of_stream) != cuda::CUDA_SUCCESS) return;
    context_ = of_stream;
    pushed_ = true;
  }
  ~AtStream() {
    cuda::CUcontext popped = nullptr;
    if (pushed_) real_driver().cuCtxPopCurrent_v2(&popped);
  }
  AtStream(const AtStream&) = delete;
  AtStream& operator=(const AtStream&) = delete;

  // Of a green context, the primary one.
  cuda::CUcontext context() const { return process_.green_contexts.primary_of(context_); }

 private:
  Process& process_;
  cuda::CUcontext context_ = nullptr;
  bool pushed_ = false;
};

}  // namespace nvshare::interposer
