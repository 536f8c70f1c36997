// The client: this process on one GPU, as the scheduler sees it. Owns the socket and the thread that reads it, and knows whether the
// process has the lock. Without a scheduler it is *unshared*: gate open, no budget, only the program's own memory limit.
//
// States: out (no lock) -> wanted -> loading (granted, memory coming in) -> running (gate open) -> draining (gate closed, GPU work ending)
// -> out. Or draining -> paused: alone under a compute limit it keeps the lock while its program does nothing, and goes back to running
// without asking (docs/adr/0012). A drain that cannot end goes back to running. Where clients on other GPUs leave at the same time, a drain
// that has ended waits for the scheduler's word (docs/adr/0009). When the scheduler dies everything stays as it is until a new one answers.
//
// Thread-safe. Its mutex comes after Memory's; callbacks into Memory and Mover happen without it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/descriptors.h"
#include "base/fd.h"
#include "interposer/drain_patience.h"
#include "interposer/idle_watch.h"
#include "interposer/memory/lease.h"
#include "interposer/pause_watch.h"
#include "interposer/sync.h"
#include "protocol/codec.h"

namespace nvshare::interposer {

class Device;

class Client {
 public:
  explicit Client(Device& device) : device_(device) {}

  // Connects and registers. False: no scheduler; the client stays unshared for good. With a reason to wait it waits until there is one.
  bool start(const char* waits_because);
  // Asks the scheduler what it would show this program of the GPU, without becoming a client: sets memory_limit() and gpu_total(). For a
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
  size_t ceiling() const { return ceiling_.load(std::memory_order_acquire); }
  // The tenant's on this GPU; 0 = none.
  uint64_t memory_limit() const { return memory_limit_.load(std::memory_order_acquire); }
  // What the tenant's processes have charged against it, this one included; of the others as of some 50 ms ago.
  uint64_t tenant_charged() const { return lease_.charged() + others_charged_.load(std::memory_order_acquire); }
  uint64_t charged() const { return lease_.charged(); }
  // Charges `bytes` against the tenant's limit. As a rule at once; else it asks the scheduler and waits, a bounded time. False: past the
  // limit. No lock held, outside the gate.
  bool charge(size_t bytes);
  // What cannot be refused any more.
  void charge_unasked(size_t bytes);
  void refund(size_t bytes) { lease_.refund(bytes); }
  // After charge() said no: a warning, at once the first time, then one line per ten seconds that counts the others.
  void tell_refusal(const char* what, size_t bytes, size_t unit, size_t small_unit);
  // How often it had to ask.
  uint64_t headroom_asks() const { return headroom_asks_.load(std::memory_order_relaxed); }
  // The program may not use this GPU: the scheduler says so, or a variable's wrong value, and why_barred() says why.
  const char* why_barred() const { return barred_by_; }
  bool barred() const { return barred_.load(std::memory_order_acquire); }
  // The GPU's size as programs are to see it; 0: as the driver says.
  uint64_t gpu_total() const { return gpu_total_.load(std::memory_order_acquire); }
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
  bool loaded();        // everything is resident: opens the gate; false: cancelled
  void load_stopped();  // after a cancelled load
  void progress(const protocol::SwapProgress& progress);
  // Whether what is freed and only kept for reuse stays beyond the turn.
  bool keeps_caches();
  // One look whether the program has gone idle, under a compute limit (idle_watch.h). Not wanted: no more looks in this turn. No wait: the
  // GPU's work is to be waited for, and work_ended() called.
  struct IdleStep {
    bool wanted;
    int64_t wait_ns;
  };
  IdleStep idle_step();
  void work_ended();

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
    return connected_;
  }

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  static constexpr int64_t kTick_ns = 10'000'000;  // of idle detection, and of a drain past its time

  enum class State : uint8_t { kOut, kLoading, kRunning, kPaused, kDraining };

