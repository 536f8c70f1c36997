// Bounds the work that a thread has in flight on the GPU, so that its end takes milliseconds once the GPU has to be given up. It does so
// only while another client waits for the GPU or a compute limit applies.
//
// How. A thread records an event after every so many of its submissions, the *interval*. Having recorded one, it is *held*, outside the
// gate, until the event before that one is done. So at most two intervals of its work are in flight. The interval is 1 at first, then
// halved or doubled until the GPU takes about this long from one event to the next:
//
//   another client waits      5 to 15 ms
//   a compute limit applies   2 to 6 ms, because the work in flight at a drop is billed
//
// A hold ends after a time even if the event is not done: the work may need what this thread does next. Then the hold was *in vain*, and
// the interval is halved.
//
//   another client waits      20 ms, or the time of two intervals if that is more; half after each hold in vain, 5 ms at least
//   after one in vain         at most once a minute, for 5 s or until an end is seen: half as long as since it began, if that is more
//   a compute limit applies   2 s, the time of two long kernels; 20 ms after a hold in vain, until one is not
//   ends were seen in holds   twice the GPU's time for what is waited for, 10 s at most (hold_patience.h)
//
// No hold outlasts the program. The first two hold for one thread. With several threads held at once each is held that many times as long,
// 2 s at most: together they submit no more in vain than one thread would.
//
// A thread has a Pacer, which only that thread uses, and in it a Ring of events for each of the eight contexts that it submitted to last.
// Threads share nothing but counters.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/gate/hold_patience.h"
#include "interposer/gate/work_end.h"
#include "interposer/gate/work_seen.h"

namespace nvshare::interposer {

class Process;

// What one thread submits to one context.
class Ring {
 public:
  // `context`: current.
  Ring(Process& process, cuda::CUcontext context, unsigned long long id, uint32_t contexts_destroyed);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // After a submission on `stream`, inside the gate, with the context current.
  void submitted(cuda::CUstream stream);
  // Outside the gate: waits for earlier work if too much is in flight.
  void hold(bool limited);

  // When what is in flight will have ended, as far as that can be told; 0: not known.
  int64_t work_ends_at();

  bool is_of(cuda::CUcontext context, unsigned long long id) const { return context_ == context && id_ == id; }
  cuda::CUcontext context() const { return context_; }

 private:
  static constexpr uint32_t kEvents = 16;
  bool record(uint64_t number, cuda::CUstream stream);
  cuda::CUresult query(cuda::CUevent event);
  bool see_done(uint64_t number, bool in_hold);
  bool wait_for(uint64_t number, bool limited);
  void note_end(int64_t seen_ns, bool in_hold, bool with_former);
  int64_t spacing_before(uint64_t number);
  HoldPatience::Rest rest_until(uint64_t number) const;

  Process& process_;
  const cuda::CUcontext context_;
  const unsigned long long id_;  // another context may come to lie at the same address
  const uint32_t contexts_destroyed_;
  cuda::CUevent events_[kEvents] = {};  // made when first needed
  uint64_t recorded_ = 0;               // events so far; event n is events_[n % kEvents]
  uint64_t ended_ = 0;                  // of them, those whose end was seen
  uint32_t count_ = 0;                  // submissions since the last event
  uint32_t interval_ = 1;               // submissions between events
  struct Stretch {
    uint32_t submissions = 0;
    uint32_t in_flight = 0;  // submissions at its end, its own among them
    uint32_t closures = 0;   // Gate::closures() at its end
    int64_t recorded_ns = 0;
  };
  Stretch stretches_[kEvents];  // that the events end
  HoldPatience patience_;
  WorkEnd work_end_;
  int64_t spacing_ns_ = -1;  // of the event whose end was seen last; negative: not known
  int64_t end_seen_ns_ = 0;  // of it
  int64_t not_yet_ns_ = 0;   // when the next one was last seen not to be done; 0: not seen
  bool hold_wanted_ = false;
};

class Pacer {
 public:
  explicit Pacer(Process& process) : process_(process) {}

  // After a submission on `stream`, inside the gate.
  void submitted(cuda::CUstream stream);
  // Outside the gate: waits for earlier work if too much is in flight.
  void hold(bool limited);
  // When what the thread has in flight in the context that it submitted to last will have ended; 0: not known.
  int64_t work_ends_at();

  static WorkSeen& work_seen();
  static void reset_after_fork();

 private:
  static constexpr int kRings = 8;
  Ring* of_current_context();

  Process& process_;
  Ring* rings_[kRings] = {};  // most recently used first
  Ring* submitted_to_ = nullptr;
  uint32_t contexts_destroyed_ = 0;
};

}  // namespace nvshare::interposer
