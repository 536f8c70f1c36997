// Bounds the work that a program has in flight while somebody waits for the GPU or a compute limit applies, so that a drop takes
// milliseconds: after every so many submissions of a thread an event; before more, the event before last must be done.
//
// Somebody waits: the spacing adapts to about 10 ms of GPU time. A hold lasts 20 ms for each thread that is held just then, so that all of
// a program's threads together go on no faster in vain than one would: else a hundred of them would put in flight a hundred times as much
// as ends. Where work was seen to take longer than that, holds come to last as long as two such stretches; after one in vain they become
// short, because the work may need what this thread does next, or stand still. A limit applies, and what is in flight at a drop is billed:
// about 4 ms, and a submission waits as long as two long kernels take; one wait in vain, and the thread's waits are short until a short one
// has sufficed. One Pacer per thread of the program, used by that thread only; what they share are a few counters. It has a ring of events
// for each context that the thread submits to, a few at most: the least recently used one goes when there are more.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/gate/work_seen.h"

namespace nvshare::interposer {

// What one thread submits to one context.
class Ring {
 public:
  // `context`: current.
  Ring(cuda::CUcontext context, unsigned long long id, uint32_t contexts_destroyed);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // After a submission on `stream`, inside the gate, with the context current.
  void submitted(cuda::CUstream stream, bool limited);
  // Outside the gate: waits for earlier work if too much is in flight.
  void hold(bool limited);

  bool is_of(cuda::CUcontext context, unsigned long long id) const { return context_ == context && id_ == id; }
  cuda::CUcontext context() const { return context_; }

 private:
  static constexpr int kEvents = 3;
  static constexpr int64_t kHold_ns = 20'000'000;  // as a rule
  bool prepare();
  void look_at_probe();
  bool wait_for(cuda::CUevent event, bool limited);
  void held(bool limited, bool in_vain);

  const cuda::CUcontext context_;
  const unsigned long long id_;  // another context may come to lie at the same address
  const uint32_t contexts_destroyed_;
  bool made_ = false;  // the events
  cuda::CUevent events_[kEvents] = {};
  uint32_t recorded_ = 0;  // events so far; event n is events_[n % kEvents]
  uint32_t count_ = 0;     // submissions since the last event
  uint32_t interval_;      // submissions between events
  bool hold_wanted_ = false;
  bool held_in_vain_ = false;
  int64_t hold_ns_ = kHold_ns;  // the next, without a limit, were no other thread held

  // One event is left alone until it is done, for WorkSeen: with much in flight the others are recorded anew before they are.
  cuda::CUevent probe_ = nullptr;
  bool probing_ = false;
  int64_t probe_recorded_ns_ = 0;
  uint32_t probe_closures_ = 0;  // Gate::closures() then
};

class Pacer {
 public:
  // After a submission on `stream`, inside the gate.
  void submitted(cuda::CUstream stream, bool limited);
  // Outside the gate: waits for earlier work if too much is in flight.
  void hold(bool limited);

  static WorkSeen& work_seen();
  static void reset_after_fork();

 private:
  static constexpr int kRings = 8;
  Ring* of_current_context();

  Ring* rings_[kRings] = {};  // most recently used first
  Ring* submitted_to_ = nullptr;
  uint32_t contexts_destroyed_ = 0;
};

}  // namespace nvshare::interposer