  static void* thread_body(void* self);
  void run();
  // client_limits.cc
  bool read_own_limit();  // false: a variable's value is wrong, and the log says which
  const char* limit_set_by(uint64_t limit) const REQUIRES(mutex_);
  void tell_limit() REQUIRES(mutex_);
  void lease_alone();  // no scheduler: the program's own limit is all there is
  void take_terms(const protocol::Registered& answer, uint64_t claimed) REQUIRES(mutex_);
  void after_registration() REQUIRES(mutex_);  // connected
  void send_ask() REQUIRES(mutex_);            // connected
  void on_headroom(const protocol::Headroom& message);
  void on_recall(const protocol::RecallHeadroom& message);
  void on_limit(const protocol::UpdateLimit& message);
  bool connect_once();
  bool handshake(int fd);
  protocol::Register registration();
  void disconnected();
  void reconnect();
  bool receive();
  void handle(protocol::MessageType type, std::span<const std::byte> packet, Descriptors descriptors);
  void on_lock(const protocol::LockOk& message);
  bool take_grant(const protocol::LockOk& message) REQUIRES(mutex_);
  void on_drop(const protocol::DropLock& message);
  void on_keep(const protocol::Grant& grant);
  void open_gate() REQUIRES(mutex_);  // the program has the GPU
  void begin_use() REQUIRES(mutex_);  // the same, at the beginning of a turn or of what follows a pause
  void pause() REQUIRES(mutex_);
  void resume() REQUIRES(mutex_);
  void go_on() REQUIRES(mutex_);  // the same, by giving a drain up
  void on_contention(const protocol::Contention& message);
  void on_why_waiting(const protocol::WhyWaiting& message);
  void release(protocol::ReleaseReason reason) REQUIRES(mutex_);
  uint64_t used_ns(int64_t work_ended_ns) REQUIRES(mutex_);  // of the turn that ends
  void begin_drain(protocol::ReleaseReason reason, bool together = false) REQUIRES(mutex_);
  void set_state(State state) REQUIRES(mutex_);
  void check_drain();
  bool wants_breath() REQUIRES(mutex_);
  int64_t next_breath_ns() REQUIRES(mutex_);
  void check_breath();
  void check_idle();
  void set_gang_runs(bool runs);
  void hurry() REQUIRES(mutex_);                                // after a change of limited_ or of the connection
  void watch(uint32_t waiters, bool limited) REQUIRES(mutex_);  // what stands now; the gate is told of changes
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
  void send_memory(uint64_t wanted) REQUIRES(mutex_);

  Device& device_;
  Mutex mutex_;
  Condition changed_;
  FileDescriptor socket_;
  FileDescriptor wake_;
  FileDescriptor bell_;  // Gate::wait_change_or_news
  pthread_t thread_{};

  std::atomic<bool> shared_{false};
  std::atomic<int> hurried_news_{-1};
  std::atomic<size_t> budget_{SIZE_MAX};
  std::atomic<size_t> ceiling_{SIZE_MAX};
  std::atomic<uint64_t> memory_limit_{0};
  std::atomic<uint64_t> others_charged_{0};
  std::atomic<uint64_t> headroom_asks_{0};
  std::atomic<bool> barred_{false};
  std::atomic<uint64_t> refusals_untold_{0};  // allocations past the limit since the last line about one
  std::atomic<int64_t> refusal_due_ns_{0};    // when the next such line may come
  Lease lease_;
  std::atomic<uint64_t> gpu_total_{0};
  std::atomic<uint32_t> memory_waiters_{0};
  std::atomic<bool> memory_dirty_{false};
  std::atomic<bool> arena_dirty_{false};
  std::atomic<bool> lock_wanted_{false};
  std::atomic<int64_t> wanted_at_ns_{0};  // when it last became so
  std::atomic<int64_t> first_use_ns_{0};  // in this turn; 0: not yet
  std::atomic<bool> why_wanted_{false};   // asked, and not sent yet
  std::atomic<bool> draining_{false};
  std::atomic<bool> gang_runs_{false};

  State state_ GUARDED_BY(mutex_) = State::kOut;
  bool context_there_ GUARDED_BY(mutex_) = false;
  uint16_t version_ GUARDED_BY(mutex_) = protocol::kVersionMax;  // agreed on with this scheduler
  char refusal_told_[256] = {};                                  // in the log; before the socket's thread starts, then its alone
  const char* barred_by_ = refusal_told_;                        // before it is shared
  protocol::KeepsMemory keeps_ GUARDED_BY(mutex_){};             // why: empty, or told at each registration
  uint64_t own_limit_ = 0;                                       // from the program's environment
  const char* own_limit_variable_ = "";                          // of the environment, that says it
  uint64_t tenant_ GUARDED_BY(mutex_) = 0;                       // as the scheduler numbers it; 0: none yet
  char tenant_name_[64] GUARDED_BY(mutex_) = {};
  uint64_t node_limit_ GUARDED_BY(mutex_) = 0;
  uint64_t told_lease_ GUARDED_BY(mutex_) = 0;  // to the scheduler, at registration
  uint64_t headroom_request_ GUARDED_BY(mutex_) = 0;
  uint64_t headroom_bytes_ GUARDED_BY(mutex_) = 0;  // of the one thread that asks
  enum class HeadroomState : uint8_t { kNone, kAsked, kCharged, kRefused } headroom_state_ GUARDED_BY(mutex_) = HeadroomState::kNone;
  bool asks_only_ = false;  // before the socket's thread starts
  uint64_t client_id_ GUARDED_BY(mutex_) = 0;
  protocol::Grant grant_ GUARDED_BY(mutex_){};
  uint64_t budget_sequence_ GUARDED_BY(mutex_) = 0;
  bool request_sent_ GUARDED_BY(mutex_) = false;
  uint64_t request_ GUARDED_BY(mutex_) = 0;
  bool cancel_load_ GUARDED_BY(mutex_) = false;
  uint64_t growth_request_ GUARDED_BY(mutex_) = 0;
  uint64_t growth_wanted_ GUARDED_BY(mutex_) = 0;  // of the one thread that waits
  enum class GrowthState : uint8_t { kNone, kAsked, kGranted, kRefused } growth_state_ GUARDED_BY(mutex_) = GrowthState::kNone;
  bool connected_ GUARDED_BY(mutex_) = false;
  int64_t disconnected_at_ns_ GUARDED_BY(mutex_) = 0;
  int64_t reconnect_at_ns_ = 0;  // the socket's thread's, as the next
  int64_t reconnect_backoff_ns_ = 0;
  int64_t cgroup_look_ns_ = 0;  // when next; the socket's thread's

