// Pauses of a client that has a compute limit and the GPU to itself: it keeps the lock, is not billed, and makes way at once.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "policy/testing/quota_world.h"
#include "repeats.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kGiB = 1LL << 30;

template <typename Wanted>
std::optional<Wanted> find(const Actions& actions, ClientId client) {
  for (const Action& action : actions) {
    if (const auto* wanted = std::get_if<Wanted>(&action); wanted && wanted->client == client) return *wanted;
  }
  return std::nullopt;
}

// One client under a limit of 50 that runs.
struct Pauses : ::testing::Test {
  Pauses() : state(make_state({})) {
    feed(GpuAppeared{0, 16 * kGiB});
    feed(ComputeLimit{1, 50});
    const Actions actions = join(1);
    lock = find<SendLock>(actions, 1).value_or(SendLock{});
    rules = find<SendContention>(actions, 1).value_or(SendContention{});
    now += 3 * kMsec;
  }

  Actions feed(const Event& event) {
    Actions actions = step(*state, event, now);
    EXPECT_EQ(check_invariants(*state), std::nullopt);
    return actions;
  }
  Actions join(ClientId client, TenantId tenant = 0) {
    return feed(ClientJoined{client, 0, tenant == 0 ? client : tenant, 0, {kGiB, kGiB, 0}, true, false, true});
  }
  Actions pause() { return feed(LockPaused{1, lock.grant, 3 * kMsec}); }
  Actions resume() { return feed(LockResumed{1, lock.grant}); }
  ClientState state_of(ClientId client) {
    const GpuView on = view(*state, now)[0];
    for (const ClientView& candidate : on.clients) {
      if (candidate.client == client) return candidate.state;
    }
    return ClientState::kIdle;
  }
  // Time passes until it is asked to drop, if it is within 1000 steps.
  void tick_until_dropped() {
    for (int steps = 0; steps < 1000 && state_of(1) != ClientState::kDropping; ++steps) {
      now = next_deadline(*state).value_or(now + kMsec);
      feed(Tick{});
    }
  }
  Duration billed() { return view(*state, now)[0].tenants.front().used; }

  StatePointer state;
  Instant now = 100 * kSeconds;
  SendLock lock{};
  SendContention rules{};
};

TEST_F(Pauses, WhoIsAloneUnderALimitMayPauseAndIsNotBilledForIt) {
  EXPECT_TRUE(rules.limited);
  EXPECT_GT(rules.pause, 0);
  EXPECT_LT(rules.pause, rules.idle_release) << "it costs less than giving up";
  pause();
  EXPECT_EQ(state_of(1), ClientState::kPaused);
  const Duration before = billed();
  EXPECT_EQ(before, 3 * kMsec);
  now += 50 * kMsec;
  feed(Tick{});
  EXPECT_EQ(billed(), before);
  EXPECT_EQ(resume().size(), 0U) << "nobody asks, nobody answers";
  EXPECT_EQ(state_of(1), ClientState::kRunning);
  now += 2 * kMsec;
  feed(Tick{});
  EXPECT_EQ(billed(), before + 2 * kMsec);
  EXPECT_EQ(view(*state, now)[0].clients[0].turns, 2U);
  EXPECT_EQ(view(*state, now)[0].clients[0].drops, 0U);
}

TEST_F(Pauses, WhoComesEndsThePauseFirst) {
  pause();
  now += 10 * kMsec;
  const Actions came = join(2);
  const auto drop = find<SendDrop>(came, 1);
  ASSERT_TRUE(drop);
  EXPECT_EQ(drop->grant, lock.grant);
  EXPECT_EQ(state_of(1), ClientState::kDropping);
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, false, 0, 0});
  EXPECT_EQ(state_of(2), ClientState::kRunning);
  EXPECT_EQ(state_of(1), ClientState::kIdle);
  EXPECT_EQ(view(*state, now)[0].clients[0].drops, 0U) << "no work was interrupted";
  const auto told = find<SendContention>(came, 1);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->pause, 0);
}

