// The client's turns: what happens goes to turn::step, what that wants is carried out here.
#include <algorithm>

#include "interposer/gate/gate.h"
#include "interposer/gate/pacer.h"
#include "interposer/link/client.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/turn/reports.h"

namespace nvshare::interposer {

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kAskAgain_ns = 10'000 * kMillisecond;
constexpr int64_t kLongWait_ns = 2'000 * kMillisecond;

}  // namespace

// ---- the turn ----

std::atomic<int> Client::locks_{0};

turn::Effects Client::step(const decltype(turn::Event::what)& what) {
  turn::Event event{{}, what};
  turn::Seen& seen = event.seen;
  seen.submissions = gate.submissions();
  const Gate::Waited waited = gate.last_waited();
  seen.waited_at = waited.at_ns;
  seen.waited_after = waited.submissions;
  seen.submitting = gate.busy();
  seen.waiting = gate.waiting() > 0;
  seen.capturing = process().captures.capturing();
  seen.other_gpus = locks_.load(std::memory_order_relaxed) > (turn::holds_lock(turn_) ? 1 : 0);
  seen.first_use = first_use_ns_.load(std::memory_order_relaxed);
  const int64_t now = now_ns();
  seen.longest_work_ns = Pacer::work_seen().longest_ns(now);
  const bool held = turn::holds_lock(turn_);
  const turn::Effects effects = turn::step(turn_, event, now);
  // What others read without the mutex.
  locks_.fetch_add(turn::holds_lock(turn_) - held, std::memory_order_relaxed);
  draining_.store(turn_.phase == turn::Phase::kDraining, std::memory_order_release);
  gang_runs_.store(turn_.gang_runs, std::memory_order_release);
  memory_waiters_.store(turn_.idle.terms().memory_waiters, std::memory_order_relaxed);
  hurried_news_.store(turn_.connected && turn_.idle.terms().limited ? socket_.get() : -1, std::memory_order_relaxed);
  for (const turn::Effect& effect : effects) {
    std::visit([this](const auto& one) REQUIRES(mutex_) { carry_out(one); }, effect);
  }
  changed_.notify_all();
  return effects;
}

void Client::carry_out(const turn::OpenGate&) { gate.clear(device_.gate_bit()); }
void Client::carry_out(const turn::CloseGate&) { gate.set(device_.gate_bit()); }
void Client::carry_out(const turn::WakeGate&) { gate.clear(0); }
void Client::carry_out(const turn::WatchGate& effect) { gate.watch(effect.closely ? Gate::kLimited : Gate::kWatched, effect.wanted); }
void Client::carry_out(const turn::ForgetWish&) { wish_known_.store(false, std::memory_order_seq_cst); }
void Client::carry_out(const turn::KnowWish&) { wish_known_.store(true, std::memory_order_seq_cst); }
// In this order: a thread counts itself as waiting before it sets wish_known_, so one of the two is seen.
void Client::carry_out(const turn::LookForWaiters&) {
  wish_known_.store(false, std::memory_order_seq_cst);
  step(turn::WaitersSeen{gate.waiting() > 0});
}
void Client::carry_out(const turn::BeginUse&) { first_use_ns_.store(0, std::memory_order_relaxed); }
void Client::carry_out(const turn::SetBudget& effect) { budget_.store(effect.bytes, std::memory_order_release); }
void Client::carry_out(const turn::StartDrain& effect) { device_.mover().drain(effect.drain); }
void Client::carry_out(const turn::StartLoad& effect) { load_due_ = effect.grant; }
void Client::carry_out(const turn::StartPrefetch& effect) { device_.mover().prefetch(effect.prefetch); }
void Client::carry_out(const turn::MakeRoom&) { room_due_ = true; }
void Client::carry_out(const turn::WatchIdle&) { device_.mover().watch_idle(); }
void Client::carry_out(const turn::NewsDue&) { memory_dirty_.store(true, std::memory_order_release); }
void Client::carry_out(const turn::WakeLink&) { wake(); }
void Client::carry_out(const turn::SendMemory& effect) {
  const protocol::Memory memory = device_.memory().report();
  send(turn::memory_update(turn_, effect, memory, budget_.load(std::memory_order_acquire), device_.limit().bytes()));
}
void Client::carry_out(const protocol::LockReleased& message) {
  protocol::LockReleased full = message;
  // Before the report: what changes after it is told by itself. A client that keeps the lock has its other news to send still.
  if (!turn::holds_lock(turn_)) memory_dirty_.store(false, std::memory_order_seq_cst);
  full.memory = device_.memory().report();
  send(full);
}
void Client::carry_out(const turn::Log& effect) {
  const long long after_ms = effect.after_ns / kMillisecond;
  switch (effect.what) {
    case turn::Log::What::kDrainGivenUp:
      return log(LogLevel::kInfo, "the GPU work of this program did not end within %lld ms; it keeps the GPU for now", after_ms);
    case turn::Log::What::kIdle:
      return log(LogLevel::kDebug, "idle for %lld ms: giving the GPU up", after_ms);
  }
}

