// What the parts of step() (turn.h) offer each other. For the sources of turn/ only.
#pragma once

#include "interposer/turn/turn.h"

namespace nvshare::interposer::turn {

// One step: its time, what was seen, what comes of it.
struct At {
  Instant now;
  const Seen& seen;
  Effects& effects;

  template <typename Kind>
  void add(const Kind& effect) const {
    effects.add(effect);
  }
  // To nobody while there is no scheduler.
  template <typename Message>
  void send(const Turn& turn, const Message& message) const {
    if (turn.connected) effects.add(message);
  }
};

// step.cc
void open_gate(Turn& turn, const At& at);  // the program has the GPU
void begin_use(Turn& turn, const At& at);  // the same, at the beginning of a turn or of what follows a pause
void release(Turn& turn, const At& at, protocol::ReleaseReason reason);
uint64_t used_ns(const Turn& turn, const At& at, Instant work_ended, bool by_itself);  // of the turn that ends, or pauses
uint64_t submissions(const Turn& turn, const At& at);                                  // in it

// drains.cc
void begin_drain(Turn& turn, const At& at, protocol::ReleaseReason reason, bool together);
void go_on(Turn& turn, const At& at);   // a drain is given up
void resume(Turn& turn, const At& at);  // a pause ends
void drop(Turn& turn, const At& at, const protocol::DropLock& message);
void keep(Turn& turn, const At& at, const protocol::KeepLock& message);
void drained(Turn& turn, const At& at, uint64_t drain);
void ends_soon(Turn& turn, const At& at, Instant work_ends);
void settle_pause(Turn& turn, const At& at, bool waiters);
bool drains_by_choice(const Turn& turn);  // and may still go on
bool about_to_pause(const Turn& turn);    // LookForWaiters is to be answered with settle_pause
void check_drain(Turn& turn, const At& at);
void check_reopening(Turn& turn, const At& at);
Instant reopening_due(const Turn& turn);

inline constexpr int64_t kTick_ns = 10'000'000;  // between looks at a drain past its time

// headroom.cc
void want_headroom(Turn& turn, const At& at, uint64_t bytes);
void answer_headroom(Turn& turn, const At& at, const protocol::Headroom& message);
void ask_headroom_anew(Turn& turn, const At& at);  // of the next scheduler
void lease_tried(Turn& turn, const At& at, bool charged);

// contention.cc
void presume_waiters(Turn& turn, const At& at);   // of a grant, until the scheduler says who waits
void presumption_runs(Turn& turn, const At& at);  // the gate is open
void check_presumption(Turn& turn, const At& at);
void nobody_waits(Turn& turn, const At& at, bool limited);
void heard_contention(Turn& turn, const At& at, const protocol::Contention& message);
void set_gang_runs(Turn& turn, const At& at, bool runs);
void begin_watch(Turn& turn, const At& at);  // the gate is open: looks for idleness, where there is a reason
void look_for_idleness(Turn& turn, const At& at);

}  // namespace nvshare::interposer::turn
