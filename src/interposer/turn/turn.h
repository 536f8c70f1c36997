// What one process decides about one GPU: a pure function of what it knows, what happened, and the time (docs/adr/0018).
//
//   step(turn, event, now) -> effects     takes one event; the caller carries the effects out, in order, before it lets go of its mutex
//   next_deadline(turn)                   when a Tick is due at the latest
//
// Phases: out (no lock) -> loading (granted, memory coming in) -> running (gate open) -> draining (gate closed, GPU work ending) -> out.
// Or draining -> paused: alone under a compute limit the client keeps the lock while its program does nothing, and goes back to running
// without asking (docs/adr/0012). A drain that cannot end goes back to running. Where clients on other GPUs leave at the same time, a drain
// that has ended waits for the scheduler's word (docs/adr/0009). Without a scheduler everything stays as it is until a new one answers.
//
// No lock, thread, clock, socket or driver call in here; tools/lint.py holds it to that. Not thread-safe: the caller's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interposer/turn/drain_patience.h"
#include "interposer/turn/events.h"
#include "interposer/turn/idleness.h"
#include "interposer/turn/kept_grants.h"

namespace nvshare::interposer::turn {

// From a message that frees the GPU for another program until that one's first work is on it, mostly less (on an H200: docs/adr/0021).
inline constexpr int64_t kHandOver_ns = 400'000;

enum class Phase : uint8_t { kOut, kLoading, kRunning, kPaused, kDraining };

// A thread's wish for the lock.
struct Wish {
  bool wanted = false;     // a thread waits for the lock
  Instant at = 0;          // since when
  bool requested = false;  // the scheduler knows
  uint64_t requests = 0;   // ReqLock::request of the last
};

// The end of a turn, while it lasts.
struct Drain {
  uint64_t id = 0;         // counts up: one that was given up must not settle the next
  bool abandoned = false;  // this one was given up
  bool done = false;       // settled: only MemoryLeft is missing, or, together, what the scheduler says
  bool together = false;   // it is the scheduler that says whether the lock goes
  bool pauses = false;     // the lock stays: the client pauses
  bool of_pause = false;   // it began in a pause: a client that goes on after all says so
  protocol::ReleaseReason reason = protocol::ReleaseReason::kDropped;
  Instant started = 0;
  Instant deadline = 0;        // when it is looked at again
  uint64_t attempt = 0;        // DropLock::attempt of the last
  Instant reopened_until = 0;  // the gate is open for a moment in the middle of a drain; 0: it is not
  bool tells_end = false;      // the scheduler wants to be told ahead when the work ends
  Instant ends_at = 0;         // so it was told; 0: it was not
  int untold = 0;              // so many more drains it is told nothing: the last time was wrong
  DrainPatience patience;
};

// What the gate was asked for: it counts and bounds submissions while somebody waits or a limit applies, more closely under a limit.
struct GateWatch {
  bool watched = false;
  bool closely = false;
  // From each grant on others are taken to wait until the scheduler has said what is so: threads that all wake at once, and keep the one
  // that reads its word from running, would have seconds of work in flight by then.
  Instant presumed_until = 0;  // 0: no more; kNever: until kPresumed_ns after the gate's opening
};
inline constexpr int64_t kPresumed_ns = 50'000'000;

// An allocation in mid-turn that waits for a larger budget.
struct Growth {
  enum class Answer : uint8_t { kNone, kAsked, kGranted, kRefused };
  Answer answer = Answer::kNone;
  uint64_t request = 0;
  uint64_t bytes = 0;  // of the one thread that waits
  KeptGrants kept;     // of threads that have yet to take what they were granted
};

// An allocation that the tenant's memory limit may not allow: it waits for a larger lease. Needs no lock of the GPU.
struct Headroom {
  enum class Answer : uint8_t { kNone, kAsked, kCharged, kRefused };
  Answer answer = Answer::kNone;
  uint64_t request = 0;
  uint64_t bytes = 0;  // of the one thread that asks
};

struct Turn {
  Phase phase = Phase::kOut;
  bool connected = false;
  bool registering = false;  // not connected yet, but the next scheduler is being told what this process has
  bool context = false;      // the program has a context on this GPU
  bool gang_runs = false;
  bool tells_if_held = false;  // the last scheduler did
  bool held = false;           // without one, this client waits for the next; also until the scheduler has said whether it is to
  bool cancel_load = false;
  uint64_t prefetch = 0;         // memory comes in without the lock, for this one; 0: none does
  bool prefetch_wanted = false;  // it is to go on
  protocol::Grant grant{};
  uint64_t budget_sequence = 0;
  Instant disconnected_at = 0;      // when a scheduler was last there
  Instant sought_at = 0;            // when one was last looked for, in vain; 0: not yet
  bool nobody_listens = false;      // then, because there is none
  int broken_off = 0;               // registrations since then that a scheduler broke off
  Instant opened_at = 0;            // when the gate was opened for this turn, or since the last pause; 0: it was not
  uint64_t submissions_before = 0;  // opened_at
  Instant looked_at = 0;            // the last Tick
  bool other_gpus = false;          // then
  Wish wish;
  Drain drain;
  Idleness idle;
  GateWatch watch;
  Growth growth;
  Headroom headroom;
};

Effects step(Turn& turn, const Event& event, Instant now);

// When a Tick is due at the latest; kNever: events alone matter.
Instant next_deadline(const Turn& turn);

// ---- what is asked between events ----

// The program may submit: the one place that says so. (A paused client may too, once a thread has said that it wants to.)
inline bool may_run(const Turn& turn) { return turn.phase == Phase::kRunning; }
inline bool holds_lock(const Turn& turn) { return turn.phase != Phase::kOut; }
// What the next scheduler is told.
inline bool had_lock(const Turn& turn) { return holds_lock(turn) && turn.phase != Phase::kLoading; }
// Settled within moments: a new scheduler is told the outcome.
inline bool in_between(const Turn& turn) { return turn.phase == Phase::kLoading || turn.phase == Phase::kDraining || turn.prefetch != 0; }
inline bool drain_wanted(const Turn& turn, uint64_t drain) {
  return turn.phase == Phase::kDraining && !turn.drain.abandoned && drain == turn.drain.id;
}
// Its work's end may be told ahead.
inline bool may_tell_end(const Turn& turn) {
  const Drain& drain = turn.drain;
  return turn.phase == Phase::kDraining && drain.tells_end && drain.ends_at == 0 && drain.untold == 0 && !drain.done;
}
inline bool prefetch_wanted(const Turn& turn, uint64_t prefetch) { return turn.prefetch_wanted && prefetch == turn.prefetch; }
inline bool drains_together(const Turn& turn, uint64_t drain) { return drain == turn.drain.id && turn.drain.together; }
// An allocation that waits for a larger budget waits in vain: the turn is over.
inline bool lost_turn(const Turn& turn) { return turn.phase == Phase::kOut || turn.phase == Phase::kLoading; }
// Nobody counts this process's memory, nor is about to.
inline bool alone(const Turn& turn) { return !turn.connected && !turn.registering; }
// Sure that there is no scheduler: a process that was stopped (SIGSTOP) looks for one first.
inline bool sought_in_vain(const Turn& turn, Instant now) {
  constexpr int64_t kSoughtLately_ns = 1'500'000'000;  // it is sought each second
  return alone(turn) && turn.sought_at > turn.disconnected_at && now - turn.sought_at <= kSoughtLately_ns;
}
// Without a scheduler for longer than a restart takes. One grants nothing in its first two seconds, if clients of its predecessor are
// missing.
inline bool helps_itself(const Turn& turn, Instant now) {
  constexpr int64_t kPatience_ns = 2'000'000'000;
  return sought_in_vain(turn, now) && now - turn.disconnected_at >= kPatience_ns;
}
// It waits for a turn that nobody gives. If all that it has is on the GPU it need not (GoesOnAlone): nobody's memory has to leave for it,
// and no limit or administrator asks for the wait. One whose connection alone has ended waits: the scheduler gives its turn to others.
inline bool may_go_on_alone(const Turn& turn, Instant now) {
  return turn.phase == Phase::kOut && turn.prefetch == 0 && turn.context && turn.wish.wanted && turn.tells_if_held && !turn.held &&
         turn.nobody_listens && sought_in_vain(turn, now);
}
// Bytes that were granted, and may not have been taken yet.
inline uint64_t growth_kept(const Turn& turn) { return turn.growth.kept.bytes(); }
// Bytes that an allocation waits for.
inline uint64_t growth_wanted(const Turn& turn) { return turn.growth.answer == Growth::Answer::kAsked ? turn.growth.bytes : 0; }

}  // namespace nvshare::interposer::turn
