// Which streams capture, from the driver's first moment of it to the last. A capture ends by cuStreamEndCapture, or with its stream or
// context: nothing of it may stay counted, or this program would never drain again.
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUstream;

namespace {

uint64_t thread_of(CUstream stream) {
  Mark* mark = stream == cuda::CU_STREAM_PER_THREAD ? Gate::mark() : nullptr;
  return mark != nullptr ? mark->thread.load(std::memory_order_relaxed) : 0;
}

}  // namespace

void Process::capture_begins(CUstream stream) {
  const RealDriver& driver = real_driver();
  CUcontext context = nullptr;
  if (driver.cuStreamGetCtx(stream, &context) != cuda::CUDA_SUCCESS) driver.cuCtxGetCurrent(&context);
  Lock lock(capture_mutex_);
  while (synchronizing_ > 0) capture_changed_.wait(capture_mutex_);
  captures_known_.push_back({++last_capture_, stream, thread_of(stream), context});
  captures_.fetch_add(1, std::memory_order_acq_rel);
  gate.set(Gate::kCapturing);
}

template <typename Which>
void Process::forget_captures(size_t most, Which which) {
  Lock lock(capture_mutex_);
  int forgotten = 0;
  for (size_t i = captures_known_.size(); i-- > 0 && most > 0;) {
    if (!which(captures_known_[i])) continue;
    captures_known_.erase(captures_known_.begin() + static_cast<ptrdiff_t>(i));
    ++forgotten;
    --most;
  }
  if (forgotten == 0) return;
  if (captures_.fetch_sub(forgotten, std::memory_order_acq_rel) == forgotten) gate.clear(Gate::kCapturing);
  capture_changed_.notify_all();
}

void Process::capture_ended(CUstream stream) {
  const uint64_t thread = thread_of(stream);
  forget_captures(1, [&](const Capture& each) { return each.stream == stream && each.thread == thread; });
}

uint64_t Process::capture_leaves(CUstream stream) {
  if (!capturing()) return 0;
  Lock lock(capture_mutex_);
  for (Capture& each : captures_known_) {
    if (each.stream != stream) continue;
    each.stream = nullptr;  // which no capture begins on
    return each.number;
  }
  return 0;
}

void Process::capture_left(uint64_t number) {
  forget_captures(1, [&](const Capture& each) { return each.number == number; });
}

void Process::capture_stays(uint64_t number, CUstream stream) {
  Lock lock(capture_mutex_);
  for (Capture& each : captures_known_) {
    if (each.number == number) each.stream = stream;
  }
}

void Process::captures_left_with(CUcontext context) {
  forget_captures(SIZE_MAX, [&](const Capture& each) { return each.context == context; });
}

void Process::green_context_left(CUcontext context) {
  contexts_destroyed_.fetch_add(1, std::memory_order_relaxed);
  captures_left_with(context);
}

// Its own default stream goes with it, and nobody else could name that to end the capture.
void Process::captures_left_with_thread(uint64_t thread) {
  if (capturing()) forget_captures(SIZE_MAX, [&](const Capture& each) { return each.thread == thread; });
}

bool Process::begin_synchronize() {
  Lock lock(capture_mutex_);
  if (capturing()) return false;
  ++synchronizing_;
  return true;
}

void Process::end_synchronize() {
  Lock lock(capture_mutex_);
  if (--synchronizing_ == 0) capture_changed_.notify_all();
}

bool Process::wait_no_capture(int64_t deadline_ns) {
  Lock lock(capture_mutex_);
  while (capturing()) {
    if (!capture_changed_.wait_until(capture_mutex_, deadline_ns)) return !capturing();
  }
  return true;
}

RelaxedCaptureMode::RelaxedCaptureMode() {
  const auto exchange = real_driver().cuThreadExchangeStreamCaptureMode;
  changed_ = process().capturing() && exchange != nullptr && exchange(&mode_) == cuda::CUDA_SUCCESS;
}
RelaxedCaptureMode::~RelaxedCaptureMode() {
  if (changed_) real_driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace nvshare::interposer
