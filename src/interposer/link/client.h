// The client: this process on one GPU, as the scheduler sees it. Owns the socket and the thread that reads it, and knows whether the
// process has the lock. Without a scheduler it is *unshared*: gate open, no budget, only the program's own memory limit.
//
// What it decides about its turns is turn::step's (turn/turn.h): whatever happens becomes an event in the thread that sees it, under the
// mutex, and the effects are carried out before that is given up. What needs Memory's mutex follows after it.
//
// Thread-safe. Its mutex comes after Memory's and before Mover's; callbacks into Memory happen without it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/descriptors.h"
#include "base/fd.h"
#include "interposer/sync.h"
#include "interposer/turn/turn.h"
#include "protocol/codec.h"

namespace nvshare::interposer {

class Device;

class Client {
 public:
  explicit Client(Device& device) : device_(device) {}

  // Connects and registers. False: no scheduler; the client stays unshared for good. With a reason to wait it waits until there is one.
  bool start(const char* waits_because);
  // Asks the scheduler what it would show this program of the GPU, without becoming a client: sets Device::limit(). For a
  // Client that is never started.
  void ask_only();
  // A connection to the scheduler; none, and errno says why, if there is no scheduler.
  static FileDescriptor open_socket();
  bool shared() const { return shared_.load(std::memory_order_acquire); }

  // The program has a context on this GPU, or has none (any more). Without one nothing can be submitted here and nothing brought in, so the
  // gate, which threads that use other GPUs pass as well, is not closed for this GPU then.
  void context_there(bool there);

  // Where a message comes in that may open the gate, under a compute limit, where each hand-over counts; else -1. Any thread; by the time
  // it is looked at the descriptor may be closed, or another file.
  int hurried_news() const { return hurried_news_.load(std::memory_order_relaxed); }
  int bell() const { return bell_.get(); }

  // A thread of the program found the gate closed. Cheap when already asked.
  void want_lock();
  // A thread has waited for long: asks the scheduler whom it waits for; the answer goes to the log.
  void ask_why_waiting();

  // A thread that waited for the lock submits now. Any thread, no lock.
  void used_from(int64_t now_ns) {
    int64_t none = 0;
    first_use_ns_.compare_exchange_strong(none, now_ns, std::memory_order_relaxed);
  }

  // The budget in force; SIZE_MAX when unshared.
  size_t budget() const { return budget_.load(std::memory_order_acquire); }
  // Charges `bytes` against the tenant's limit. As a rule at once; else it asks the scheduler and waits, a bounded time. False: past the
  // limit. No lock held, outside the gate.
  bool charge(size_t bytes);
  // What cannot be refused any more.
  void charge_unasked(size_t bytes);
  // How often it had to ask.
  uint64_t headroom_asks() const { return headroom_asks_.load(std::memory_order_relaxed); }
  // The program may not use this GPU: the scheduler says so, or a variable's wrong value, and why_barred() says why.
  const char* why_barred() const { return barred_by_; }
  bool barred() const { return barred_.load(std::memory_order_acquire); }
  // Freed memory may stay mapped: nobody else wants it.
  bool cache_allowed() const { return memory_waiters_.load(std::memory_order_relaxed) == 0; }

  enum class Growth { kGranted, kOutOfMemory, kLostLock };
  // Waits until the budget covers `bytes` more than is resident. With the lock only.
  Growth grow(size_t bytes);

  // The host arena has something to tell the scheduler. Takes no lock.
  void arena_changed();

  // All of its memory stays on the GPU from now on; `why` is a sentence's end, for people. Told to each scheduler.
  void keeps_memory(const char* why);

  // Allocated or resident bytes changed: the scheduler hears of it within about a millisecond.
  void memory_changed();

  // True while the gate is closed but it is not settled that the lock goes: an allocation waits until it is.
  bool draining() const { return draining_.load(std::memory_order_acquire); }

  // Others of the tenant, on other GPUs, run their turn together with this client's: without the lock it may not allocate, because more
  // than it had when that turn began may come to need what its neighbours have, and they what it has (docs/adr/0009).
  bool gang_runs() const { return gang_runs_.load(std::memory_order_acquire); }

  // From the mover. ----
  bool drain_wanted(uint64_t drain);     // false: that drain was given up
  bool drains_together(uint64_t drain);  // clients on other GPUs leave with it: theirs is not to be waited for here
  bool drained(uint64_t drain);          // the GPU work has ended; true: the lock goes, finish with released()
  void released();                       // tells the scheduler
  bool load_cancelled();                 // the lock is to be given back before loading has ended
  // Until the budget reaches `resident`; false: cancelled, or not by then.
  bool wait_for_budget(size_t resident, int64_t deadline_ns = INT64_MAX);
  bool loaded();                            // everything is resident: opens the gate; false: cancelled
  void load_stopped();                      // after a cancelled load
  bool prefetch_wanted(uint64_t prefetch);  // memory is still to come in without the lock, within the budget
  void prefetched(uint64_t prefetch);       // it does no more; what came of it is to be told next
  void progress(const protocol::SwapProgress& progress);
  // Whether what is freed and only kept for reuse stays beyond the turn.
  bool keeps_caches();
  // One look whether the program has gone idle (turn/idleness.h). Not wanted: no more looks until Mover::watch_idle. No wait: the
  // GPU's work is to be waited for, and work_ended() called.
  turn::Effects::Look idle_step();
  void work_ended(int64_t waited_from_ns);

