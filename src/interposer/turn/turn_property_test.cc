// A turn among a scheduler, a swap engine and a program that do things in random order on virtual time, with connections that are lost. A
// failure prints its seed; NVSHARE_TEST_SEED repeats that one alone, NVSHARE_TEST_SCALE (default 1) multiplies the number of runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "interposer/turn/turn.h"

namespace nvshare::interposer::turn {
namespace {

constexpr int64_t kMs = 1'000'000;

// Everything around one Turn. What is wrong is kept as text; the first is reported.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    limits_ = chance(50);
    gangs_ = chance(50);
    cuts_ = chance(50);
    stuck_work_ = chance(30);
    seen_.other_gpus = gangs_ && chance(50);
    take(ContextChanged{true});
    connect();
  }

  void run(int steps) {
    for (int i = 0; i < steps && wrong_.empty(); ++i) act(random_() % 20);
  }

  // Faults end, everybody does what is due: each thread gets through the gate, and each drop is answered.
  void settle() {
    cuts_ = stuck_work_ = false;
    calm_ = true;
    if (!turn_.context) take(ContextChanged{true});
    for (int i = 0; i < 4000 && wrong_.empty() && !at_rest(); ++i) {
      for (const int kind : {1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) act(kind);
      pass(5 * kMs);
    }
    if (!wrong_.empty() || at_rest()) return;
    wrong_ = waiting_ > 0                                       ? "a thread waits for ever"
             : drop_due_                                        ? "a drop is not answered"
             : turn_.headroom.answer != Headroom::Answer::kNone ? "an allocation waits for ever"
                                                                : "a load or a drain does not end";
    wrong_ += ", phase " + std::to_string(static_cast<int>(turn_.phase)) + (turn_.wish.wanted ? ", wanted" : "") +
              (turn_.wish.requested ? ", requested" : "") + (wish_known_ ? ", known" : "") + (requested_ ? ", the scheduler knows" : "") +
              (granted_ ? ", granted" : "") + (turn_.connected ? "" : ", no scheduler");
  }

  const std::string& wrong() const { return wrong_; }

 private:
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  void fail(const char* what) {
    if (wrong_.empty()) wrong_ = what;
  }
  bool at_rest() const {
    return waiting_ == 0 && !drop_due_ && !load_ && !prefetch_ && drains_.empty() && !leaving_ && turn_.connected &&
           turn_.headroom.answer == Headroom::Answer::kNone;
  }

  void act(uint64_t kind) {
    switch (kind) {
      case 0:
        return pass(static_cast<int64_t>(random_() % 40) * kMs);
      case 1:
        return use_gpu();
      case 2:
        return mover_works();
      case 3:
        return scheduler_grants();
      case 4:
        return scheduler_drops();
      case 5:
        return scheduler_settles_gang();
      case 6:
        if (link_awake_) link_looks();
        return;
      case 7:
        if (idle_watched_) look_for_idleness();
        return;
      case 8:
        if (!turn_.connected && !in_between(turn_)) connect();
        return;
      case 9:
        if (now_ >= next_deadline(turn_)) link_looks();
        return;
      case 10:
        if (turn_.connected && cuts_ && chance(20)) cut();
        return;
      case 11:
        if (turn_.connected) contend();
        return;
      case 12:
        if (chance(20)) change_context();
        return;
      case 13:
        return grow();
      case 14:
        if (turn_.connected) take(protocol::MemAvailable{turn_.growth.request, chance(70), {}, budget_ + 10, 1});
        return;
      case 16:
        return allocate();
      case 17:
        return answer_headroom();
      case 18:
        return scheduler_prefetches();
      case 19:
        if (!turn_.connected && !in_between(turn_)) seek_in_vain();
        return;
      case 15:
        news_waiting_ = true;
        link_awake_ = true;
        return;
    }
  }

  void pass(int64_t time) {
    const Instant until = now_ + time;
    while (wrong_.empty() && next_deadline(turn_) <= until) {
      now_ = std::max(now_, next_deadline(turn_));
      // A second one where the first closes the gate again for a drain whose time is over.
      for (int looks = 0; next_deadline(turn_) <= now_; ++looks) {
        if (looks == 3) return fail("a deadline that Ticks do not move");
        link_looks();
      }
    }
    now_ = std::max(now_, until);
  }

  // ---- the program: threads that submit, or sleep at the gate. A thread looks when it comes and when it is woken ----
  void use_gpu() {
    if (wish_unsaid_ && (calm_ || chance(50))) say_wish();
    if (to_look_ == 0 && !calm_ && waiting_ < 3) {
      ++waiting_;
      ++to_look_;
    }
    if (to_look_ == 0) return;
    --to_look_;
    if (gate_open_) {
      --waiting_;
      ++seen_.submissions;
      seen_.first_use = now_;
      if (turn_.context && turn_.phase != Phase::kRunning) fail("work is submitted without the lock");
      return;
    }
    if (wish_known_) return;
    wish_known_ = true;
    if (!chance(20) || calm_) return say_wish();
    wish_unsaid_ = true;  // the thread is between its mark and the mutex
  }
  void say_wish() {
    wish_unsaid_ = false;
    take(Wished{now_, news_waiting_});
  }
  void change_context() { take(ContextChanged{!turn_.context}); }
  void allocate() {
    using Answer = Headroom::Answer;
    if (turn_.headroom.answer == Answer::kNone) {
      if (!calm_) take(HeadroomWanted{10});
    } else if (turn_.headroom.answer != Answer::kAsked) {
      take(HeadroomEnded{});
    }
  }
  void answer_headroom() {
    if (!turn_.connected || headroom_asked_ == 0) return;
    take(protocol::Headroom{headroom_asked_, 10, 0, 0, chance(50), {}});
    headroom_asked_ = 0;
  }
  void grow() {
    if (turn_.growth.answer == Growth::Answer::kNone && may_run(turn_)) return (void)take(GrowthWanted{10});
    if (turn_.growth.answer != Growth::Answer::kNone && (turn_.growth.answer != Growth::Answer::kAsked || lost_turn(turn_)))
      take(GrowthEnded{});
  }

  // ---- the socket's thread ----
  void link_looks() {
    link_awake_ = false;
    if (turn_.connected) {
      if (news_waiting_) take(MemoryChanged{});
      news_waiting_ = false;
      take(ReportsSent{});
    }
    take(Tick{});
  }
  void cut() {
    take(Disconnected{});
    drop_due_ = false;
    granted_ = requested_ = false;
    headroom_asked_ = 0;
  }
  void connect() {
    if (prefetch_) fail("the next scheduler is told while memory still comes in");
    const bool has = had_lock(turn_);
    const bool wants = !has && turn_.wish.wanted;
    ++epoch_;
    grants_ = 0;
    granted_ = has;
    requested_ = wants;
    drop_due_ = together_ = told_drained_ = crossing_ = paused_ = false;
    take(Registering{true});
    take(Connected{epoch_, wants, chance(80)});
    take(Introduced{});
    if (has) take(protocol::LockOk{{epoch_, ++grants_}, budget_, 1});
  }

  void seek_in_vain() {
    take(Registering{true});
    const bool broke_off = chance(20);
    const bool nobody_listens = !broke_off && chance(80);
    take(Registering{false, broke_off, nobody_listens, !broke_off && !nobody_listens && chance(50)});
    if (load_ || prefetch_ || !drains_.empty() || leaving_ || !may_go_on_alone(turn_, now_)) return;
    if (!take(GoesOnAlone{50}).agreed || budget_ != 50) fail("it may go on alone, and does not");
  }

  // ---- the scheduler ----
  void scheduler_grants() {
    if (!turn_.connected || !requested_ || granted_) return;
    requested_ = false;
    granted_ = true;
    take(protocol::LockOk{{epoch_, ++grants_}, 100, 1});
  }
  void scheduler_prefetches() {
    if (!turn_.connected || !requested_ || granted_ || prefetch_) return;
    take(protocol::Prefetch{++prefetches_, 50});
  }
  void scheduler_drops() {
    if (!turn_.connected || !granted_ || drop_due_ || (calm_ && waiting_ == 0) || calm_) return;
    drop_due_ = true;
    told_drained_ = false;
    together_ = gangs_ && chance(50);
    if (chance(30)) crossing_ = true;  // it is on its way while something else happens
    if (!crossing_) deliver_drop();
  }
  void deliver_drop() {
    crossing_ = false;
    take(protocol::DropLock{{epoch_, grants_}, ++attempt_, together_, {}, static_cast<uint8_t>(chance(50)), {}});
  }
  void scheduler_settles_gang() {
    if (crossing_ && turn_.connected && drop_due_) deliver_drop();
    if (!turn_.connected || !drop_due_ || !together_ || (!told_drained_ && !chance(10))) return;
    if (chance(50)) {
      together_ = false;  // all have drained
      return deliver_drop();
    }
    drop_due_ = told_drained_ = together_ = false;
    take(protocol::KeepLock{{epoch_, grants_}});
  }
  void contend() {
    protocol::Contention message{};
    message.waiters = random_() % 3;
    message.memory_waiters = message.waiters > 0 ? random_() % (message.waiters + 1) : 0;
    message.swap_cost_ns = 10 * kMs;
    message.limited = limits_ && chance(80) ? protocol::kLimitedCompute : 0;
    message.pause_us = message.limited != 0 && chance(50) ? 200 : 0;
    message.gang_runs = gangs_ && chance(50);
    message.held = chance(20);
    take(message);
  }

  // ---- the swap engine ----
  void mover_works() {
    if (leaving_) {
      leaving_ = false;
      return (void)take(MemoryLeft{});
    }
    if (!drains_.empty()) {
      if (!synchronizing_ && !drain_wanted(turn_, drains_.front())) return drains_.pop_front();
      synchronizing_ = true;
      if (stuck_work_ && chance(90)) return;
      const uint64_t id = drains_.front();
      drains_.pop_front();
      synchronizing_ = false;
      if (chance(30)) take(WorkEndsSoon{now_ + static_cast<int64_t>(random_() % 3'000'000)});
      leaving_ = take(WorkDrained{id}).agreed;
      if (leaving_ && id != last_drain_) fail("a drain that was given up settles a later one");
    } else if (prefetch_) {
      if (prefetch_wanted(turn_, *prefetch_) && chance(50)) return;  // it goes on
      const uint64_t id = *prefetch_;
      prefetch_.reset();
      take(PrefetchEnded{id});
    } else if (load_) {
      if (!turn_.cancel_load && chance(50)) return;  // it goes on
      load_.reset();
      if (turn_.cancel_load || !take(LoadEnded{}).agreed) return (void)take(LoadStopped{});
    }
  }
  void look_for_idleness() {
    for (int looks = 0; looks < 4 && idle_watched_; ++looks) look_once();
  }
  void look_once() {
    idle_watched_ = false;
    looking_ = true;
    const Effects::Look next = take(IdleLook{}).look;
    looking_ = false;
    idle_watched_ = idle_watched_ || next.wanted;
    if (next.wanted && next.wait_ns == 0 && chance(70)) take(WorkEnded{});
    if (next.wait_ns > 0) pass(next.wait_ns);
  }

  // ---- effects ----
  Effects take(const decltype(Event::what)& what) {
    seen_.waiting = waiting_ > 0;
    const Effects effects = step(turn_, Event{seen_, what}, now_);
    if (effects.count() > Effects::kMost) fail("more effects than there is room for");
    ++depth_;
    for (const Effect& effect : effects) std::visit([this](const auto& one) { carry_out(one); }, effect);
    if (--depth_ > 0) return effects;
    if (gate_open_ && turn_.context && !may_run(turn_)) fail("the gate is open without the lock");
    if (!gate_open_ && turn_.phase == Phase::kOut && !turn_.context) fail("the gate is closed for a GPU without a context");
    if (!gate_open_ && may_run(turn_)) fail("the gate is closed while the program may run");
    if (may_run(turn_) && turn_.connected && turn_.drain.reopened_until == 0 && turn_.idle.reason() != Idleness::Reason::kNone &&
        !idle_watched_ && !looking_) {
      fail("no thread looks for idleness");
    }
    if (may_run(turn_) && turn_.connected && !granted_) fail("it runs without a grant");
    const Instant presumed = turn_.watch.presumed_until;
    if (presumed != 0 && !holds_lock(turn_)) fail("who waits is presumed without the lock");
    if (presumed == kNever && turn_.phase != Phase::kLoading) fail("who waits is presumed for ever");
    if (watched_ != (turn_.idle.terms().waiters > 0 || turn_.idle.terms().limited || presumed != 0)) fail("the gate is watched otherwise");
    if (turn_.phase == Phase::kOut && turn_.prefetch == 0 && budget_ != 0) fail("it may have more without the lock");
    if (turn_.prefetch_wanted && (turn_.phase != Phase::kOut || !turn_.connected)) fail("memory comes in that nobody counts");
    return effects;
  }
  void carry_out(const OpenGate&) {
    gate_open_ = true;
    to_look_ = waiting_;
  }
  void carry_out(const CloseGate&) { gate_open_ = false; }
  void carry_out(const WakeGate&) { to_look_ = waiting_; }
  void carry_out(const WatchGate& effect) {
    bool& watched = effect.closely ? watched_closely_ : watched_;
    if (watched == effect.wanted) fail("the gate is told twice who watches");
    watched = effect.wanted;
  }
  void carry_out(const ForgetWish&) { wish_known_ = false; }
  void carry_out(const KnowWish&) { wish_known_ = true; }
  void carry_out(const LookForWaiters&) {
    wish_known_ = false;
    take(WaitersSeen{waiting_ > 0});
  }
  void carry_out(const BeginUse&) { seen_.first_use = seen_.first_submitted = 0; }
  void carry_out(const SetBudget& effect) { budget_ = effect.bytes; }
  void carry_out(const StartDrain& effect) {
    if (effect.drain <= last_drain_) fail("a drain begins twice");
    last_drain_ = effect.drain;
    if (leaving_) fail("a drain begins while the lock goes");
    drains_.push_back(effect.drain);
  }
  void carry_out(const StartPrefetch& effect) { prefetch_ = effect.prefetch; }
  void carry_out(const StartLoad& effect) {
    if (load_ || drain_wanted(turn_, last_drain_)) fail("a load begins beside another movement");
    load_ = effect.grant;
  }
  void carry_out(const MakeRoom&) {}
  void carry_out(const WatchIdle&) { idle_watched_ = true; }
  void carry_out(const MemoryReportDue&) { news_waiting_ = link_awake_ = true; }
  void carry_out(const WakeLink&) { link_awake_ = true; }
  void carry_out(const SendMemory&) {
    if (!turn_.connected) fail("a message to nobody");
  }
  void carry_out(const AskHeadroom& effect) {
    if (!turn_.connected) fail("a message to nobody");
    headroom_asked_ = effect.request;
  }
  void carry_out(const GrowLease&) {}
  void carry_out(const TryLease&) { take(LeaseTried{chance(30)}); }
  void carry_out(const Log&) {}
  void carry_out(const protocol::ReqLock&) {
    if (!turn_.connected) fail("a message to nobody");
    if (requested_) fail("the lock is asked for twice");
    if (granted_) fail("the lock is asked for with the lock");
    requested_ = true;
  }
  void carry_out(const protocol::LockReleased& message) {
    if (!turn_.connected) return fail("a message to nobody");
    if (!granted_ || message.grant.epoch != epoch_ || message.grant.grant != grants_) return fail("a lock is given up that it has not");
    drop_due_ = crossing_ = false;
    if (message.reason == static_cast<uint8_t>(protocol::ReleaseReason::kNotDrained)) return;
    granted_ = paused_ = false;
  }
  void carry_out(const protocol::LockPaused&) {
    if (paused_ || !granted_ || gate_open_) fail("a pause that is none");
    paused_ = true;
  }
  void carry_out(const protocol::LockResumed&) {
    if (!granted_) fail("it goes on without the lock");
    paused_ = false;
  }
  void carry_out(const protocol::SwapProgress&) {
    if (!turn_.connected) fail("a message to nobody");
  }
  void carry_out(const protocol::EndsSoon& message) {
    if (!turn_.connected) fail("a message without a scheduler");
    if (message.attempt != turn_.drain.attempt) fail("the end of another drain is told");
    if (!granted_ || turn_.phase != Phase::kDraining || turn_.drain.done) fail("the end of no work is told");
  }
  void carry_out(const protocol::Drained& message) {
    if (!granted_ || gate_open_) fail("drained with the gate open");
    if (message.attempt == attempt_) told_drained_ = true;
  }

  std::mt19937_64 random_;
  std::string wrong_;
  bool limits_ = false, gangs_ = false, cuts_ = false, stuck_work_ = false, calm_ = false;
  Turn turn_;
  Seen seen_;
  Instant now_ = 1000 * kMs;

  bool gate_open_ = true, watched_ = false, watched_closely_ = false, wish_known_ = false, wish_unsaid_ = false;
  uint32_t waiting_ = 0, to_look_ = 0;
  int depth_ = 0;
  uint64_t budget_ = 0;
  uint64_t headroom_asked_ = 0;  // of the scheduler; 0: nothing
  bool news_waiting_ = false, link_awake_ = false, idle_watched_ = false, looking_ = false;

  std::deque<uint64_t> drains_;
  std::optional<uint64_t> load_, prefetch_;
  uint64_t last_drain_ = 0, prefetches_ = 0;
  bool synchronizing_ = false, leaving_ = false;

  uint64_t epoch_ = 0, grants_ = 0, attempt_ = 0;
  bool requested_ = false, granted_ = false, paused_ = false;
  bool drop_due_ = false, together_ = false, told_drained_ = false, crossing_ = false;
};

int64_t number_from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoll(value) : otherwise;
}

TEST(TurnProperty, RandomOrdersOfEvents) {
  const int64_t only = number_from_environment("NVSHARE_TEST_SEED", -1);
  const int64_t runs = 10000 * number_from_environment("NVSHARE_TEST_SCALE", 1);
  for (int64_t seed = only >= 0 ? only : 1; seed <= (only >= 0 ? only : runs); ++seed) {
    World world(static_cast<uint64_t>(seed));
    world.run(400);
    world.settle();
    ASSERT_EQ(world.wrong(), "") << "NVSHARE_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace nvshare::interposer::turn