// ---- messages ----

void Client::on_lock(const protocol::LockOk& message) {
  uint64_t load = 0;
  bool context = false;
  {
    Lock lock(mutex_);
    load_due_ = 0;
    step(message);
    load = load_due_;
    context = turn_.context;
  }
  if (load == 0) return;
  if (!context || !load_at_once()) device_.mover().load(load);
}

// Without the mover, if there is nothing to bring in. Only this thread gives it jobs while a turn begins, so it stays at rest.
bool Client::load_at_once() {
  const int64_t started = now_ns();
  Memory& memory = device_.memory();
  if (!device_.mover().at_rest() || !memory.residency.run_if_complete()) return false;
  const bool open = loaded();
  if (!open) memory.residency.set_running(false);
  protocol::SwapProgress done{};
  done.direction = static_cast<uint8_t>(protocol::SwapDirection::kIn);
  done.finished = 1;
  done.failed = open ? 0 : 1;
  done.elapsed_ns = static_cast<uint64_t>(now_ns() - started);
  done.memory = memory.report();
  {
    Lock lock(mutex_);
    done.id = turn_.grant.grant;
  }
  progress(done);
  if (open) {
    memory.copies.forget(device_.mover().keeps_host_copies());
  } else {
    load_stopped();
  }
  return true;
}

void Client::on_contention(const protocol::Contention& message) {
  {
    Lock lock(mutex_);
    room_due_ = false;
    step(message);
    if (!room_due_) return;
  }
  device_.memory().allocations.trim_cache();
  hold_to_resident();
  Lock lock(mutex_);
  step(turn::MemoryChanged{});
}

// ---- threads of the program ----

void Client::context_there(bool there) {
  Lock lock(mutex_);
  if (shared()) step(turn::ContextChanged{there});
}

void Client::want_lock() {
  if (wish_known_.exchange(true, std::memory_order_seq_cst)) return;
  const int64_t at = now_ns();
  Lock lock(mutex_);
  step(turn::Wished{at, memory_dirty_.load(std::memory_order_acquire)});
}

void Client::ask_why_waiting() {
  {
    Lock lock(mutex_);
    if (asked_why_at_ns_ != 0 && now_ns() - asked_why_at_ns_ < kAskAgain_ns) return;  // another thread that waits has
    asked_why_at_ns_ = now_ns();
    if (!turn_.connected) return log(LogLevel::kInfo, "waits for GPU %d until a scheduler is back", device_.ordinal());
  }
  why_wanted_.store(true, std::memory_order_release);
  wake();
}