// It had gone on just before it heard that it should not.
TEST_F(Pauses, WhatCrossesADropIsBilled) {
  pause();
  const Duration before = billed();
  ASSERT_TRUE(find<SendDrop>(join(2), 1));
  now += 100 * kUs;
  resume();
  EXPECT_EQ(state_of(1), ClientState::kDropping);
  now += 4 * kMsec;
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, false, 0, 4 * kMsec});
  EXPECT_EQ(billed(), before + 4 * kMsec);
  EXPECT_EQ(state_of(2), ClientState::kRunning);
}

// The drop went out while it still ran; it was about to pause, and says so before it answers.
TEST_F(Pauses, APauseThatCrossesADropIsNotBilled) {
  feed(ComputeLimit{2, 50});
  join(2);
  tick_until_dropped();
  ASSERT_EQ(state_of(1), ClientState::kDropping);
  pause();
  EXPECT_EQ(state_of(1), ClientState::kDropping);
  const Duration before = billed();
  now += kMsec;
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, false, 0, 0});
  EXPECT_EQ(billed(), before);
  EXPECT_EQ(state_of(2), ClientState::kRunning);
}

TEST_F(Pauses, WithoutALockThereIsNothingToPause) {
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, true});
  feed(LockPaused{1, 0, 0});
  const auto again = find<SendLock>(feed(LockRequested{1}), 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(state_of(1), ClientState::kRunning);
}

TEST_F(Pauses, StaleOrSenselessMessagesChangeNothing) {
  feed(LockPaused{1, lock.grant + 7, 0});
  feed(LockResumed{1, lock.grant});
  feed(LockPaused{99, 1, 0});
  feed(LockResumed{99, 1});
  EXPECT_EQ(state_of(1), ClientState::kRunning);
  pause();
  pause();
  feed(LockResumed{1, lock.grant + 7});
  EXPECT_EQ(state_of(1), ClientState::kPaused);
  resume();
  resume();
  EXPECT_EQ(state_of(1), ClientState::kRunning);
  EXPECT_EQ(view(*state, now)[0].clients[0].turns, 2U);
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, true});
  pause();
  resume();
  EXPECT_EQ(state_of(1), ClientState::kIdle);
}

TEST_F(Pauses, ALongOneEndsTheTurn) {
  pause();
  const Instant began = now;
  tick_until_dropped();
  EXPECT_EQ(state_of(1), ClientState::kDropping);
  EXPECT_EQ(now - began, 100 * kMsec);
}

TEST_F(Pauses, WithoutALimitThereAreNone) {
  pause();
  const Actions freed = feed(ComputeLimit{1, 100});
  ASSERT_TRUE(find<SendContention>(freed, 1));
  EXPECT_EQ(find<SendContention>(freed, 1)->pause, 0);
  // It is let go when the policy next looks, at the latest when a pause is over.
  const Instant freed_at = now;
  tick_until_dropped();
  EXPECT_EQ(state_of(1), ClientState::kDropping);
  EXPECT_LE(now - freed_at, 100 * kMsec);
}

// Its siblings share its account, and may not be held up by it either.
TEST_F(Pauses, ASiblingIsSomebodyElse) {
  pause();
  EXPECT_TRUE(find<SendDrop>(join(2, 1), 1));
}

TEST_F(Pauses, APauseBesideOthersEndsAtOnce) {
  join(2, 1);
  ASSERT_EQ(state_of(2), ClientState::kRunning);
  const Actions answer = pause();
  EXPECT_TRUE(find<SendDrop>(answer, 1)) << "the permission had been taken back, but it had not heard of that yet";
}

// Where all of them run together it is in nobody's way.
TEST_F(Pauses, BesideOthersThatItRunsTogetherWithAPauseLasts) {
  feed(TenantTurns{1, TenantSharing::kTogether});
  const Actions came = join(2);
  ASSERT_EQ(state_of(2), ClientState::kRunning);
  EXPECT_EQ(state_of(1), ClientState::kRunning);
  EXPECT_FALSE(find<SendContention>(came, 1)) << "it may pause as before";
  pause();
  const Duration before = billed();
  now += 20 * kMsec;
  feed(Tick{});
  EXPECT_EQ(state_of(1), ClientState::kPaused);
  EXPECT_EQ(billed(), before);
  EXPECT_EQ(resume().size(), 0U) << "nobody asks, nobody answers";
  EXPECT_EQ(state_of(1), ClientState::kRunning);
}

