#include "interposer/process/captures.h"

#include "interposer/gate/gate.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUstream;

uint64_t Captures::thread_of(CUstream stream) {
  Mark* mark = stream == cuda::CU_STREAM_PER_THREAD ? Gate::mark() : nullptr;
  return mark != nullptr ? mark->thread.load(std::memory_order_relaxed) : 0;
}

void Captures::begins(CUstream stream) {
  const RealDriver& driver = real_driver();
  CUcontext context = nullptr;
  if (driver.cuStreamGetCtx(stream, &context) != cuda::CUDA_SUCCESS) driver.cuCtxGetCurrent(&context);
  Lock lock(mutex_);
  while (synchronizing_ > 0) changed_.wait(mutex_);
  known_.push_back({++last_, stream, thread_of(stream), context});
  count_.fetch_add(1, std::memory_order_acq_rel);
  gate_.set(Gate::kCapturing);
}

template <typename Which>
void Captures::forget(size_t most, Which which) {
  Lock lock(mutex_);
  int forgotten = 0;
  for (size_t i = known_.size(); i-- > 0 && most > 0;) {
    if (!which(known_[i])) continue;
    known_.erase(known_.begin() + static_cast<ptrdiff_t>(i));
    ++forgotten;
    --most;
  }
  if (forgotten == 0) return;
  if (count_.fetch_sub(forgotten, std::memory_order_acq_rel) == forgotten) gate_.clear(Gate::kCapturing);
  changed_.notify_all();
}

void Captures::ended(CUstream stream) {
  const uint64_t thread = thread_of(stream);
  forget(1, [&](const Capture& each) { return each.stream == stream && each.thread == thread; });
}

uint64_t Captures::leaves(CUstream stream) {
  if (!capturing()) return 0;
  Lock lock(mutex_);
  for (Capture& each : known_) {
    if (each.stream != stream) continue;
    each.stream = nullptr;  // which no capture begins on
    return each.number;
  }
  return 0;
}

void Captures::left(uint64_t number) {
  forget(1, [&](const Capture& each) { return each.number == number; });
}

void Captures::stays(uint64_t number, CUstream stream) {
  Lock lock(mutex_);
  for (Capture& each : known_) {
    if (each.number == number) each.stream = stream;
  }
}

void Captures::left_with(CUcontext context) {
  forget(SIZE_MAX, [&](const Capture& each) { return each.context == context; });
}

// Its own default stream goes with it, and nobody else could name that to end the capture.
void Captures::left_with_thread(uint64_t thread) {
  if (capturing()) forget(SIZE_MAX, [&](const Capture& each) { return each.thread == thread; });
}

bool Captures::begin_synchronize() {
  Lock lock(mutex_);
  if (capturing()) return false;
  ++synchronizing_;
  return true;
}

void Captures::end_synchronize() {
  Lock lock(mutex_);
  if (--synchronizing_ == 0) changed_.notify_all();
}

bool Captures::wait_for_none(int64_t deadline_ns) {
  Lock lock(mutex_);
  while (capturing()) {
    if (!changed_.wait_until(mutex_, deadline_ns)) return !capturing();
  }
  return true;
}

void Captures::reset_after_fork() {
  mutex_.reset_after_fork();
  count_.store(0, std::memory_order_relaxed);
  known_.clear();
  synchronizing_ = 0;
}

RelaxedCaptureMode::RelaxedCaptureMode(const Captures& captures) {
  const auto exchange = real_driver().cuThreadExchangeStreamCaptureMode;
  changed_ = captures.capturing() && exchange != nullptr && exchange(&mode_) == cuda::CUDA_SUCCESS;
}
RelaxedCaptureMode::~RelaxedCaptureMode() {
  if (changed_) real_driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace nvshare::interposer
