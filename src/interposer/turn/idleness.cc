// Who waits for the GPU, whether the program still uses it, and what is done when it does not.
#include <algorithm>

#include "interposer/turn/concerns.h"

namespace nvshare::interposer::turn {

using protocol::ReleaseReason;

// Submissions are watched (counted, bounded) while somebody waits or a limit applies.
void watch(Turn& turn, const At& at, uint32_t waiters, bool limited) {
  Idleness& idle = turn.idle;
  idle.waiters = waiters;
  idle.limited = limited;
  const bool watched = waiters > 0 || limited;
  if (watched != idle.watched) at.add(WatchGate{false, watched});
  if (limited != idle.watched_closely) at.add(WatchGate{true, limited});
  idle.watched = watched;
  idle.watched_closely = limited;
}

void set_gang_runs(Turn& turn, const At& at, bool runs) {
  if (turn.gang_runs && !runs) at.add(WakeGate{});  // threads that wait for the lock to allocate need not any more
  turn.gang_runs = runs;
}

void begin_watch(Turn& turn, const At& at) {
  if (turn.idle.waiters > 0) at.add(WakeLink{});  // looks for idleness begin; it may have heard of them while memory came in
  if (!turn.idle.limited) return;
  turn.idle.billed.begin(at.seen.submissions);
  at.add(WatchIdle{});
}

void heard_contention(Turn& turn, const At& at, const protocol::Contention& message) {
  Idleness& idle = turn.idle;
  set_gang_runs(turn, at, message.gang_runs != 0);
  const bool limited = (message.limited & protocol::kLimitedCompute) != 0;
  const bool limit_begins = limited && !idle.limited;
  idle.may_pause = message.pause_us > 0;
  idle.billed.configure(int64_t{idle.may_pause ? message.pause_us : message.idle_release_us} * 1000);
  if (turn.phase == Phase::kOut) return watch(turn, at, 0, limited);
  const bool begins = idle.waiters == 0 && message.waiters > 0;
  watch(turn, at, message.waiters, limited);
  idle.swap_cost_ns = static_cast<int64_t>(message.swap_cost_ns);
  idle.memory_waiters = message.memory_waiters;
  if (may_run(turn) && limited && (limit_begins || message.memory_waiters == 0)) {
    idle.billed.begin(at.seen.submissions);
    at.add(WatchIdle{});
  }
  if (begins) {
    idle.seen_submissions = at.seen.submissions;
    idle.last_submission = at.now;
    idle.probe_asked = false;
  }
  if (may_run(turn) && message.memory_waiters > 0) at.add(MakeRoom{});
}

// Under a compute limit. With memory to move for it, giving up is for check_idle to decide: it knows what a swap costs. Without a scheduler
// nobody would give the lock back.
void look_for_idleness(Turn& turn, const At& at) {
  Idleness& idle = turn.idle;
  if (!may_run(turn) || !turn.connected || turn.drain.reopened_until != 0 || !idle.limited || idle.memory_waiters > 0) return;
  const bool busy = at.seen.submitting || at.seen.waiting || at.seen.capturing || turn.growth.answer != Growth::Answer::kNone;
  const IdleWatch::Next next = idle.billed.look(at.seen.submissions, busy, at.now);
  switch (next.step) {
    case IdleWatch::Step::kWait:
      at.effects.look = {true, next.wait_ns};
      return;
    case IdleWatch::Step::kSynchronize:
      at.effects.look = {true, 0};
      return;
    case IdleWatch::Step::kRelease:
      break;
  }
  idle.released_idle = true;
  idle.idle_since = idle.billed.idle_since_ns();
  begin_drain(turn, at, ReleaseReason::kEarly, false);
  turn.drain.pauses = idle.may_pause;
  at.add(WakeLink{});  // for the drain's deadline
}

// Gives the GPU up when the program has not used it for longer than it usually pauses.
void check_idle(Turn& turn, const At& at) {
  Idleness& idle = turn.idle;
  if (!may_run(turn) || !turn.connected || turn.drain.reopened_until != 0 || idle.waiters == 0 || idle.memory_waiters == 0) return;
  const Instant ended = idle.probe_asked ? at.seen.probe_ended : 0;
  if (at.seen.submissions != idle.seen_submissions) {
    // With the GPU still at work, or with no time to ask, it was no pause.
    if (ended != 0 && !idle.unused) idle.costly.went_on(at.now - std::max(ended, idle.last_submission), idle.swap_cost_ns, at.now);
    idle.seen_submissions = at.seen.submissions;
    idle.unused = false;
    idle.last_submission = at.now;
    idle.probe_asked = false;
    return;
  }
  if (at.seen.capturing) return;
  if (!idle.probe_asked) {
    idle.probe_asked = true;
    return at.add(Probe{});
  }
  if (ended == 0) return;
  const Instant last_work = std::max(ended, idle.last_submission);
  if (at.now - last_work < idle.costly.threshold_ns(idle.swap_cost_ns, idle.unused, at.now)) return;
  idle.last_work = last_work;
  at.add(Log{Log::What::kIdle, at.now - ended});
  begin_drain(turn, at, ReleaseReason::kEarly, false);
}

}  // namespace nvshare::interposer::turn
