// The client's turns: getting the lock, draining, giving it back, growth in mid-turn.
#include <algorithm>

#include "interposer/client.h"
#include "interposer/device.h"
#include "interposer/gate.h"
#include "interposer/log.h"
#include "interposer/pacer.h"
#include "interposer/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using protocol::ReleaseReason;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kLimitedPatience_ns =
    1'000 * kMillisecond;                                    // under a compute limit: a kernel or two, and nothing that they owe to others
constexpr int64_t kQuietPatience_ns = 2'000 * kMillisecond;  // of a drain that nobody is held up by
constexpr int64_t kAskAgain_ns = 10'000 * kMillisecond;
// A process on several GPUs has one gate for all of them. Closed between the halves of a collective, it keeps the GPU that has its half
// busy for ever; so while such a process drains together with others, the gate opens for a breath now and then. By the clock, because it
// is only open while it is closed for none of the GPUs.
constexpr int64_t kBreathEvery_ns = 32 * kMillisecond;
constexpr int64_t kBreath_ns = 4 * kMillisecond;
constexpr int64_t kLongWait_ns = 2'000 * kMillisecond;

}  // namespace

// ---- lock ----

std::atomic<int> Client::locks_{0};

void Client::set_state(State state) {
  locks_.fetch_add((state != State::kOut) - (state_ != State::kOut), std::memory_order_relaxed);
  state_ = state;
  draining_.store(state == State::kDraining, std::memory_order_release);
  changed_.notify_all();
}

void Client::context_there(bool there) {
  Lock lock(mutex_);
  if (!shared() || context_there_ == there) return;
  context_there_ = there;
  if (state_ == State::kPaused && !there) begin_drain(ReleaseReason::kEarly);  // the gate is not to stay closed for this GPU
  if (state_ != State::kOut) return;
  if (there) {
    gate.set(device_.gate_bit());
  } else {
    gate.clear(device_.gate_bit());
    lock_wanted_.store(false, std::memory_order_seq_cst);
  }
}

void Client::want_lock() {
  if (lock_wanted_.exchange(true, std::memory_order_seq_cst)) return;
  wanted_at_ns_.store(now_ns(), std::memory_order_relaxed);
  {
    Lock lock(mutex_);
    if (state_ == State::kPaused) return resume();
    // From this thread, which saves the time that the socket's thread takes to wake; but news of the memory goes first, and that is its to
    // send.
    if (connected_ && state_ == State::kOut && !request_sent_ && !memory_dirty_.load(std::memory_order_acquire)) {
      request_sent_ = true;
      return send(protocol::ReqLock{++request_});
    }
  }
  wake();
}

void Client::ask_why_waiting() {
  {
    Lock lock(mutex_);
    if (asked_why_at_ns_ != 0 && now_ns() - asked_why_at_ns_ < kAskAgain_ns) return;  // another thread that waits has
    asked_why_at_ns_ = now_ns();
    if (!connected_) return log(LogLevel::kInfo, "waits for GPU %d until a scheduler is back", device_.ordinal());
  }
  why_wanted_.store(true, std::memory_order_release);
  wake();
}

