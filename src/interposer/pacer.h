// Bounds the work that a thread has in flight while somebody waits for the GPU, so that a drop takes milliseconds: after every so many
// submissions an event; before more, the event before last must be done. The spacing adapts to about 10 ms of GPU time; no submission
// waits longer than 20 ms. One Pacer per thread of the program, used by that thread only.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

class Pacer {
 public:
  // After a submission on `stream`, inside the gate.
  void submitted(cuda::CUstream stream);
  // Outside the gate: waits for earlier work if too much is in flight.
  void hold();

 private:
  static constexpr int kEvents = 3;
  bool prepare();

  cuda::CUcontext context_ = nullptr;
  uint32_t contexts_destroyed_ = 0;
  cuda::CUevent events_[kEvents] = {};
  uint32_t recorded_ = 0;   // events so far; event n is events_[n % kEvents]
  uint32_t count_ = 0;      // submissions since the last event
  uint32_t interval_ = 16;  // submissions between events
  bool hold_wanted_ = false;
};

}  // namespace nvshare::interposer