TEST_F(Pauses, BesideOthersAPauseEndsWhenMemoryIsWanted) {
  feed(TenantTurns{1, TenantSharing::kTogether});
  join(2);
  pause();
  ASSERT_EQ(state_of(1), ClientState::kPaused);
  const Actions came = feed(ClientJoined{3, 0, 3, 0, {15 * kGiB, 0, 0}, true, false, true});
  EXPECT_TRUE(find<SendDrop>(came, 1)) << "what it has is what the third waits for";
}

TEST_F(Pauses, BesideOthersAPauseEndsWhenItsTenantIsToTakeTurns) {
  feed(TenantTurns{1, TenantSharing::kTogether});
  join(2);
  pause();
  ASSERT_EQ(state_of(1), ClientState::kPaused);
  EXPECT_TRUE(find<SendDrop>(feed(TenantTurns{1, TenantSharing::kTurns}), 1));
}

// It waits for 0.2 ms before each pause because it is asked to. That is not billed, whatever it says, but for pauses that are shorter.
TEST_F(Pauses, TheWaitBeforeAPauseIsNotBilled) {
  const Duration before = billed();
  for (int n = 0; n < 100; ++n) {
    const Duration worked = n == 0 ? 3 * kMsec - 200 * kUs : kMsec;
    if (n > 0) now += worked + 200 * kUs;
    feed(LockPaused{1, lock.grant, worked});
    now += kMsec;
    resume();
  }
  now += 10 * kMsec;  // what is taken back comes off what is billed next
  feed(Tick{});
  EXPECT_NEAR(static_cast<double>(billed() - before), static_cast<double>(3 * kMsec - 200 * kUs + 99 * kMsec + 10 * kMsec), 2.0 * kUs);
}

TEST_F(Pauses, ATenantThatEndsHasNone) {
  pause();
  feed(TenantEnds{1, true});
  EXPECT_EQ(state_of(1), ClientState::kDropping);
}

TEST_F(Pauses, WhoFailsToDrainFromAPauseRuns) {
  pause();
  ASSERT_TRUE(find<SendDrop>(join(2), 1));
  feed(DrainFailed{1, lock.grant});
  EXPECT_EQ(state_of(1), ClientState::kRunning);
  const Duration before = billed();
  now += kMsec;
  feed(Tick{});
  EXPECT_GT(billed(), before);
}

TEST_F(Pauses, ADeathInAPauseLeavesNothingBehind) {
  pause();
  feed(ClientLeft{1, true});
  EXPECT_TRUE(find<SendLock>(join(2), 2));
}

// After a restart its tenant's client on another GPU comes back with the lock: together they are a gang, in which nobody pauses.
struct PausesOfAGang : Pauses {
  PausesOfAGang() {
    feed(GpuAppeared{1, 16 * kGiB});
    pause();
    now += 20 * kMsec;
    came = feed(ClientJoined{2, 1, 1, 0, {kGiB, kGiB, 0}, true, true, false});
    other = find<SendLock>(came, 2).value_or(SendLock{});
  }
  ClientState other_state() { return view(*state, now)[1].clients.at(0).state; }
  Actions came;
  SendLock other{};
};

TEST_F(PausesOfAGang, AMemberThatPausedLeavesByItself) {
  const auto drop = find<SendDrop>(came, 1);
  ASSERT_TRUE(drop);
  EXPECT_FALSE(drop->together);
  EXPECT_FALSE(find<SendDrop>(came, 2)) << "nobody waits for it";
  EXPECT_EQ(other_state(), ClientState::kRunning);
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, false, 0, 0});
  EXPECT_EQ(state_of(1), ClientState::kIdle);
  EXPECT_EQ(other_state(), ClientState::kRunning);
  // It comes back into its gang's turn.
  const auto again = find<SendLock>(feed(LockRequested{1}), 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(find<SendContention>(came, 1).value_or(SendContention{.pause = 1}).pause, 0);
}