void Client::on_why_waiting(const protocol::WhyWaiting& message) {
  int64_t waited;
  {
    Lock lock(mutex_);
    if (message.question != question_ || state_ == State::kRunning) return;
    waited = now_ns() - wanted_at_ns_.load(std::memory_order_relaxed);
  }
  if (message.text[0] == '\0') return;
  log(LogLevel::kInfo, "has waited for GPU %d for %lld s: for %s", device_.ordinal(), static_cast<long long>(waited / 1'000'000'000),
      message.text);
}

void Client::on_lock(const protocol::LockOk& message) {
  uint64_t began = 0;
  bool context = false;
  {
    Lock lock(mutex_);
    if (!take_grant(message)) return;
    began = grant_.grant;
    context = context_there_;
  }
  if (!context || !load_at_once()) device_.mover().load(began);
}

// True: a turn begins with it.
bool Client::take_grant(const protocol::LockOk& message) {
  bool same = message.grant.epoch == grant_.epoch && message.grant.grant == grant_.grant;
  if (state_ == State::kOut) {
    if (same || message.grant.epoch != grant_.epoch || message.grant.grant < grant_.grant) return false;  // of a turn that is over
    grant_ = message.grant;
    budget_sequence_ = message.budget_sequence;
    budget_.store(message.budget, std::memory_order_release);
    opened_at_ns_ = 0;
    cancel_load_ = false;
    request_sent_ = false;
    set_state(State::kLoading);
    return true;
  }
  // The grant's new budget; or, after a restart of the scheduler, its name for the lock that we hold.
  grant_ = message.grant;
  budget_sequence_ = message.budget_sequence;
  budget_.store(message.budget, std::memory_order_release);
  changed_.notify_all();
  return false;
}

// Without the mover, if there is nothing to bring in. Only this thread gives it jobs while a turn begins, so it stays at rest.
bool Client::load_at_once() {
  const int64_t started = now_ns();
  Memory& memory = device_.memory();
  if (!device_.mover().at_rest() || !memory.run_if_complete()) return false;
  const bool open = loaded();
  if (!open) memory.set_running(false);
  protocol::SwapProgress done{};
  done.direction = static_cast<uint8_t>(protocol::SwapDirection::kIn);
  done.finished = 1;
  done.failed = open ? 0 : 1;
  done.elapsed_ns = static_cast<uint64_t>(now_ns() - started);
  done.memory = memory.report();
  {
    Lock lock(mutex_);
    done.id = grant_.grant;
  }
  progress(done);
  if (open) {
    memory.forget_host_copies();
  } else {
    load_stopped();
  }
  return true;
}

void Client::on_drop(const protocol::DropLock& message) {
  Lock lock(mutex_);
  if (message.grant.epoch != grant_.epoch || message.grant.grant != grant_.grant) return;
  drop_attempt_ = message.attempt;
  const bool together = message.together != 0;
  switch (state_) {
    case State::kOut:
      return;  // released meanwhile
    case State::kLoading:
      cancel_load_ = true;
      changed_.notify_all();
      return;
    case State::kRunning:
    case State::kPaused:
      begin_drain(ReleaseReason::kDropped, together);
      return;
    case State::kDraining:
      drain_reason_ = ReleaseReason::kDropped;
      drain_pauses_ = false;
      if (!drain_done_) {
        drain_together_ = together;
      } else if (drain_together_) {
        begin_drain(ReleaseReason::kDropped, together);  // all have drained: with nothing left to wait for it ends at once
      }
      return;
  }
}

void Client::on_keep(const protocol::Grant& grant) {
  Lock lock(mutex_);
  if (grant.epoch != grant_.epoch || grant.grant != grant_.grant) return;
  breath_ends_ns_ = 0;
  if (state_ == State::kDraining && drain_together_) go_on();
}

void Client::open_gate() {
  set_state(State::kRunning);
  gate.clear(device_.gate_bit());
  if (waiters_ > 0) wake();  // the socket's thread looks for idleness from now on; it may have heard of them while memory came in
  if (limited_) {
    idle_watch_.begin(gate.submissions());
    device_.mover().watch_idle();
  }
}

void Client::go_on() {
  drain_abandoned_ = true;
  drain_together_ = drain_pauses_ = false;
  breath_ends_ns_ = 0;
  released_idle_ = false;
  if (drain_of_pause_) return resume();
  open_gate();
}

void Client::begin_drain(ReleaseReason reason, bool together) {
  drain_together_ = together;
  drain_pauses_ = false;
  drain_of_pause_ = state_ == State::kPaused || (state_ == State::kDraining && drain_of_pause_);
  breath_ends_ns_ = 0;
  drain_reason_ = reason;
  drain_started_ns_ = now_ns();
  // A limit ends turns often, and with little in flight: what is left may be one long kernel, which no other attempt would find shorter.
  const int64_t patience = drain_patience_.value_ns();
  drain_deadline_ns_ = drain_started_ns_ + (limited_ ? std::max(patience, kLimitedPatience_ns) : patience);
  drain_abandoned_ = false;
  drain_done_ = false;
  set_state(State::kDraining);
  gate.set(device_.gate_bit());
  device_.mover().drain(++drain_);
}

// A drain past its time: what runs may be waiting for what threads at the gate hold back. Let them go on, and say so. With nobody at the
// gate the work is more likely just long, and waiting for it costs the program nothing; but the scheduler is to know before others have
// waited for long.
void Client::check_drain() {
  Lock lock(mutex_);
  if (state_ != State::kDraining || now_ns() < drain_deadline_ns_) return;
  if (drain_done_) {
    drain_deadline_ns_ = now_ns() + kTick_ns;
    return;
  }
  // A thread that waits for memory holds things back like one at the gate: the capture that it is in the middle of, for example.
  const bool quiet = gate.waiting() == 0 && growth_state_ != GrowthState::kAsked;
  if (quiet && now_ns() - drain_started_ns_ < std::max(kQuietPatience_ns, drain_patience_.value_ns())) {
    drain_deadline_ns_ = now_ns() + kTick_ns;
    return;
  }
  log(LogLevel::kInfo, "the GPU work of this program did not end within %lld ms; it keeps the GPU for now",
      static_cast<long long>((now_ns() - drain_started_ns_) / kMillisecond));
  drain_patience_.gave_up(Pacer::work_seen().longest_ns(now_ns()));
  go_on();
  if (drain_reason_ == ReleaseReason::kDropped) {
    protocol::LockReleased message{};
    message.grant = grant_;
    message.reason = static_cast<uint8_t>(ReleaseReason::kNotDrained);
    message.drain_ns = static_cast<uint64_t>(now_ns() - drain_started_ns_);
    message.memory = device_.memory().report();
    send(message);
  }
}

bool Client::wants_breath() {
  return state_ == State::kDraining && drain_together_ && !drain_done_ && locks_.load(std::memory_order_relaxed) > 1;
}

int64_t Client::next_breath_ns() { return (std::max(drain_started_ns_, now_ns()) / kBreathEvery_ns + 1) * kBreathEvery_ns; }

void Client::check_breath() {
  Lock lock(mutex_);
  const int64_t now = now_ns();
  if (breath_ends_ns_ != 0) {
    if (now < breath_ends_ns_) return;
    if (state_ != State::kRunning) {  // it left by itself meanwhile
      breath_ends_ns_ = 0;
      return;
    }
    const int64_t started = drain_started_ns_, deadline = drain_deadline_ns_;
    begin_drain(ReleaseReason::kDropped, true);
    drain_started_ns_ = started;
    drain_deadline_ns_ = deadline;
    return;
  }
  if (!wants_breath() || now % kBreathEvery_ns >= kBreath_ns || now - drain_started_ns_ < kBreath_ns || gate.waiting() == 0) return;
  go_on();
  breath_ends_ns_ = now - now % kBreathEvery_ns + kBreath_ns;
}

bool Client::drain_wanted(uint64_t drain) {
  Lock lock(mutex_);
  return state_ == State::kDraining && !drain_abandoned_ && drain == drain_;
}

bool Client::drains_together(uint64_t drain) {
  Lock lock(mutex_);
  return drain == drain_ && drain_together_;
}

bool Client::drained(uint64_t drain) {
  Lock lock(mutex_);
  if (state_ != State::kDraining || drain_abandoned_ || drain != drain_) return false;
  drain_done_ = true;
  drain_patience_.drained(now_ns() - drain_started_ns_);
  if (drain_pauses_ && context_there_) {
    pause();
    return false;
  }
  if (!drain_together_) return true;
  if (connected_) {
    send(protocol::Drained{grant_, drop_attempt_});
  } else {
    go_on();
  }
  return false;
}

void Client::released() {
  Lock lock(mutex_);
  release(drain_reason_);
}

// From when a thread that had waited got past the gate; the gate's opening, if none has said so.
uint64_t Client::used_ns(int64_t work_ended_ns) {
  if (opened_at_ns_ == 0) return 0;
  const int64_t first = std::max(first_use_ns_.load(std::memory_order_relaxed), opened_at_ns_);
  return static_cast<uint64_t>(std::max<int64_t>(work_ended_ns - first, 0));
}

void Client::release(ReleaseReason reason) {
  protocol::LockReleased message{};
  message.grant = grant_;
  message.reason = static_cast<uint8_t>(reason);
  const int64_t now = now_ns();
  int64_t work_ended = now;
  message.drain_ns = static_cast<uint64_t>(now - drain_started_ns_);
  if (reason == ReleaseReason::kEarly) {
    work_ended = released_idle_ ? idle_since_ns_ : last_work_ns_;
    message.idle_us = static_cast<uint32_t>(std::clamp<int64_t>((now - work_ended) / 1000, 0, UINT32_MAX));
  }
  message.used_ns = used_ns(work_ended);
  memory_dirty_.store(false, std::memory_order_seq_cst);  // before the report: what changes after it is told by itself
  message.memory = device_.memory().report();
  budget_.store(0, std::memory_order_release);
  watch(0, limited_);
  memory_waiters_.store(0, std::memory_order_relaxed);
  released_early_ = reason == ReleaseReason::kEarly && !released_idle_;
  release_cost_ns_ = swap_cost_ns_;
  growth_state_ = GrowthState::kNone;
  request_sent_ = false;
  breath_ends_ns_ = 0;
  set_state(State::kOut);
  send(message);
  // In this order: a thread counts itself as waiting before it sets lock_wanted_, so one of the two is seen.
  lock_wanted_.store(false, std::memory_order_seq_cst);
  if (!context_there_) {
    gate.clear(device_.gate_bit());  // who waits there wants other GPUs
  } else if (gate.waiting() > 0) {
    wanted_at_ns_.store(now_ns(), std::memory_order_relaxed);
    lock_wanted_.store(true, std::memory_order_seq_cst);
  }
  wake();
}

bool Client::load_cancelled() {
  Lock lock(mutex_);
  return cancel_load_;
}

bool Client::wait_for_budget(size_t resident, int64_t deadline_ns) {
  Lock lock(mutex_);
  bool in_time = true;
  while (!cancel_load_ && budget() < resident && in_time) {
    if (deadline_ns == INT64_MAX) {
      changed_.wait(mutex_);
    } else {
      in_time = changed_.wait_until(mutex_, deadline_ns);
    }
  }
  return !cancel_load_ && budget() >= resident;
}

bool Client::loaded() {
  Lock lock(mutex_);
  if (cancel_load_) return false;
  if (released_early_) {
    // The pause that was taken for idleness: worth giving the GPU up for, or one that is usual and to be sat out next time.
    pause_watch_.came_back(wanted_at_ns_.load(std::memory_order_relaxed) - last_work_ns_, release_cost_ns_, now_ns());
    released_early_ = false;
  }
  begin_use();
  return true;
}

void Client::begin_use() {
  if (released_idle_) {
    const int64_t wanted_at = wanted_at_ns_.load(std::memory_order_relaxed);
    idle_watch_.came_back(wanted_at - idle_since_ns_, now_ns() - wanted_at);
    released_idle_ = false;
  }
  // The wait for the turn was no pause of the program.
  seen_submissions_ = gate.submissions();
  last_submission_ns_ = opened_at_ns_ = now_ns();
  first_use_ns_.store(0, std::memory_order_relaxed);
  idle_check_asked_ = false;
  turn_unused_ = true;
  lock_wanted_.store(false, std::memory_order_release);
  open_gate();
}

void Client::load_stopped() {
  Lock lock(mutex_);
  drain_started_ns_ = now_ns();
  bool wanted = lock_wanted_.load(std::memory_order_acquire);
  release(ReleaseReason::kDropped);
  if (wanted && context_there_) lock_wanted_.store(true, std::memory_order_release);
}

void Client::program_ends() {
  Lock lock(mutex_);
  cancel_load_ = true;
  changed_.notify_all();
}

void Client::progress(const protocol::SwapProgress& progress) {
  Lock lock(mutex_);
  send(progress);
}

bool Client::holds_lock() {
  Lock lock(mutex_);
  return state_ != State::kOut;
}

// ---- memory ----

void Client::memory_changed() {
  if (shared() && !memory_dirty_.exchange(true, std::memory_order_acq_rel)) wake();
}

// Without a scheduler for longer than a restart takes, nobody makes room; what is free on the GPU may be used.
bool Client::grow_alone(size_t bytes) {
  if (connected_ || now_ns() - disconnected_at_ns_ < kLongWait_ns) return false;
  size_t free_bytes = 0;
  size_t total = 0;
  mutex_.unlock();
  bool known = real_driver().cuMemGetInfo_v2(&free_bytes, &total) == cuda::CUDA_SUCCESS;
  mutex_.lock();
  if (!known || free_bytes < bytes || connected_ || growth_state_ != GrowthState::kAsked) return false;
  budget_.store(std::max(budget(), device_.memory().resident() + bytes), std::memory_order_release);
  growth_state_ = GrowthState::kGranted;
  return true;
}

Client::Growth Client::grow(size_t bytes) {
  if (!shared()) return Growth::kOutOfMemory;
  Lock lock(mutex_);
  int64_t started = now_ns();
  bool told = false;
  auto lost = [&]() REQUIRES(mutex_) { return state_ == State::kOut || state_ == State::kLoading; };
  while (growth_state_ != GrowthState::kNone && !lost()) changed_.wait(mutex_);
  if (lost()) return Growth::kLostLock;
  if (device_.memory().resident() + bytes <= budget()) return Growth::kGranted;
  growth_state_ = GrowthState::kAsked;
  growth_wanted_ = bytes;
  ++growth_request_;
  send_memory(bytes);
  while (growth_state_ == GrowthState::kAsked && !lost()) {
    if (grow_alone(bytes)) break;
    if (!changed_.wait_until(mutex_, now_ns() + kLongWait_ns) && !told) {
      told = true;
      log(LogLevel::kInfo, "an allocation of %zu bytes waits until other programs have made room on GPU %d (for %lld s)", bytes,
          device_.ordinal(), static_cast<long long>((now_ns() - started) / 1'000'000'000));
    }
  }
  GrowthState end = growth_state_;
  growth_state_ = GrowthState::kNone;
  changed_.notify_all();
  if (end == GrowthState::kGranted) return Growth::kGranted;
  return end == GrowthState::kRefused ? Growth::kOutOfMemory : Growth::kLostLock;
}

}  // namespace nvshare::interposer