  // Drain.
  protocol::ReleaseReason drain_reason_ GUARDED_BY(mutex_) = protocol::ReleaseReason::kDropped;
  int64_t drain_started_ns_ GUARDED_BY(mutex_) = 0;
  int64_t drain_deadline_ns_ GUARDED_BY(mutex_) = 0;
  DrainPatience drain_patience_ GUARDED_BY(mutex_);
  uint64_t drain_ GUARDED_BY(mutex_) = 0;  // counts up with each drain: one that was given up must not settle the next
  bool drain_abandoned_ GUARDED_BY(mutex_) = false;
  bool drain_done_ GUARDED_BY(mutex_) = false;  // settled: only released() is missing, or, with drain_together_, what the scheduler says
  bool drain_together_ GUARDED_BY(mutex_) = false;  // it is the scheduler that says whether the lock goes
  bool drain_pauses_ GUARDED_BY(mutex_) = false;    // the lock stays: the client pauses
  bool drain_of_pause_ GUARDED_BY(mutex_) = false;  // it began in a pause: who goes on after all says so
  uint64_t drop_attempt_ GUARDED_BY(mutex_) = 0;    // DropLock::attempt of the last one
  int64_t breath_ends_ns_ GUARDED_BY(mutex_) = 0;   // the gate is open for a moment in the middle of a drain; 0: it is not
  static std::atomic<int> locks_;                   // that this process holds, on all its GPUs

  // Contention and idleness.
  uint32_t waiters_ GUARDED_BY(mutex_) = 0;
  bool limited_ GUARDED_BY(mutex_) = false;  // a compute limit applies: this client is billed for the time that it holds the lock
  bool watched_ GUARDED_BY(mutex_) = false;  // what the gate was told: somebody waits, or limited_
  bool limit_told_ GUARDED_BY(mutex_) = false;
  IdleWatch idle_watch_ GUARDED_BY(mutex_);
  bool pauses_ GUARDED_BY(mutex_) = false;         // idle_watch_ ends in a pause, not in giving the lock up
  bool released_idle_ GUARDED_BY(mutex_) = false;  // the last turn ended, or is paused, by idle_watch_, which wants to know what came of it
  int64_t idle_since_ns_ GUARDED_BY(mutex_) = 0;   // then
  int64_t swap_cost_ns_ GUARDED_BY(mutex_) = 0;
  uint64_t seen_submissions_ GUARDED_BY(mutex_) = 0;
  int64_t last_submission_ns_ GUARDED_BY(mutex_) = 0;
  bool idle_check_asked_ GUARDED_BY(mutex_) = false;
  PauseWatch pause_watch_ GUARDED_BY(mutex_);
  int64_t last_work_ns_ GUARDED_BY(mutex_) = 0;  // before the early release
  int64_t opened_at_ns_ GUARDED_BY(mutex_) = 0;  // when the gate was opened for this turn; 0: it was not
  bool turn_unused_ GUARDED_BY(mutex_) = false;  // nothing was submitted in this turn yet
  bool released_early_ GUARDED_BY(mutex_) = false;
  int64_t release_cost_ns_ GUARDED_BY(mutex_) = 0;  // what it was expected to cost
  uint64_t question_ GUARDED_BY(mutex_) = 0;
  int64_t asked_why_at_ns_ GUARDED_BY(mutex_) = 0;
};

}  // namespace nvshare::interposer
