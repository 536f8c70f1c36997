// A turn with everything that its effects do, as far as tests look at it.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "interposer/turn/turn.h"

namespace nvshare::interposer::turn::testing {

inline constexpr int64_t kMs = 1'000'000;

class TestTurn {
 public:
  static protocol::Grant grant(uint64_t number) { return {1, number}; }

  Turn* operator->() { return &turn_; }
  const Turn& state() const { return turn_; }

  Effects take(const decltype(Event::what)& what) {
    const Effects effects = step(turn_, Event{seen, what}, now);
    EXPECT_LE(effects.count(), Effects::kMost);
    for (const Effect& effect : effects) {
      std::visit([this](const auto& one) { carry_out(one); }, effect);
    }
    return effects;
  }

  // By events, from the beginning; the grant is number 2, the drain that is under way the first.
  void bring_to(Phase phase, protocol::ReleaseReason reason = protocol::ReleaseReason::kDropped) {
    if (phase == Phase::kPaused && contention_.limited == 0) limited(200);
    take(Connected{1, false, true});
    take(ContextChanged{true});
    take(Wished{now, false});
    take(protocol::LockOk{grant(2), 1000, 1});
    if (phase != Phase::kLoading) {
      take(LoadEnded{});
      take(contention_);
    }
    if (phase == Phase::kPaused || (phase == Phase::kDraining && reason == protocol::ReleaseReason::kEarly)) {
      if (contention_.limited == 0) {
        limited(0);
        take(contention_);
      }
      go_idle();
      if (phase == Phase::kPaused) take(WorkDrained{drains.back()});
    } else if (phase == Phase::kDraining || phase == Phase::kOut) {
      take(protocol::DropLock{grant(2), 1, 0, {}});
      if (phase == Phase::kOut) {
        take(WorkDrained{drains.back()});
        take(MemoryLeft{});
      }
    }
    if (phase != Phase::kPaused) messages.clear();
    if (phase == Phase::kOut) drains.clear();
    loads.clear();
    wakes = gate_wakes = 0;
  }

  // Its work has ended long enough ago.
  void go_idle() {
    for (int look = 0; look < 100 && turn_.phase == Phase::kRunning; ++look) {
      const Effects::Look next = take(IdleLook{}).look;
      if (!next.wanted) return;
      if (next.wait_ns == 0) take(WorkEnded{now});
      now += next.wait_ns;
    }
  }

  // From the next bring_to on.
  void limited(uint32_t pause_us) {
    contention_.limited = protocol::kLimitedCompute;
    contention_.pause_us = pause_us;
  }
  void hold() { contention_.held = 1; }
  void contend(uint32_t waiters, uint32_t memory_waiters, int64_t swap_cost_ns) {
    contention_.waiters = waiters;
    contention_.memory_waiters = memory_waiters;
    contention_.swap_cost_ns = static_cast<uint64_t>(swap_cost_ns);
  }

  const protocol::Contention& contention() const { return contention_; }

  template <typename Message>
  std::vector<Message> sent() const {
    std::vector<Message> found;
    for (const Effect& effect : messages) {
      if (const Message* message = std::get_if<Message>(&effect)) found.push_back(*message);
    }
    return found;
  }

  Instant now = 1000 * kMs;
  Seen seen;

  bool gate_open = true;
  bool wish_known = false;
  uint64_t budget = 0;
  uint64_t lease = 0, charged = 0;  // what is left of it; what allocations that waited were charged
  int wakes = 0, gate_wakes = 0, reports = 0, idle_watches = 0, rooms = 0;
  bool watched = false, watched_closely = false;
  std::vector<uint64_t> drains, loads, prefetches;
  std::vector<Effect> messages;

 private:
  void carry_out(const OpenGate&) { gate_open = true; }
  void carry_out(const CloseGate&) { gate_open = false; }
  void carry_out(const WakeGate&) { ++gate_wakes; }
  void carry_out(const WatchGate& effect) { (effect.closely ? watched_closely : watched) = effect.wanted; }
  void carry_out(const ForgetWish&) { wish_known = false; }
  void carry_out(const KnowWish&) { wish_known = true; }
  void carry_out(const LookForWaiters&) {
    wish_known = false;
    take(WaitersSeen{seen.waiting});
  }
  void carry_out(const BeginUse&) { seen.first_use = seen.first_submitted = 0; }
  void carry_out(const SetBudget& effect) { budget = effect.bytes; }
  void carry_out(const StartDrain& effect) { drains.push_back(effect.drain); }
  void carry_out(const StartLoad& effect) { loads.push_back(effect.grant); }
  void carry_out(const StartPrefetch& effect) { prefetches.push_back(effect.prefetch); }
  void carry_out(const MakeRoom&) { ++rooms; }
  void carry_out(const WatchIdle&) { ++idle_watches; }
  void carry_out(const MemoryReportDue&) { ++reports; }
  void carry_out(const WakeLink&) { ++wakes; }
  void carry_out(const GrowLease& effect) {
    lease += effect.bytes - effect.charged;
    charged += effect.charged;
  }
  void carry_out(const TryLease& effect) {
    const bool covers = lease >= effect.bytes;
    if (covers) {
      lease -= effect.bytes;
      charged += effect.bytes;
    }
    take(LeaseTried{covers});
  }
  void carry_out(const Log&) {}
  template <typename Message>
  void carry_out(const Message& message) {
    messages.push_back(message);
  }

  Turn turn_;
  protocol::Contention contention_{};
};

}  // namespace nvshare::interposer::turn::testing
