// step(): getting the lock, giving it back, growth in mid-turn, the scheduler's coming and going.
#include <algorithm>

#include "interposer/turn/concerns.h"

namespace nvshare::interposer::turn {

using protocol::ReleaseReason;

namespace {

// In which a thread wakes up and takes what it was granted.
constexpr int64_t kGrantKept_ns = 10'000'000;
constexpr int kBrokenOffMost = 5;  // registrations that begin patience anew

bool same(const protocol::Grant& one, const protocol::Grant& other) { return one.epoch == other.epoch && one.grant == other.grant; }

// The swap engine hears of it late: it wakes after the thread of the program that waits for the same, and begins to wait only after some
// looks. Where nothing was submitted since the program's own wait returned, and the swap engine's ended with it, or was over as soon as it
// began, the work had ended by then. Where others wait for memory, the looks may have begun long after: a program that has done nothing for
// a while need not do nothing for as long once more. What counts as at once is then a hundredth of what a switch costs, as that is how long
// it is to have been idle: on a busy machine the shortest wait takes longer than a busy wait on an idle one.
Instant end_of_work(const Turn& turn, const At& at, Instant waited_from) {
  constexpr int64_t kWakes_ns = 100'000, kAtOnce_ns = 50'000, kLate_ns = 500'000;
  const Seen& seen = at.seen;
  if (seen.waited_at == 0 || seen.waited_after != seen.entries || seen.waited_at > at.now) return at.now;
  const bool with_it = seen.waited_at >= waited_from && at.now - seen.waited_at <= kWakes_ns;
  const bool memory = turn.idle.reason() == Idleness::Reason::kMemory;
  const int64_t at_once = memory ? std::max(kAtOnce_ns, turn.idle.terms().swap_cost_ns / 100) : kAtOnce_ns;
  const bool before = seen.waited_at < waited_from && at.now - waited_from <= at_once && (memory || at.now - seen.waited_at <= kLate_ns);
  return with_it || before ? std::max(seen.waited_at, turn.opened_at) : at.now;
}

// One handler for each kind of event: one that is missing does not compile.
struct Handler {
  Turn& turn;
  const At& at;

  void request() const {
    turn.wish.requested = true;
    at.send(turn, protocol::ReqLock{++turn.wish.requests});
  }

  void operator()(const Wished& event) const {
    turn.wish.at = event.at;
    if (turn.phase == Phase::kPaused) return resume(turn, at);
    if (turn.phase == Phase::kRunning) return at.add(WakeLink{});  // the gate has opened meanwhile
    if (drains_by_choice(turn)) return go_on(turn, at);
    turn.wish.wanted = true;
    // From the thread's own section, which saves the time that the socket's thread takes to wake.
    if (turn.phase == Phase::kOut && turn.connected && !turn.wish.requested && !event.reports_first) return request();
    at.add(WakeLink{});
  }

  void operator()(ReportsSent) const {
    if (turn.connected && turn.wish.wanted && turn.phase == Phase::kOut && !turn.wish.requested) request();
  }

  void operator()(const protocol::LockOk& message) const {
    const bool begins = turn.phase == Phase::kOut;
    // Of a turn that is over?
    if (begins && (message.grant.epoch != turn.grant.epoch || message.grant.grant <= turn.grant.grant)) return;
    // If none begins: the grant's new budget; or, after a restart of the scheduler, its name for the lock that we hold.
    turn.grant = message.grant;
    turn.budget_sequence = message.budget_sequence;
    at.add(SetBudget{message.budget});
    if (!begins) return;
    turn.opened_at = 0;
    turn.prefetch_wanted = false;  // the load brings the rest in
    turn.cancel_load = false;
    turn.wish.requested = false;
    turn.phase = Phase::kLoading;
    presume_waiters(turn, at);
    at.add(StartLoad{message.grant.grant});
  }

  void operator()(const protocol::DropLock& message) const {
    if (same(message.grant, turn.grant)) drop(turn, at, message);
  }
  void operator()(const protocol::KeepLock& message) const {
    if (same(message.grant, turn.grant)) keep(turn, at, message);
  }
  void operator()(const protocol::Contention& message) const { heard_contention(turn, at, message); }

  void operator()(const protocol::MemAvailable& message) const {
    if (turn.phase == Phase::kOut) return;  // the lock was lost meanwhile, and with it the request
    turn.budget_sequence = message.budget_sequence;
    at.add(SetBudget{message.budget});
    if (turn.growth.answer != Growth::Answer::kAsked || message.request != turn.growth.request) return;
    turn.growth.answer = message.granted != 0 ? Growth::Answer::kGranted : Growth::Answer::kRefused;
    if (message.granted != 0) turn.growth.kept.keep(turn.growth.bytes, at.now + kGrantKept_ns);
  }