void Client::on_why_waiting(const protocol::WhyWaiting& message) {
  int64_t waited;
  {
    Lock lock(mutex_);
    if (message.question != question_ || turn::may_run(turn_)) return;
    waited = now_ns() - turn_.wish.at;
  }
  if (message.text[0] == '\0') return;
  log(LogLevel::kInfo, "has waited for GPU %d for %lld s: for %s", device_.ordinal(), static_cast<long long>(waited / 1'000'000'000),
      message.text);
}

// ---- the mover ----

bool Client::drain_wanted(uint64_t drain) {
  Lock lock(mutex_);
  return turn::drain_wanted(turn_, drain);
}

bool Client::drains_together(uint64_t drain) {
  Lock lock(mutex_);
  return turn::drains_together(turn_, drain);
}

bool Client::drained(uint64_t drain) {
  Lock lock(mutex_);
  return step(turn::WorkDrained{drain}).agreed;
}

void Client::released() {
  Lock lock(mutex_);
  step(turn::MemoryLeft{});
}

bool Client::load_cancelled() {
  Lock lock(mutex_);
  return turn_.cancel_load;
}

bool Client::wait_for_budget(size_t resident, int64_t deadline_ns) {
  Lock lock(mutex_);
  bool in_time = true;
  while (!turn_.cancel_load && budget() < resident && in_time) {
    if (deadline_ns == INT64_MAX) {
      changed_.wait(mutex_);
    } else {
      in_time = changed_.wait_until(mutex_, deadline_ns);
    }
  }
  return !turn_.cancel_load && budget() >= resident;
}

bool Client::loaded() {
  Lock lock(mutex_);
  return step(turn::LoadEnded{}).agreed;
}

void Client::load_stopped() {
  Lock lock(mutex_);
  step(turn::LoadStopped{});
}

bool Client::prefetch_wanted(uint64_t prefetch) {
  Lock lock(mutex_);
  return turn::prefetch_wanted(turn_, prefetch);
}

void Client::prefetched(uint64_t prefetch) {
  Lock lock(mutex_);
  step(turn::PrefetchEnded{prefetch});
}

void Client::program_ends() {
  Lock lock(mutex_);
  step(turn::ProgramEnds{});
}

void Client::progress(const protocol::SwapProgress& progress) {
  Lock lock(mutex_);
  step(progress);
}

bool Client::holds_lock() {
  Lock lock(mutex_);
  return turn::holds_lock(turn_);
}

bool Client::keeps_caches() {
  Lock lock(mutex_);
  return turn_.idle.terms().limited && turn_.idle.terms().memory_waiters == 0;
}

turn::Effects::Look Client::idle_step() {
  Lock lock(mutex_);
  return step(turn::IdleLook{}).look;
}

void Client::work_ended(int64_t waited_from_ns) {
  Lock lock(mutex_);
  step(turn::WorkEnded{waited_from_ns});
}

// ---- memory ----

void Client::memory_changed() {
  if (shared() && !memory_dirty_.exchange(true, std::memory_order_acq_rel)) wake();
}

// Without a scheduler for longer than a restart takes, nobody makes room; what is free on the GPU may be used.
bool Client::grow_alone(size_t bytes) {
  if (!turn::alone(turn_) || now_ns() - turn_.disconnected_at < kLongWait_ns) return false;
  size_t free_bytes = 0;
  size_t total = 0;
  mutex_.unlock();
  bool known = real_driver().cuMemGetInfo_v2(&free_bytes, &total) == cuda::CUDA_SUCCESS;
  mutex_.lock();
  if (!known || free_bytes < bytes) return false;
  step(turn::GrowthAlone{std::max(budget(), device_.memory().use.resident() + bytes)});
  return turn_.growth.answer == turn::Growth::Answer::kGranted;
}

Client::Growth Client::grow(size_t bytes) {
  using Answer = turn::Growth::Answer;
  if (!shared()) return Growth::kOutOfMemory;
  Lock lock(mutex_);
  int64_t started = now_ns();
  bool told = false;
  while (turn_.growth.answer != Answer::kNone && !turn::lost_turn(turn_)) changed_.wait(mutex_);
  if (turn::lost_turn(turn_)) return Growth::kLostLock;
  if (device_.memory().use.resident() + bytes <= budget()) return Growth::kGranted;
  step(turn::GrowthWanted{bytes});
  while (turn_.growth.answer == Answer::kAsked && !turn::lost_turn(turn_)) {
    if (grow_alone(bytes)) break;
    if (!changed_.wait_until(mutex_, now_ns() + kLongWait_ns) && !told) {
      told = true;
      log(LogLevel::kInfo, "an allocation of %zu bytes waits until other programs have made room on GPU %d (for %lld s)", bytes,
          device_.ordinal(), static_cast<long long>((now_ns() - started) / 1'000'000'000));
    }
  }
  const Answer end = turn_.growth.answer;
  step(turn::GrowthEnded{});
  if (end == Answer::kGranted) return Growth::kGranted;
  return end == Answer::kRefused ? Growth::kOutOfMemory : Growth::kLostLock;
}

}  // namespace nvshare::interposer
