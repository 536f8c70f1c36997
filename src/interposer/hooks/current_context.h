// A context is current to the calling thread while one of these lives.
#pragma once

#include "interposer/process/green_contexts.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

// That of a stream: stream-ordered calls happen in it, whatever context the calling thread has current.
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

  // The green one; null: of none.
  cuda::CUcontext green() const { return context() != context_ ? context_ : nullptr; }

 private:
  Process& process_;
  cuda::CUcontext context_ = nullptr;
  bool pushed_ = false;
};

// One of that GPU; false: the thread has one already, or there is none.
class BorrowedContext {
 public:
  BorrowedContext(Process& process, int ordinal) : process_(process) {
    cuda::CUcontext current = nullptr;
    const RealDriver& driver = real_driver();
    if (driver.cuCtxGetCurrent(&current) != cuda::CUDA_SUCCESS || current != nullptr) return;
    context_ = process.contexts.pin(ordinal);
    if (context_ == nullptr || driver.cuCtxPushCurrent_v2(context_) == cuda::CUDA_SUCCESS) return;
    process.contexts.unpin(context_);
    context_ = nullptr;
  }
  ~BorrowedContext() {
    if (context_ == nullptr) return;
    cuda::CUcontext popped = nullptr;
    real_driver().cuCtxPopCurrent_v2(&popped);
    process_.contexts.unpin(context_);
  }
  BorrowedContext(const BorrowedContext&) = delete;
  BorrowedContext& operator=(const BorrowedContext&) = delete;
  explicit operator bool() const { return context_ != nullptr; }

 private:
  Process& process_;
  cuda::CUcontext context_ = nullptr;
};

// GPUs (bits) on which the program has a context.
inline uint32_t gpus_in_use(Process& process) { return process.active() ? process.contexts.gpus() : 0; }

}  // namespace nvshare::interposer