  void operator()(const Registering& event) const {
    turn.registering = event.begins;
    if (!event.begins) turn.sought_at = at.now;
    turn.nobody_listens = event.nobody_listens;
    if (event.refused) turn.held = true;  // that scheduler's word stands when it is gone, too
    // A scheduler is there, and may have taken in what it was told: patience begins anew. One that breaks off each time is none.
    if (!event.broke_off || ++turn.broken_off > kBrokenOffMost) return;
    turn.disconnected_at = at.now;
  }
  void operator()(const Connected& event) const {
    turn.connected = true;
    turn.registering = false;
    turn.broken_off = 0;
    turn.grant = {event.epoch, 0};
    turn.budget_sequence = 0;
    turn.tells_if_held = event.tells_if_held;
    turn.held = event.tells_if_held;  // until it has said so
    nobody_waits(turn, at, false);    // the scheduler says anew who does
    turn.wish.requested = event.wish_told;
    if (growth_wanted(turn) > 0) at.add(MemoryReportDue{});  // the request anew
  }

  void operator()(Introduced) const { ask_headroom_anew(turn, at); }

  void operator()(Disconnected) const {
    set_gang_runs(turn, at, false);
    turn.connected = false;
    turn.growth.kept.clear();      // the next scheduler is told what is resident
    turn.prefetch_wanted = false;  // what it may have was that scheduler's to say
    turn.disconnected_at = at.now;
    if (turn.phase == Phase::kLoading) turn.cancel_load = true;  // the next scheduler knows nothing of this grant
    turn.drain.reopened_until = 0;
    // Nor of those that were to leave with us; and what is given up now, nobody would give back. Nobody was given its room yet either.
    if (turn.phase == Phase::kDraining && (turn.drain.together || !turn.drain.done)) go_on(turn, at);
    if (turn.phase == Phase::kPaused) {
      turn.idle.forget();
      begin_use(turn, at);
    }
  }

  void operator()(const ContextChanged& event) const {
    if (turn.context == event.there) return;
    turn.context = event.there;
    if (turn.phase == Phase::kPaused && !event.there) begin_drain(turn, at, ReleaseReason::kEarly, false);
    if (event.there && turn.phase == Phase::kLoading) at.add(CloseGate{});  // it was asked for with an earlier context
    if (turn.phase != Phase::kOut) return;
    if (event.there) return at.add(CloseGate{});
    at.add(OpenGate{});
    turn.wish.wanted = false;
    at.add(ForgetWish{});
  }

  void operator()(const GoesOnAlone& event) const {
    if (!may_go_on_alone(turn, at.now)) return;
    turn.wish.requested = false;
    at.add(SetBudget{event.resident});
    begin_use(turn, at);
    at.effects.agreed = true;
  }

  void operator()(LoadEnded) const {
    if (turn.cancel_load || turn.phase != Phase::kLoading) return;
    begin_use(turn, at);
    at.effects.agreed = true;
  }

  void operator()(LoadStopped) const {
    if (turn.phase != Phase::kLoading) return;
    turn.drain.started = at.now;
    const bool wanted = turn.wish.wanted;
    release(turn, at, ReleaseReason::kDropped);
    if (!wanted || !turn.context) return;
    turn.wish.wanted = true;
    at.add(KnowWish{});
  }

  void operator()(const WorkDrained& event) const { drained(turn, at, event.drain); }
  void operator()(const WorkEndsSoon& event) const { ends_soon(turn, at, event.at); }
  void operator()(MemoryLeft) const {
    if (turn.phase == Phase::kDraining && turn.drain.done && !turn.drain.together) release(turn, at, turn.drain.reason);
  }

  void operator()(const WaitersSeen& event) const {
    if (about_to_pause(turn)) return settle_pause(turn, at, event.any);
    if (turn.phase != Phase::kOut || !turn.context || !event.any) return;
    turn.wish.at = at.now;
    turn.wish.wanted = true;
    at.add(KnowWish{});
  }

  void operator()(IdleLook) const { look_for_idleness(turn, at); }
  void operator()(const WorkEnded& event) const { turn.idle.work_ended(end_of_work(turn, at, event.waited_from)); }

  // What moves while a scheduler comes may be missing in what it is told at registration.
  void operator()(const protocol::SwapProgress& message) const {
    if (turn.connected) return at.add(message);
    at.add(MemoryReportDue{});
  }
  void operator()(MemoryChanged) const { at.send(turn, SendMemory{growth_wanted(turn)}); }

  void operator()(const GrowthWanted& event) const {
    turn.growth.answer = Growth::Answer::kAsked;
    turn.growth.bytes = event.bytes;
    ++turn.growth.request;
    at.send(turn, SendMemory{event.bytes});
  }
  void operator()(const GrowthAlone& event) const {
    if (!helps_itself(turn, at.now) || turn.growth.answer != Growth::Answer::kAsked) return;
    at.add(SetBudget{event.budget});
    turn.growth.answer = Growth::Answer::kGranted;
  }
  void operator()(GrowthEnded) const { turn.growth.answer = Growth::Answer::kNone; }

  void operator()(const HeadroomWanted& event) const { want_headroom(turn, at, event.bytes); }
  void operator()(const protocol::Headroom& message) const { answer_headroom(turn, at, message); }
  void operator()(const LeaseTried& event) const { lease_tried(turn, at, event.charged); }
  void operator()(HeadroomEnded) const { turn.headroom.answer = Headroom::Answer::kNone; }

