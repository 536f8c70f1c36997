// What the scheduler says of those who wait, and what it means for a program that has the GPU: work in flight is bounded, idleness looked
// for.
#include "interposer/turn/concerns.h"

namespace nvshare::interposer::turn {

using protocol::ReleaseReason;

namespace {

// The gate is told of changes.
void set_terms(Turn& turn, const At& at, const Idleness::Terms& terms) {
  turn.idle.set_terms(terms);
  const bool watched = terms.waiters > 0 || terms.limited || turn.watch.presumed_until != 0;
  if (watched != turn.watch.watched) at.add(WatchGate{false, watched});
  if (terms.limited != turn.watch.closely) at.add(WatchGate{true, terms.limited});
  turn.watch.watched = watched;
  turn.watch.closely = terms.limited;
}

}  // namespace

void presume_waiters(Turn& turn, const At& at) {
  if (turn.idle.terms().limited) return;  // all is bounded anyway
  turn.watch.presumed_until = kNever;
  set_terms(turn, at, turn.idle.terms());
}

// For the link's thread to look in time; mostly the scheduler has said so by then.
void presumption_runs(Turn& turn, const At& at) {
  if (turn.watch.presumed_until != kNever) return;
  turn.watch.presumed_until = at.now + kPresumed_ns;
  at.add(WakeLink{});
}

void check_presumption(Turn& turn, const At& at) {
  if (turn.watch.presumed_until == 0 || at.now < turn.watch.presumed_until) return;
  turn.watch.presumed_until = 0;
  set_terms(turn, at, turn.idle.terms());
}

void nobody_waits(Turn& turn, const At& at, bool limited) {
  turn.watch.presumed_until = 0;
  Idleness::Terms terms = turn.idle.terms();
  terms.waiters = terms.memory_waiters = 0;
  terms.limited = limited;
  set_terms(turn, at, terms);
}

void set_gang_runs(Turn& turn, const At& at, bool runs) {
  if (turn.gang_runs && !runs) at.add(WakeGate{});  // threads that wait for the lock to allocate need not any more
  turn.gang_runs = runs;
}

void begin_watch(Turn& turn, const At& at) {
  if (turn.idle.reason() == Idleness::Reason::kNone) return;
  turn.idle.watch_begins(at.seen.submissions);
  at.add(WatchIdle{});
}

void heard_contention(Turn& turn, const At& at, const protocol::Contention& message) {
  set_gang_runs(turn, at, message.gang_runs != 0);
  turn.held = message.held != 0;
  const Idleness::Reason before = turn.idle.reason();
  Idleness::Terms terms = turn.idle.terms();
  terms.limited = (message.limited & protocol::kLimitedCompute) != 0;
  terms.may_pause = message.pause_us > 0;
  terms.least_ns = int64_t{terms.may_pause ? message.pause_us : message.idle_release_us} * 1000;
  if (turn.phase != Phase::kOut) {
    terms.waiters = message.waiters;
    terms.memory_waiters = message.memory_waiters;
    terms.swap_cost_ns = static_cast<int64_t>(message.swap_cost_ns);
  }
  turn.watch.presumed_until = 0;
  set_terms(turn, at, terms);
  if (!may_run(turn)) return;
  const Idleness::Reason reason = turn.idle.reason();
  if (reason == Idleness::Reason::kBill || reason != before) begin_watch(turn, at);
  if (message.memory_waiters > 0) at.add(MakeRoom{});
}

// Without a scheduler nobody would give the lock back.
void look_for_idleness(Turn& turn, const At& at) {
  if (!may_run(turn) || !turn.connected || turn.drain.reopened_until != 0) return;
  const bool unsettled = at.seen.submitting || at.seen.waiting || turn.growth.answer != Growth::Answer::kNone;
  const Idleness::Next next = turn.idle.look(at.seen.submissions, !at.seen.capturing, unsettled, at.now);
  switch (next.step) {
    case Idleness::Step::kNothing:
      return;
    case Idleness::Step::kWait:
      at.effects.look = {true, next.wait_ns};
      return;
    case Idleness::Step::kSynchronize:
      at.effects.look = {true, 0};
      return;
    case Idleness::Step::kGiveUp:
      break;
  }
  const bool billed = turn.idle.gave_up() == Idleness::Reason::kBill;
  if (!billed) at.add(Log{Log::What::kIdle, at.now - turn.idle.idle_since_ns()});
  at.add(ForgetWish{});  // a thread that comes says so, and ends the drain
  begin_drain(turn, at, ReleaseReason::kEarly, false);
  turn.drain.pauses = billed && turn.idle.terms().may_pause;
  at.add(WakeLink{});  // for the drain's deadline
}

}  // namespace nvshare::interposer::turn
