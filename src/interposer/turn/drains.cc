// The end of a turn: draining, pausing, leaving together with clients on other GPUs, and giving all of that up.
#include <algorithm>

#include "interposer/turn/concerns.h"

namespace nvshare::interposer::turn {

using protocol::ReleaseReason;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kLimitedPatience_ns =
    1'000 * kMillisecond;                                    // under a compute limit: a kernel or two, and nothing that they owe to others
constexpr int64_t kQuietPatience_ns = 2'000 * kMillisecond;  // of a drain that nobody is held up by
// A process on several GPUs has one gate for all of them. Closed between the halves of a collective, it keeps the GPU that has its half
// busy for ever; so while such a process drains together with others, the gate opens for a moment now and then. By the clock, because it
// is only open while it is closed for none of the GPUs.
constexpr int64_t kReopenEvery_ns = 32 * kMillisecond;
constexpr int64_t kReopen_ns = 4 * kMillisecond;

constexpr int64_t kLate_ns = kMillisecond;  // others ran beside this program for so long because its work's end was told too early
constexpr int kUntold = 16;                 // it tells again at that drain

bool may_reopen(const Turn& turn) { return turn.phase == Phase::kDraining && turn.drain.together && !turn.drain.done && turn.other_gpus; }

}  // namespace

void begin_drain(Turn& turn, const At& at, ReleaseReason reason, bool together) {
  Drain& drain = turn.drain;
  drain.together = together;
  drain.pauses = false;
  drain.of_pause = turn.phase == Phase::kPaused || (turn.phase == Phase::kDraining && drain.of_pause);
  drain.reopened_until = 0;
  drain.reason = reason;
  drain.started = at.now;
  // A limit ends turns often, and with little in flight: what is left may be one long kernel, which no other attempt would find shorter.
  const int64_t patience = drain.patience.value_ns();
  drain.deadline = at.now + (turn.idle.terms().limited ? std::max(patience, kLimitedPatience_ns) : patience);
  drain.abandoned = false;
  drain.done = false;
  drain.tells_end = false;
  drain.ends_at = 0;
  drain.untold = std::max(drain.untold - 1, 0);
  turn.phase = Phase::kDraining;
  at.add(CloseGate{});
  at.add(StartDrain{++drain.id});
}

void go_on(Turn& turn, const At& at) {
  turn.drain.abandoned = true;
  turn.drain.together = turn.drain.pauses = false;
  turn.drain.reopened_until = 0;
  turn.idle.forget();
  if (turn.drain.of_pause) return resume(turn, at);
  open_gate(turn, at);
}

// For a thread that waits at the gate; it does not wait for the scheduler, which is told.
void resume(Turn& turn, const At& at) {
  turn.drain.of_pause = false;
  at.send(turn, protocol::LockResumed{turn.grant});
  begin_use(turn, at);
}

void drop(Turn& turn, const At& at, const protocol::DropLock& message) {
  Drain& drain = turn.drain;
  drain.attempt = message.attempt;
  const bool together = message.together != 0;
  switch (turn.phase) {
    case Phase::kOut:
      return;  // released meanwhile
    case Phase::kLoading:
      turn.cancel_load = true;
      return;
    case Phase::kRunning:
    case Phase::kPaused:
      begin_drain(turn, at, ReleaseReason::kDropped, together);
      drain.tells_end = message.tells_end != 0 && !together;
      return;
    case Phase::kDraining:
      drain.reason = ReleaseReason::kDropped;
      drain.pauses = false;
      if (!drain.done) {
        drain.together = together;
      } else if (drain.together) {
        begin_drain(turn, at, ReleaseReason::kDropped, together);  // all have drained: with nothing left to wait for it ends at once
      }
      return;
  }
}

void keep(Turn& turn, const At& at, const protocol::KeepLock&) {
  const bool reopened = turn.drain.reopened_until != 0;
  turn.drain.reopened_until = 0;
  if (turn.phase == Phase::kDraining && turn.drain.together) go_on(turn, at);
  if (reopened && may_run(turn)) begin_watch(turn, at);  // the gate stays open
}

void ends_soon(Turn& turn, const At& at, Instant work_ends) {
  Drain& drain = turn.drain;
  if (!may_tell_end(turn) || at.seen.other_gpus) return;
  drain.ends_at = work_ends;
  at.send(turn, protocol::EndsSoon{turn.grant, drain.attempt});
}