// Its message that it pauses crosses the drop that the gang gets for another tenant; then the gang's drain fails, so that all go on.
TEST_F(PausesOfAGang, AMemberThatIsToldToGoOnIsBilled) {
  feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, false, 0, 0});
  lock = find<SendLock>(feed(LockRequested{1}), 1).value_or(SendLock{});
  ASSERT_EQ(state_of(1), ClientState::kRunning);
  feed(ClientJoined{3, 0, 3, 0, {15 * kGiB, 0, 0}, true, false, true});  // does not fit beside it
  tick_until_dropped();
  ASSERT_EQ(state_of(1), ClientState::kDropping);
  feed(LockPaused{1, lock.grant, std::nullopt});
  feed(DrainFailed{2, other.grant});
  EXPECT_EQ(state_of(1), ClientState::kRunning);
  const Duration before = billed();
  now += 5 * kMsec;
  feed(Tick{});
  EXPECT_EQ(billed() - before, 5 * kMsec);
}

// What it brought in had gone before its turn began, so that it could be idle before it had said that it had loaded.
TEST_F(Pauses, APauseMayComeBeforeTheEndOfTheLoad) {
  feed(LockReleased{1, lock.grant, {2 * kGiB, kGiB, 0}, true, 0, 0});
  lock = find<SendLock>(feed(LockRequested{1}), 1).value_or(SendLock{});
  ASSERT_EQ(state_of(1), ClientState::kLoading);
  pause();
  EXPECT_EQ(state_of(1), ClientState::kPaused);
  feed(SwapProgressed{1, false, true, false, lock.grant, 0, 1, {kGiB, kGiB, 0}});
  EXPECT_EQ(state_of(1), ClientState::kPaused);
  now += 100 * kMsec;
  EXPECT_TRUE(find<SendDrop>(feed(Tick{}), 1));
}

// That it drained for its pause shows that it can.
TEST_F(Pauses, APauseEndsTheDoubtWhetherItDrains) {
  join(2, 2);
  for (int failed = 0; failed < 6; ++failed) {
    tick_until_dropped();
    feed(DrainFailed{1, lock.grant});
  }
  EXPECT_FALSE(view(*state, now)[0].clients[0].drainable);
  feed(ClientLeft{2, true});
  pause();
  EXPECT_TRUE(view(*state, now)[0].clients[0].drainable);
  EXPECT_EQ(view(*state, now)[0].clients[0].failed_drains_in_row, 0);
}

// Whoever used the GPU a moment ago counts as there, so that nobody is told of each of its turns.
TEST_F(Pauses, ANeighbourThatComesAndGoesCountsForASecond) {
  pause();
  join(2);
  const Actions left = feed(LockReleased{1, lock.grant, {kGiB, kGiB, 0}, false, 0, 0});
  const auto others = find<SendLock>(left, 2);
  ASSERT_TRUE(others);
  feed(LockReleased{2, others->grant, {kGiB, kGiB, 0}, true, 0, kMsec});
  now += 900 * kMsec;
  EXPECT_FALSE(find<SendContention>(feed(Tick{}), 1));
  now += 200 * kMsec;
  EXPECT_GT(find<SendContention>(feed(Tick{}), 1).value_or(SendContention{}).pause, 0);
}

// ---- by the work that programs get done ----

struct Speed {
  double of_alone;      // percent
  double billed_per_s;  // percent of the GPU
  uint64_t pauses, waits;
};

