// Which streams capture, from the driver's first moment of it to the last. A capture ends by cuStreamEndCapture, or with its stream, thread
// or context: nothing of it may stay counted, or this program would never drain again. And the other way round: while something of ours
// waits for the GPU, no capture begins, because waiting would break it.
//
// Thread-safe; its mutex is a leaf. `capturing` is one load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Gate;

class Captures {
 public:
  explicit Captures(Gate& gate) : gate_(gate) {}

  // The calling thread's number if `stream` is the default stream of its own, else 0: in each thread that handle names another stream.
  static uint64_t thread_of(cuda::CUstream stream);

  // Streams capture now.
  bool capturing() const { return count_.load(std::memory_order_acquire) > 0; }

  // Around the driver's cuStreamBeginCapture: counts before it, so that no synchronisation of ours meets a capture.
  void begins(cuda::CUstream stream);
  void ended(cuda::CUstream stream);  // also when it did not begin after all
  // Around the driver's destroying a stream: the capture that began on it (0: none) ends with it. Another stream may have the same handle
  // as soon as the driver has returned.
  uint64_t leaves(cuda::CUstream stream);
  void left(uint64_t number);
  void stays(uint64_t number, cuda::CUstream stream);
  void left_with(cuda::CUcontext context);
  void left_with_thread(uint64_t thread);

  // True: nothing captures, and nothing will until end_synchronize(). False: something captures.
  bool begin_synchronize();
  void end_synchronize();
  // False at the deadline.
  bool wait_for_none(int64_t deadline_ns);

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  struct Capture {
    uint64_t number;
    cuda::CUstream stream;  // that it began on; null: being destroyed
    uint64_t thread;        // of a per-thread default stream, else 0
    cuda::CUcontext context;
  };
  template <typename Which>
  void forget(size_t most, Which which);

  Gate& gate_;
  std::atomic<int> count_{0};
  Mutex mutex_;
  Condition changed_;
  int synchronizing_ GUARDED_BY(mutex_) = 0;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::vector<Capture> known_ GUARDED_BY(mutex_);
};

// While it lives, what the calling thread asks the driver for disturbs no capture.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(const Captures& captures);
  ~RelaxedCaptureMode();
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  bool changed_ = false;
  cuda::CUstreamCaptureMode mode_ = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
};

// While it lives no capture begins; false: something captures, so that no event may be recorded, queried or waited for.
class CapturesHeldOff {
 public:
  explicit CapturesHeldOff(Captures& captures) : captures_(captures), held_(captures.begin_synchronize()) {}
  ~CapturesHeldOff() {
    if (held_) captures_.end_synchronize();
  }
  CapturesHeldOff(const CapturesHeldOff&) = delete;
  CapturesHeldOff& operator=(const CapturesHeldOff&) = delete;
  explicit operator bool() const { return held_; }

 private:
  Captures& captures_;
  const bool held_;
};

}  // namespace nvshare::interposer