  // The swap engine answers in any case. It does nothing without the wish: a client with the lock has what it needs, or is about to.
  void operator()(const protocol::Prefetch& message) const {
    turn.prefetch = message.prefetch;
    turn.prefetch_wanted = turn.phase == Phase::kOut && turn.connected && turn.context;
    if (turn.prefetch_wanted) at.add(SetBudget{message.budget});
    at.add(StartPrefetch{message.prefetch});
  }
  void operator()(const PrefetchEnded& event) const {
    if (event.prefetch != turn.prefetch) return;
    turn.prefetch = 0;
    turn.prefetch_wanted = false;
    if (turn.phase == Phase::kOut) at.add(SetBudget{0});
    at.add(WakeLink{});
  }

  void operator()(ProgramEnds) const {
    turn.cancel_load = true;
    turn.prefetch_wanted = false;
  }

  void operator()(Tick) const {
    turn.looked_at = at.now;
    turn.other_gpus = at.seen.other_gpus;
    check_drain(turn, at);
    check_reopening(turn, at);
    check_presumption(turn, at);
    if (!turn.growth.kept.end_before(at.now)) return;
    if (turn.idle.terms().memory_waiters == 0) return;
    at.add(MemoryReportDue{});  // what nobody took goes back
    at.add(WakeLink{});
  }
};

}  // namespace

void open_gate(Turn& turn, const At& at) {
  turn.phase = Phase::kRunning;
  at.add(OpenGate{});
  presumption_runs(turn, at);
  begin_watch(turn, at);
}

void begin_use(Turn& turn, const At& at) {
  turn.idle.use_begins(at.seen.submissions, turn.wish.at, at.now);
  turn.opened_at = at.now;
  turn.submissions_before = at.seen.submissions;
  turn.wish.wanted = false;
  at.add(BeginUse{});
  at.add(ForgetWish{});
  open_gate(turn, at);
}

// From when a thread that had waited got past the gate; the gate's opening, if none has said so. Of a burst that ended by itself, without
// the time in which the GPU did not run it yet, or no longer: the call that gave it its first work, and what a submission of nothing takes.
uint64_t used_ns(const Turn& turn, const At& at, Instant work_ended, bool by_itself) {
  constexpr int64_t kCallMost_ns = 50'000, kLaunchMost_ns = 50'000;  // a longer one waits for other things, or for the GPU
  if (turn.opened_at == 0) return 0;
  const Instant first = std::max(at.seen.first_use, turn.opened_at);
  int64_t unused = 0;
  if (by_itself) {
    unused = std::clamp<int64_t>(at.seen.first_submitted - first, 0, kCallMost_ns) + std::min(at.seen.launch_ns, kLaunchMost_ns);
  }
  return static_cast<uint64_t>(std::max<int64_t>(work_ended - first - unused, 0));
}

uint64_t submissions(const Turn& turn, const At& at) {
  return turn.opened_at == 0 || at.seen.other_gpus ? 0 : at.seen.submissions - turn.submissions_before;
}

void release(Turn& turn, const At& at, ReleaseReason reason) {
  Idleness& idle = turn.idle;
  protocol::LockReleased message{};
  message.grant = turn.grant;
  message.reason = static_cast<uint8_t>(reason);
  Instant work_ended = at.now;
  if (reason == ReleaseReason::kEarly) {
    work_ended = idle.idle_since_ns();
    message.idle_us = static_cast<uint32_t>(std::clamp<int64_t>((at.now - work_ended) / 1000, 0, UINT32_MAX));
  }
  message.used_ns = used_ns(turn, at, work_ended, reason == ReleaseReason::kEarly);
  message.submissions = submissions(turn, at);
  at.add(SetBudget{0});
  nobody_waits(turn, at, idle.terms().limited);
  if (reason != ReleaseReason::kEarly && idle.gave_up() == Idleness::Reason::kMemory) idle.forget();
  turn.growth.answer = Growth::Answer::kNone;
  turn.wish.requested = false;
  turn.wish.wanted = false;
  turn.drain.reopened_until = 0;
  turn.phase = Phase::kOut;
  at.send(turn, message);
  at.add(LookForWaiters{});
  if (!turn.context) at.add(OpenGate{});  // threads that wait there want other GPUs
  at.add(WakeLink{});
}

Effects step(Turn& turn, const Event& event, Instant now) {
  Effects effects;
  std::visit(Handler{turn, At{now, event.seen, effects}}, event.what);
  return effects;
}

Instant next_deadline(const Turn& turn) {
  Instant next = kNever;
  if (turn.phase == Phase::kDraining) next = std::min(turn.drain.deadline, reopening_due(turn));
  if (turn.drain.reopened_until != 0) next = std::min(next, turn.drain.reopened_until);
  if (turn.watch.presumed_until != 0) next = std::min(next, turn.watch.presumed_until);
  return std::min(next, turn.growth.kept.next_end());
}

}  // namespace nvshare::interposer::turn
