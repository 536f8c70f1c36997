#include "interposer/link/turns.h"

#include <algorithm>
#include <utility>

#include "base/amount.h"
#include "interposer/gate/gate.h"
#include "interposer/gate/pacer.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/turn/reports.h"

namespace nvshare::interposer {

namespace {

constexpr int64_t kOneMillisecond = 1'000'000;
constexpr int64_t kLongWait_ns = 2'000 * kOneMillisecond;
constexpr int64_t kLook_ns = 500 * kOneMillisecond;             // for the program's end
constexpr int64_t kAlonePatience_ns = 2'000 * kOneMillisecond;  // without a scheduler: as long as a restart takes

}  // namespace

// ---- events and effects ----

std::atomic<int> Turns::locks_{0};

Turns::Outcome Turns::take(const Happening& happening) {
  Lock lock(mutex_);
  load_due_ = 0;
  room_due_ = false;
  if (const auto* headroom = std::get_if<protocol::Headroom>(&happening)) device_.limit().update(*headroom);
  const turn::Effects effects = step(happening);
  return {effects.agreed, effects.look, load_due_, room_due_};
}

turn::Seen Turns::see() {
  turn::Seen seen;
  seen.submissions = device_.process().gate.submissions();
  const ProgramWaits::Last waited = device_.process().gate.waits.last();
  seen.waited_at = waited.at_ns;
  seen.waited_after = waited.entries;
  seen.entries = *device_.process().gate.entries(true);
  seen.submitting = device_.process().gate.busy();
  seen.waiting = device_.process().gate.waiting() > 0;
  seen.capturing = device_.process().captures.capturing();
  seen.other_gpus = locks_.load(std::memory_order_relaxed) > (turn::holds_lock(turn_) ? 1 : 0);
  seen.first_use = signs.first_use_ns_.load(std::memory_order_relaxed);
  seen.first_submitted = signs.first_submitted_ns_.load(std::memory_order_relaxed);
  seen.launch_ns = device_.swap_engine().launch_ns();
  seen.longest_work_ns = Pacer::work_seen().longest_ns(now_ns());
  return seen;
}

void Turns::show() {
  signs.draining_.store(turn_.phase == turn::Phase::kDraining, std::memory_order_release);
  signs.gang_runs_.store(turn_.gang_runs, std::memory_order_release);
  signs.memory_waiters_.store(turn_.idle.terms().memory_waiters, std::memory_order_relaxed);
  signs.end_wanted_.store(turn_.connected && turn::may_tell_end(turn_), std::memory_order_relaxed);
  signs.hurried_.store(turn_.connected && turn_.idle.terms().limited, std::memory_order_relaxed);
}

turn::Effects Turns::step(const Happening& what) {
  const turn::Event event{see(), what};
  const bool held = turn::holds_lock(turn_);
  const turn::Effects effects = turn::step(turn_, event, now_ns());
  locks_.fetch_add(turn::holds_lock(turn_) - held, std::memory_order_relaxed);
  show();
  for (const turn::Effect& effect : effects) {
    std::visit([this](const auto& one) REQUIRES(mutex_) { carry_out(one); }, effect);
  }
  changed_.notify_all();
  return effects;
}

template <typename Message>
void Turns::carry_out(const Message& message) {
  device_.link().send(message);
}
void Turns::carry_out(const turn::OpenGate&) { device_.process().gate.clear(device_.gate_bit()); }
void Turns::carry_out(const turn::CloseGate&) { device_.process().gate.set(device_.gate_bit()); }
void Turns::carry_out(const turn::WakeGate&) { device_.process().gate.clear(0); }
void Turns::carry_out(const turn::WatchGate& effect) {
  device_.process().gate.watch(effect.closely ? Gate::kLimited : Gate::kWatched, effect.wanted);
}
void Turns::carry_out(const turn::ForgetWish&) { wish_known_.store(false, std::memory_order_seq_cst); }
void Turns::carry_out(const turn::KnowWish&) { wish_known_.store(true, std::memory_order_seq_cst); }
// In this order: a thread counts itself as waiting before it sets wish_known_, so one of the two is seen.
void Turns::carry_out(const turn::LookForWaiters&) {
  wish_known_.store(false, std::memory_order_seq_cst);
  step(turn::WaitersSeen{device_.process().gate.waiting() > 0});
}
void Turns::carry_out(const turn::BeginUse&) {
  signs.first_use_ns_.store(0, std::memory_order_relaxed);
  signs.first_submitted_ns_.store(0, std::memory_order_relaxed);
}
void Turns::carry_out(const turn::SetBudget& effect) { signs.budget_.store(effect.bytes, std::memory_order_release); }
void Turns::carry_out(const turn::StartDrain& effect) { device_.swap_engine().drain(effect.drain); }
void Turns::carry_out(const turn::StartLoad& effect) { load_due_ = effect.grant; }
void Turns::carry_out(const turn::StartPrefetch& effect) { device_.swap_engine().prefetch(effect.prefetch); }
void Turns::carry_out(const turn::MakeRoom&) { room_due_ = true; }
void Turns::carry_out(const turn::WatchIdle&) { device_.swap_engine().watch_idle(); }
void Turns::carry_out(const turn::MemoryReportDue&) { memory_dirty_.store(true, std::memory_order_release); }
void Turns::carry_out(const turn::WakeLink&) { device_.link().wake(); }
void Turns::carry_out(const turn::SendMemory& effect) {
  const protocol::MemoryReport memory = device_.memory().report();
  device_.link().send(turn::memory_update(turn_, effect, memory, signs.budget()));
}
void Turns::carry_out(const protocol::LockReleased& message) {
  protocol::LockReleased full = message;
  // Before the report: what changes after it is told by itself. A client that keeps the lock has the rest to report still.
  if (!turn::holds_lock(turn_)) memory_dirty_.store(false, std::memory_order_seq_cst);
  full.memory = device_.memory().report();
  device_.link().send(full);
}
void Turns::carry_out(const turn::Log& effect) {
  const long long after_ms = effect.after_ns / kOneMillisecond;
  switch (effect.what) {
    case turn::Log::What::kDrainGivenUp:
      return log(LogLevel::kInfo, "the GPU work of this program did not end within %lld ms; it keeps the GPU for now", after_ms);
    case turn::Log::What::kIdle:
      return log(LogLevel::kDebug, "idle for %lld ms: giving the GPU up", after_ms);
  }
}

void Turns::carry_out(const turn::AskHeadroom& effect) {
  const uint64_t returned = device_.limit().lease().give_back(protocol::kLeaseMax);
  device_.link().send(protocol::AskHeadroom{effect.request, effect.bytes, returned});
}
void Turns::carry_out(const turn::GrowLease& effect) { device_.limit().lease().grow_charged(effect.bytes, effect.charged); }
void Turns::carry_out(const turn::TryLease& effect) { step(turn::LeaseTried{device_.limit().lease().charge(effect.bytes)}); }

// ---- threads of the program, and the swap engine ----

void Turns::want_lock() {
  if (wish_known_.exchange(true, std::memory_order_seq_cst)) return;
  const int64_t at = now_ns();
  Lock lock(mutex_);
  step(turn::Wished{at, memory_dirty_.load(std::memory_order_acquire)});
}

bool Turns::wait_for_budget(size_t resident, int64_t deadline_ns) {
  Lock lock(mutex_);
  bool in_time = true;
  while (!turn_.cancel_load && signs.budget() < resident && in_time) in_time = changed_.wait_until(mutex_, deadline_ns);
  return !turn_.cancel_load && signs.budget() >= resident;
}

void Turns::memory_changed() {
  Link& link = device_.link();
  if (link.shared() && !memory_dirty_.exchange(true, std::memory_order_acq_rel)) link.wake();
}

// Without a scheduler nobody makes room; what is free on the GPU may be used.
bool Turns::grow_alone(size_t bytes) {
  if (!turn::helps_itself(turn_, now_ns())) return false;
  size_t free_bytes = 0;
  size_t total = 0;
  mutex_.unlock();
  bool known = real_driver().cuMemGetInfo_v2(&free_bytes, &total) == cuda::CUDA_SUCCESS;
  mutex_.lock();
  if (!known || free_bytes < bytes) return false;
  step(turn::GrowthAlone{std::max(signs.budget(), device_.memory().use.resident() + bytes)});
  return turn_.growth.answer == turn::Growth::Answer::kGranted;
}

Turns::Growth Turns::grow(size_t bytes) {
  using Answer = turn::Growth::Answer;
  if (!device_.link().shared()) return Growth::kOutOfMemory;
  Lock lock(mutex_);
  int64_t started = now_ns();
  bool told = false;
  while (turn_.growth.answer != Answer::kNone && !turn::lost_turn(turn_)) changed_.wait(mutex_);
  if (turn::lost_turn(turn_)) return Growth::kLostLock;
  if (device_.memory().use.resident() + bytes <= signs.budget()) return Growth::kGranted;
  step(turn::GrowthWanted{bytes});
  while (turn_.growth.answer == Answer::kAsked && !turn::lost_turn(turn_)) {
    if (grow_alone(bytes)) break;
    if (!changed_.wait_until(mutex_, now_ns() + kLongWait_ns) && !told) {
      told = true;
      log(LogLevel::kInfo, "an allocation of %s waits until other programs have made room on GPU %s (for %lld s)", amount(bytes).text,
          device_.gpu(), static_cast<long long>((now_ns() - started) / 1'000'000'000));
    }
  }
  const Answer end = turn_.growth.answer;
  step(turn::GrowthEnded{});
  if (end == Answer::kGranted) return Growth::kGranted;
  return end == Answer::kRefused ? Growth::kOutOfMemory : Growth::kLostLock;
}

// ---- headroom: a lease that grows and shrinks by messages (protocol/messages.h) ----

bool Turns::charge(size_t bytes) {
  using Answer = turn::Headroom::Answer;
  if (device_.limit().lease().charge(bytes)) [[likely]]
    return true;
  if (!device_.link().shared() || bytes > protocol::kLeaseMax) return false;
  Lock lock(mutex_);
  while (turn_.headroom.answer != Answer::kNone) changed_.wait(mutex_);  // of another thread
  if (device_.limit().lease().charge(bytes)) return true;
  step(turn::HeadroomWanted{bytes});
  while (turn_.headroom.answer == Answer::kAsked && !device_.process().ending()) {
    if (!turn_.connected && now_ns() - turn_.disconnected_at > kAlonePatience_ns) break;  // nobody who could say what the others have
    changed_.wait_until(mutex_, now_ns() + kLook_ns);
  }
  const bool charged = turn_.headroom.answer == Answer::kCharged;
  step(turn::HeadroomEnded{});
  return charged;
}

void Turns::charge_unasked(size_t bytes) {
  if (device_.limit().lease().charge(bytes)) return;
  Lock lock(mutex_);
  const uint64_t taken = device_.limit().lease().take(bytes);
  if (taken > 0) device_.link().send(protocol::HeadroomTaken{taken});
}

void Turns::recall(const protocol::RecallHeadroom& message) {
  Lock lock(mutex_);
  const uint64_t returned = device_.limit().lease().give_back(message.bytes);
  device_.link().send(protocol::HeadroomReturned{message.recall, returned, device_.limit().lease().charged()});
}

// ---- the link ----

void Turns::set_shared(bool shared) { signs.budget_.store(shared ? 0 : SIZE_MAX, std::memory_order_release); }

void Turns::introduce(protocol::Register* hello) {
  Lock lock(mutex_);
  turn::introduce(turn_, *hello);
  hello->lease = device_.limit().leased();
  hello->node_limit = device_.limit().by_node();
}

void Turns::connected(const protocol::Register& hello, const protocol::Registered& terms, FileDescriptor socket) {
  Link& link = device_.link();
  Lock lock(mutex_);
  MemoryLimit& limit = device_.limit();
  limit.set(terms);
  limit.log_limit();
  const uint64_t told = std::max(terms.lease, hello.lease);
  limit.lease().grow(told - hello.lease);
  link.open(std::move(socket), terms);
  constexpr uint16_t kTellsIfHeld = 3;  // Contention::held is since then
  step(turn::Connected{terms.epoch, hello.wants_lock != 0, terms.version >= kTellsIfHeld});
  link.send_about();
  // What was taken meanwhile.
  const uint64_t leased = limit.leased();
  if (leased > told) link.send(protocol::HeadroomTaken{leased - told});
  step(turn::Introduced{});
}

bool Turns::disconnected() {
  Lock lock(mutex_);
  const bool was_connected = turn_.connected;
  device_.link().close();
  step(turn::Disconnected{});
  return was_connected;
}

void Turns::flush() {
  if (memory_dirty_.load(std::memory_order_acquire) && signs.others_wait_for_memory()) hold_to_resident();
  Lock lock(mutex_);
  if (!turn_.connected) return;
  // What exit handlers free after the driver has gone is on the GPU until the process is: it is not to be given to others before.
  if (!device_.process().ending() && memory_dirty_.exchange(false, std::memory_order_acq_rel)) step(turn::MemoryChanged{});
  step(turn::ReportsSent{});
}

void Turns::hold_to_resident() {
  const auto [runs, kept] = ask([](const turn::Turn& turn) { return std::pair(turn::may_run(turn), turn::growth_kept(turn)); });
  if (runs) device_.memory().residency.lower_budget(signs.budget_, kept);
}

void Turns::reset_after_fork() {
  mutex_.reset_after_fork();
  signs.hurried_.store(false, std::memory_order_relaxed);
  signs.gang_runs_.store(false, std::memory_order_relaxed);
  turn_ = turn::Turn{};
  locks_.store(0, std::memory_order_relaxed);
}

}  // namespace nvshare::interposer
