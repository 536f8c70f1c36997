// This process's turns on one GPU. What is decided about them is turn::step's (turn/turn.h): whatever happens becomes an event in the
// thread that sees it, under the mutex, and the effects are carried out before that is given up. What needs the mutex of Blocks follows
// after it: take() says so.
//
// Thread-safe. Its mutex comes after Blocks' and before Link's and SwapEngine's; callbacks into DeviceMemory happen without it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "interposer/sync.h"
#include "interposer/turn/turn.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;

// What threads read of a turn without its mutex, as of the last step; and when a thread first used it.
class TurnSigns {
 public:
  // The budget in force; SIZE_MAX when unshared.
  size_t budget() const { return budget_.load(std::memory_order_acquire); }
  // The gate is closed but it is not settled that the lock goes: an allocation waits until it is.
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  // Others of the tenant, on other GPUs, run their turn together with this client's: without the lock it may not allocate, because more
  // than it had when that turn began may come to need what its neighbours have, and they what it has (docs/adr/0009).
  bool gang_runs() const { return gang_runs_.load(std::memory_order_acquire); }
  // Others wait for memory of the GPU.
  bool others_wait_for_memory() const { return memory_waiters_.load(std::memory_order_relaxed) > 0; }
  // Under a compute limit, where each hand-over counts: a message that comes in may open the gate.
  bool hurried() const { return hurried_.load(std::memory_order_relaxed); }
  // The gate is closed for a drain, and the scheduler may be told ahead when the work ends.
  bool end_wanted() const { return end_wanted_.load(std::memory_order_relaxed); }
  // A thread that waited for the lock submits now.
  void used_from(int64_t now_ns) {
    int64_t none = 0;
    first_use_ns_.compare_exchange_strong(none, now_ns, std::memory_order_relaxed);
  }
  // Its first submission has returned.
  void submitted(int64_t now_ns) {
    int64_t none = 0;
    first_submitted_ns_.compare_exchange_strong(none, now_ns, std::memory_order_relaxed);
  }

 private:
  friend class Turns;
  std::atomic<size_t> budget_{SIZE_MAX};
  std::atomic<bool> draining_{false};
  std::atomic<bool> gang_runs_{false};
  std::atomic<uint32_t> memory_waiters_{0};
  std::atomic<bool> hurried_{false};
  std::atomic<bool> end_wanted_{false};
  std::atomic<int64_t> first_use_ns_{0};  // in this turn; 0: not yet
  std::atomic<int64_t> first_submitted_ns_{0};
};

class Turns {
 public:
  explicit Turns(Device& device) : device_(device) {}

  TurnSigns signs;

  using Happening = decltype(turn::Event::what);
  // What came of an event; `load` and `make_room` are for the caller to do.
  struct Outcome {
    bool agreed = false;
    turn::Effects::Look look{false, 0};
    uint64_t load = 0;  // a grant: the program's memory is to come in
    bool make_room = false;
  };
  // An event: decided and carried out at once.
  Outcome take(const Happening& happening);
  // A question to the turn as it stands: turn.h has them.
  template <typename Question>
  auto ask(Question question) {
    Lock lock(mutex_);
    return question(static_cast<const turn::Turn&>(turn_));
  }

  // A thread of the program found the gate closed. Cheap when already asked.
  void want_lock();
  enum class Growth { kGranted, kOutOfMemory, kLostLock };
  // Waits until the budget covers `bytes` more than is resident. With the lock only.
  Growth grow(size_t bytes);
  // Until the budget reaches `resident`; false: the load is cancelled, or not by then.
  bool wait_for_budget(size_t resident, int64_t deadline_ns);
  // Allocated or resident bytes changed: the scheduler hears of it within about a millisecond.
  void memory_changed();

  // Charges `bytes` against the tenant's limit. As a rule at once; else it asks the scheduler and waits, a bounded time. False: past the
  // limit. No lock held, outside the gate.
  bool charge(size_t bytes);
  // What cannot be refused any more.
  void charge_unasked(size_t bytes);

  // From the link. ----
  // There is a scheduler, or there is none after all.
  void set_shared(bool shared);
  // What the next scheduler is told; and that it has answered.
  void introduce(protocol::Register* hello);
  void connected(const protocol::Register& hello, const protocol::Registered& terms, FileDescriptor socket);
  // Returns whether it was connected.
  bool disconnected();
  void recall(const protocol::RecallHeadroom& message);
  // Sends what changed, before anything else that is asked of the scheduler.
  void flush();
  // With others waiting for memory, or nobody to say who does, what is not in use is not ours to take without asking.
  void hold_to_resident();

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  turn::Effects step(const Happening& what) REQUIRES(mutex_);
  turn::Seen see() REQUIRES(mutex_);  // what turn::step is told besides the event
  void show() REQUIRES(mutex_);       // in `signs`, what others read without the mutex
  void carry_out(const turn::OpenGate&) REQUIRES(mutex_);
  void carry_out(const turn::CloseGate&) REQUIRES(mutex_);
  void carry_out(const turn::WakeGate&) REQUIRES(mutex_);
  void carry_out(const turn::WatchGate& effect) REQUIRES(mutex_);
  void carry_out(const turn::ForgetWish&) REQUIRES(mutex_);
  void carry_out(const turn::KnowWish&) REQUIRES(mutex_);
  void carry_out(const turn::LookForWaiters&) REQUIRES(mutex_);
  void carry_out(const turn::BeginUse&) REQUIRES(mutex_);
  void carry_out(const turn::SetBudget& effect) REQUIRES(mutex_);
  void carry_out(const turn::StartDrain& effect) REQUIRES(mutex_);
  void carry_out(const turn::StartLoad& effect) REQUIRES(mutex_);
  void carry_out(const turn::StartPrefetch& effect) REQUIRES(mutex_);
  void carry_out(const turn::MakeRoom&) REQUIRES(mutex_);
  void carry_out(const turn::WatchIdle&) REQUIRES(mutex_);
  void carry_out(const turn::MemoryReportDue&) REQUIRES(mutex_);
  void carry_out(const turn::WakeLink&) REQUIRES(mutex_);
  void carry_out(const turn::SendMemory& effect) REQUIRES(mutex_);
  void carry_out(const turn::AskHeadroom& effect) REQUIRES(mutex_);
  void carry_out(const turn::GrowLease& effect) REQUIRES(mutex_);
  void carry_out(const turn::TryLease& effect) REQUIRES(mutex_);
  void carry_out(const turn::Log& effect) REQUIRES(mutex_);
  void carry_out(const protocol::LockReleased& message) REQUIRES(mutex_);
  template <typename Message>
  void carry_out(const Message& message) REQUIRES(mutex_);
  bool grow_alone(size_t bytes) REQUIRES(mutex_);  // given up while waiting

  static std::atomic<int> locks_;  // that this process holds, on all its GPUs

  Device& device_;
  Mutex mutex_;
  Condition changed_;
  turn::Turn turn_ GUARDED_BY(mutex_);
  uint64_t load_due_ GUARDED_BY(mutex_) = 0;  // asked for by the step, for after the section
  bool room_due_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> memory_dirty_{false};
  std::atomic<bool> wish_known_{false};  // a thread that finds the gate closed need not say so again
};

}  // namespace nvshare::interposer