Speed speed_under(int limit, Duration on, Duration off, uint64_t seed) {
  std::array<double, 2> work{};
  Speed speed{};
  for (const bool limited : {false, true}) {
    QuotaWorld world({}, seed);
    world.limit(1, limited ? limit : 100);
    world.start_delay = 180 * kUs;  // as on an H200, from its asking to its first kernel
    const ClientId id = world.add_bursty(1, on, off, 20 * kUs).id;
    world.run_for(2 * kSeconds);
    const double before = world.work(1);
    const Duration used = world.tenant(1).used;
    world.run_for(20 * kSeconds);
    work[limited] = world.work(1) - before;
    if (limited) speed.billed_per_s = static_cast<double>(world.tenant(1).used - used) / 20e9 * 100;
    if (limited) speed.pauses = world.job(id).pauses;
    EXPECT_FALSE(world.broken()) << world.describe();
  }
  speed.of_alone = 100 * work[1] / work[0];
  return speed;
}

TEST(PausesInTime, AProgramThatPausesOftenIsNotSlowed) {
  const Speed usual = speed_under(50, 3 * kMsec, 7 * kMsec, 1);
  EXPECT_GT(usual.of_alone, 99.5);
  EXPECT_GT(usual.pauses, 1900U);
  EXPECT_LT(usual.billed_per_s, 34);
  // It leaves the GPU idle half the time.
  EXPECT_GT(speed_under(60, 5 * kMsec, 5 * kMsec, 2).of_alone, 99.3);
  EXPECT_GT(speed_under(60, kMsec, kMsec, 3).of_alone, 97.0);
  // Pauses that are too long for it cost little because they are few.
  EXPECT_GT(speed_under(50, 100 * kMsec, 150 * kMsec, 4).of_alone, 99.5);
}

// Others come and go beside it, at any moment of its pauses: the policy's promises hold at every step (QuotaWorld looks), nobody waits for
// long for who pauses, and all get on.
TEST(PausesInTime, NobodyWaitsForWhoPauses) {
  for (uint64_t seed = 1; seed <= repeats(20u, 4); ++seed) {
    QuotaWorld world({}, seed);
    std::mt19937_64 random(seed);
    const auto between = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    world.limit(1, static_cast<int>(between(20, 80)));
    world.limit(2, static_cast<int>(between(20, 100)));
    const ClientId pauser = world.add_bursty(1, between(1, 5) * kMsec, between(1, 20) * kMsec, 50 * kUs).id;
    const ClientId visitor = world.add_bursty(2, between(1, 30) * kMsec, between(1200, 3000) * kMsec, 100 * kUs).id;
    world.run_for(60 * kSeconds);
    ASSERT_FALSE(world.broken()) << "seed " << seed << "\n" << world.describe();
    EXPECT_GT(world.job(pauser).pauses, 100U) << "seed " << seed;
    EXPECT_GT(world.job(visitor).bursts, 15U) << "seed " << seed << "\n" << world.describe();
    for (const ClientView& client : world.gpu().clients) {
      if (client.client != visitor) continue;
      EXPECT_LT(client.time_waiting, static_cast<Duration>(client.turns) * 20 * kMsec) << "seed " << seed;
    }
  }
}

// A program whose bursts are more than its limit is held to it, pauses or not.
TEST(PausesInTime, PausesAreNoWayPastALimit) {
  for (const auto& [on, off] : std::vector<std::pair<Duration, Duration>>{{9 * kMsec, kMsec}, {kMsec, 400 * kUs}, {4 * kMsec, 2 * kMsec}}) {
    for (const bool lies : {false, true}) {
      QuotaWorld world({}, 5);
      world.limit(1, 30);
      world.add_bursty(1, on, off, 20 * kUs).lies = lies;
      world.run_for(2 * kSeconds);
      const double before = world.work(1);
      world.run_for(20 * kSeconds);
      const double share = (world.work(1) - before) / 20e9 * 100;
      EXPECT_LT(share, lies ? 33.6 : 30.5) << on << " " << off;  // a lie is believed up to 1.7 points, of bursts twice (docs/adr/0010)
      EXPECT_GT(share, 24) << on << " " << off;                  // of each pause the time until it is noticed is billed
      EXPECT_FALSE(world.broken()) << world.describe();
    }
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