  // The process exits: a load that waits for room stops waiting.
  void program_ends();
  bool holds_lock();

  // 0 until the scheduler gave one.
  uint64_t id() {
    Lock lock(mutex_);
    return client_id_;
  }
  // A message outside turns. False: there is no scheduler now.
  template <typename Payload>
  bool tell(const Payload& payload, const Descriptors& descriptors = {}) {
    Lock lock(mutex_);
    send(payload, descriptors);
    return turn_.connected;
  }

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  static void* thread_body(void* self);
  void run();
  void after_registration() REQUIRES(mutex_);  // connected
  void on_headroom(const protocol::Headroom& message);
  void on_recall(const protocol::RecallHeadroom& message);
  bool connect_once();
  bool handshake(int fd, const protocol::Register& hello, protocol::Registered* terms);
  protocol::Register registration();
  void disconnected();
  void reconnect();
  bool receive();
  void handle(protocol::MessageType type, std::span<const std::byte> packet, Descriptors descriptors);
  void on_lock(const protocol::LockOk& message);
  void on_contention(const protocol::Contention& message);
  void on_ask_progress(const protocol::AskProgress& message);
  void count_progress(bool counts) REQUIRES(mutex_);
  void on_why_waiting(const protocol::WhyWaiting& message);
  // An event: decided and carried out at once.
  void take(const decltype(turn::Event::what)& event);
  turn::Effects step(const decltype(turn::Event::what)& what) REQUIRES(mutex_);
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
  void carry_out(const turn::NewsDue&) REQUIRES(mutex_);
  void carry_out(const turn::WakeLink&) REQUIRES(mutex_);
  void carry_out(const turn::SendMemory& effect) REQUIRES(mutex_);
  void carry_out(const turn::AskHeadroom& effect) REQUIRES(mutex_);
  void carry_out(const turn::GrowLease& effect) REQUIRES(mutex_);
  void carry_out(const turn::TryLease& effect) REQUIRES(mutex_);
  void carry_out(const turn::Log& effect) REQUIRES(mutex_);
  void carry_out(const protocol::LockReleased& message) REQUIRES(mutex_);
  template <typename Message>
  void carry_out(const Message& message) REQUIRES(mutex_) {
    send(message);
  }
  bool load_at_once();
  void check_cgroup();
  void flush();
  void hold_to_resident();
  void send_arena();       // what the arena has to tell
  void send_arena_held();  // what it has from an earlier scheduler
  int64_t next_timeout_ns();
  void wake();
  // A failure ends the connection; the socket's thread sees that and reconnects.
  void send_packet(const protocol::Packet& packet, const Descriptors& descriptors) REQUIRES(mutex_);
  bool grow_alone(size_t bytes) REQUIRES(mutex_);  // given up while waiting
  template <typename Payload>
  void send(const Payload& payload, const Descriptors& descriptors = {}) REQUIRES(mutex_) {
    send_packet(protocol::encode(payload, version_), descriptors);
  }

  Device& device_;
  Mutex mutex_;
  Condition changed_;
  FileDescriptor socket_;
  FileDescriptor wake_;
  FileDescriptor bell_;  // Gate::wait_change_or_news
  pthread_t thread_{};

  bool counts_progress_ GUARDED_BY(mutex_) = false;  // for the scheduler, who asked
  std::atomic<bool> shared_{false};
  std::atomic<int> hurried_news_{-1};
  std::atomic<size_t> budget_{SIZE_MAX};
  std::atomic<uint64_t> headroom_asks_{0};
  std::atomic<bool> barred_{false};
  std::atomic<uint32_t> memory_waiters_{0};
  std::atomic<bool> memory_dirty_{false};
  std::atomic<bool> arena_dirty_{false};
  std::atomic<bool> wish_known_{false};   // a thread that finds the gate closed need not say so again
  std::atomic<int64_t> first_use_ns_{0};  // in this turn; 0: not yet
  std::atomic<bool> why_wanted_{false};   // asked, and not sent yet
  std::atomic<bool> draining_{false};
  std::atomic<bool> gang_runs_{false};

  turn::Turn turn_ GUARDED_BY(mutex_);
  uint64_t load_due_ GUARDED_BY(mutex_) = 0;  // asked for by the step, for after the section; the socket's thread's, as the next
  bool room_due_ GUARDED_BY(mutex_) = false;
  static std::atomic<int> locks_;                                // that this process holds, on all its GPUs
  uint16_t version_ GUARDED_BY(mutex_) = protocol::kVersionMax;  // agreed on with this scheduler
  char refusal_told_[256] = {};                                  // in the log; before the socket's thread starts, then its alone
  const char* barred_by_ = refusal_told_;                        // before it is shared
  protocol::KeepsMemory keeps_ GUARDED_BY(mutex_){};             // why: empty, or told at each registration
  uint64_t told_lease_ GUARDED_BY(mutex_) = 0;                   // to the scheduler, at registration
  bool asks_only_ = false;                                       // before the socket's thread starts
  uint64_t client_id_ GUARDED_BY(mutex_) = 0;
  int64_t reconnect_at_ns_ = 0;  // the socket's thread's, as the next
  int64_t reconnect_backoff_ns_ = 0;
  int64_t cgroup_look_ns_ = 0;  // when next; the socket's thread's
  uint64_t question_ GUARDED_BY(mutex_) = 0;
  int64_t asked_why_at_ns_ GUARDED_BY(mutex_) = 0;
};

}  // namespace nvshare::interposer
