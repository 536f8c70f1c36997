// The client's idleness: who waits for its GPU, whether the program still uses it, and what is done when it does not.
#include <algorithm>

#include "interposer/client.h"
#include "interposer/device.h"
#include "interposer/gate.h"
#include "interposer/log.h"
#include "interposer/process.h"

namespace nvshare::interposer {

using protocol::ReleaseReason;

namespace {
constexpr int64_t kMillisecond = 1'000'000;
}

// Submissions are watched (counted, bounded) while somebody waits or a limit applies.
void Client::watch(uint32_t waiters, bool limited) {
  waiters_ = waiters;
  limited_ = limited;
  const bool watched = waiters > 0 || limited;
  if (watched != watched_) gate.watch(Gate::kWatched, watched);
  if (limited != limit_told_) gate.watch(Gate::kLimited, limited);
  watched_ = watched;
  limit_told_ = limited;
  hurry();
}

void Client::hurry() { hurried_news_.store(connected_ && limited_ ? socket_.get() : -1, std::memory_order_relaxed); }

bool Client::keeps_caches() {
  Lock lock(mutex_);
  return limited_ && memory_waiters_.load(std::memory_order_relaxed) == 0;
}

void Client::set_gang_runs(bool runs) {
  if (gang_runs_.exchange(runs, std::memory_order_acq_rel) && !runs) gate.clear(0);  // who waits for the lock to allocate need not any more
}

void Client::on_contention(const protocol::Contention& message) {
  bool begins = false;
  bool running = false;
  set_gang_runs(message.gang_runs != 0);
  {
    Lock lock(mutex_);
    const bool limited = (message.limited & protocol::kLimitedCompute) != 0;
    const bool limit_begins = limited && !limited_;
    pauses_ = message.pause_us > 0;
    idle_watch_.configure(int64_t{pauses_ ? message.pause_us : message.idle_release_us} * 1000);
    if (state_ == State::kOut) return watch(0, limited);
    running = state_ == State::kRunning;
    begins = waiters_ == 0 && message.waiters > 0;
    watch(message.waiters, limited);
    swap_cost_ns_ = static_cast<int64_t>(message.swap_cost_ns);
    memory_waiters_.store(message.memory_waiters, std::memory_order_relaxed);
    if (running && limited_ && (limit_begins || message.memory_waiters == 0)) {
      idle_watch_.begin(gate.submissions());
      device_.mover().watch_idle();
    }
    if (begins) {
      seen_submissions_ = gate.submissions();
      last_submission_ns_ = now_ns();
      idle_check_asked_ = false;
    }
  }
  if (message.memory_waiters == 0 || !running) return;
  device_.memory().trim_cache();
  hold_to_resident();
  Lock lock(mutex_);
  send_memory(growth_state_ == GrowthState::kAsked ? growth_wanted_ : 0);
}

Client::IdleStep Client::idle_step() {
  Lock lock(mutex_);
  // With memory to move for it, giving up is for check_idle to decide: it knows what a swap costs. Without a scheduler nobody would give
  // the lock back.
  if (state_ != State::kRunning || !connected_ || breath_ends_ns_ != 0 || !limited_ || memory_waiters_.load(std::memory_order_relaxed) > 0)
    return {false, 0};
  const bool busy = gate.busy() || gate.waiting() > 0 || process().capturing() || growth_state_ != GrowthState::kNone;
  const IdleWatch::Next next = idle_watch_.look(gate.submissions(), busy, now_ns());
  switch (next.step) {
    case IdleWatch::Step::kWait:
      return {true, next.wait_ns};
    case IdleWatch::Step::kSynchronize:
      return {true, 0};
    case IdleWatch::Step::kRelease:
      break;
  }
  released_idle_ = true;
  idle_since_ns_ = idle_watch_.idle_since_ns();
  begin_drain(ReleaseReason::kEarly);
  drain_pauses_ = pauses_;
  wake();  // the socket's thread minds the drain's time
  return {false, 0};
}

void Client::work_ended() {
  Lock lock(mutex_);
  idle_watch_.work_ended(now_ns());
}

// Gives the GPU up when the program has not used it for longer than it usually pauses.
void Client::check_idle() {
  Lock lock(mutex_);
  if (state_ != State::kRunning || !connected_ || breath_ends_ns_ != 0 || waiters_ == 0) return;
  if (memory_waiters_.load(std::memory_order_relaxed) == 0) return;
  int64_t now = now_ns();
  uint64_t submissions = gate.submissions();
  if (submissions != seen_submissions_) {
    // With the GPU still at work, or with no time to ask, it was no pause.
    const int64_t idle_since = idle_check_asked_ ? device_.mover().idle_since_ns() : 0;
    if (idle_since != 0 && !turn_unused_) pause_watch_.went_on(now - std::max(idle_since, last_submission_ns_), swap_cost_ns_, now);
    seen_submissions_ = submissions;
    turn_unused_ = false;
    last_submission_ns_ = now;
    idle_check_asked_ = false;
    return;
  }
  if (process().capturing()) return;
  if (!idle_check_asked_) {
    idle_check_asked_ = true;
    device_.mover().probe_idle();
    return;
  }
  int64_t idle_since = device_.mover().idle_since_ns();
  if (idle_since == 0) return;
  if (now - std::max(idle_since, last_submission_ns_) < pause_watch_.threshold_ns(swap_cost_ns_, turn_unused_, now)) return;
  last_work_ns_ = std::max(idle_since, last_submission_ns_);
  log(LogLevel::kDebug, "idle for %lld ms: giving the GPU up", static_cast<long long>((now - idle_since) / kMillisecond));
  begin_drain(ReleaseReason::kEarly);
}

// ---- pauses ----

// The work has ended and nobody is inside the gate. The lock stays, so the memory does too.
void Client::pause() {
  // In this order: a thread counts itself as waiting before it sets lock_wanted_, so one of the two is seen.
  lock_wanted_.store(false, std::memory_order_seq_cst);
  if (!connected_ || gate.waiting() > 0 || growth_state_ != GrowthState::kNone) return go_on();
  set_state(State::kPaused);
  gate.clear(0);  // an allocation may wait for the end of the drain
  send(protocol::LockPaused{grant_, used_ns(idle_since_ns_)});
  opened_at_ns_ = 0;
}

// For a thread that waits at the gate; it does not wait for the scheduler, which is told.
void Client::resume() {
  drain_of_pause_ = false;
  send(protocol::LockResumed{grant_});
  begin_use();
}

}  // namespace nvshare::interposer