void drained(Turn& turn, const At& at, uint64_t id) {
  Drain& drain = turn.drain;
  if (!drain_wanted(turn, id)) return;
  drain.done = true;
  if (drain.ends_at != 0 && at.now - drain.ends_at > kLate_ns) drain.untold = kUntold;
  drain.patience.drained(at.now - drain.started);
  if (drain.pauses && turn.context) {
    turn.wish.wanted = false;
    return at.add(LookForWaiters{});
  }
  if (!drain.together) {
    at.effects.agreed = true;
  } else if (turn.connected) {
    at.send(turn, protocol::Drained{turn.grant, drain.attempt});
  } else {
    go_on(turn, at);
  }
}

// It gives the GPU up because it was idle, and nobody has asked for that. A thread that comes before the work has ended says that it is
// idle no more; nor would the work end, in a process on several GPUs, whose one gate holds up what the work on another GPU waits for.
bool drains_by_choice(const Turn& turn) {
  const Drain& drain = turn.drain;
  return turn.phase == Phase::kDraining && turn.context && drain.reason == ReleaseReason::kEarly && !drain.together && !drain.done;
}

bool about_to_pause(const Turn& turn) { return turn.phase == Phase::kDraining && turn.drain.done && turn.drain.pauses; }

// The work has ended and nobody is inside the gate. The lock stays, so the memory does too.
void settle_pause(Turn& turn, const At& at, bool waiters) {
  if (!turn.connected || waiters || turn.growth.answer != Growth::Answer::kNone) return go_on(turn, at);
  turn.phase = Phase::kPaused;
  at.add(WakeGate{});  // an allocation may wait for the end of the drain
  at.send(turn, protocol::LockPaused{turn.grant, used_ns(turn, at, turn.idle.idle_since_ns(), true), submissions(turn, at)});
  turn.opened_at = 0;
}

// A drain past its time: what runs may be waiting for what threads at the gate hold back. Let them go on, and say so. With nobody at the
// gate the work is more likely just long, and waiting for it costs the program nothing; but the scheduler is to know before others have
// waited for long.
void check_drain(Turn& turn, const At& at) {
  Drain& drain = turn.drain;
  if (turn.phase != Phase::kDraining || at.now < drain.deadline) return;
  const int64_t lasted = at.now - drain.started;
  // A thread that waits for memory holds things back like one at the gate: the capture that it is in the middle of, for example.
  const bool quiet = !at.seen.waiting && turn.growth.answer != Growth::Answer::kAsked;
  if (drain.done || (quiet && lasted < std::max(kQuietPatience_ns, drain.patience.value_ns()))) {
    drain.deadline = at.now + kTick_ns;
    return;
  }
  at.add(Log{Log::What::kDrainGivenUp, lasted});
  drain.patience.gave_up(at.seen.longest_work_ns);
  go_on(turn, at);
  if (drain.reason != ReleaseReason::kDropped) return;
  protocol::LockReleased message{};
  message.grant = turn.grant;
  message.reason = static_cast<uint8_t>(ReleaseReason::kNotDrained);
  at.send(turn, message);
}

// ---- the gate's opening for a moment ----

Instant reopening_due(const Turn& turn) {
  if (!may_reopen(turn)) return kNever;
  return (std::max(turn.drain.started, turn.looked_at) / kReopenEvery_ns + 1) * kReopenEvery_ns;
}

void check_reopening(Turn& turn, const At& at) {
  Drain& drain = turn.drain;
  if (drain.reopened_until != 0) {
    if (at.now < drain.reopened_until) return;
    if (turn.phase != Phase::kRunning) {  // it left by itself meanwhile
      drain.reopened_until = 0;
      return;
    }
    const Instant started = drain.started, deadline = drain.deadline;
    begin_drain(turn, at, ReleaseReason::kDropped, true);
    drain.started = started;
    drain.deadline = deadline;
    return;
  }
  const int64_t into = at.now % kReopenEvery_ns;
  if (!may_reopen(turn) || into >= kReopen_ns || at.now - drain.started < kReopen_ns || !at.seen.waiting) return;
  go_on(turn, at);
  drain.reopened_until = at.now - into + kReopen_ns;
}

}  // namespace nvshare::interposer::turn
