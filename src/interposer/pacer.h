// Bounds the work that a thread has in flight while somebody waits for the GPU or a compute limit applies, so that a drop takes
// milliseconds: after every so many submissions an event; before more, the event before last must be done.
//
// Somebody waits: the spacing adapts to about 10 ms of GPU time, and no submission waits longer than 20 ms. A limit applies, and what is in
// flight at a drop is billed: about 2 ms, and a submission waits as long as two long kernels take; one wait in vain (the work may need what
// this thread does next), and the thread's waits are short until a short one has sufficed.
// One Pacer per thread of the program, used by that thread only.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

class Pacer {
 public:
  // After a submission on `stream`, inside the gate.
  void submitted(cuda::CUstream stream, bool limited);
  // Outside the gate: waits for earlier work if too much is in flight.
  void hold(bool limited);

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
  bool held_in_vain_ = false;
};

}  // namespace nvshare::interposer
