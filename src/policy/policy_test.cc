// The mission's cases, one test each, played by clients on virtual time (test_world.h).
#include <gtest/gtest.h>

#include "policy/testing/test_world.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kGpu = 16 * kGiB;

struct Case : ::testing::Test {
  explicit Case(const Config& config = {}) : world(config, 1) { world.add_gpu(0, kGpu); }
  void run(Duration time) {
    world.run_until(world.now() + time);
    ASSERT_FALSE(world.broken()) << world.describe();
  }
  void run_to_the_end() {
    run(100'000 * kSec);
    ASSERT_TRUE(world.all_finished()) << world.describe();
  }
  Duration since_start() const { return world.now() - start; }
  ClientState state(const Player& player) const { return world.view_of(player.id).state; }

  World world;
  const Instant start = world.now();
};

Config fixed_turns(Duration time) {
  Config config;
  config.switch_time_mode = SwitchTimeMode::kFixed;
  config.switch_time_fixed = time;
  return config;
}

using Turns = Case;

TEST_F(Turns, TwelveAndTwelveOnSixteenTakeTurns) {
  const Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  for (int i = 0; i < 150 && !a.finished_at && !b.finished_at; ++i) {
    run(kSec);
    EXPECT_LE(world.resident(0), world.gpu_view(0).safe_limit);
    EXPECT_FALSE(state(a) == ClientState::kRunning && state(b) == ClientState::kRunning);
  }
  run_to_the_end();
  EXPECT_GE(a.drops + b.drops, 3U);
  EXPECT_GE(a.grants, 2U);
  EXPECT_GE(b.grants, 2U);
  EXPECT_EQ(a.ran, 100 * kSec);
  EXPECT_EQ(b.ran, 100 * kSec);
}

TEST_F(Turns, ThreeTimesFourOnSixteenRunTogetherAndNobodyIsAskedToDrop) {
  std::vector<const Player*> players;
  for (int i = 0; i < 3; ++i) players.push_back(&world.add_player(0, {run_for(200 * kSec), leave_now()}, 4 * kGiB));
  run(10 * kSec);
  for (const Player* player : players) EXPECT_EQ(state(*player), ClientState::kRunning);
  run_to_the_end();
  for (const Player* player : players) {
    EXPECT_EQ(player->drops, 0U);
    EXPECT_EQ(player->grants, 1U);
    EXPECT_LT(*player->finished_at - start, 205 * kSec);
  }
}

TEST_F(Turns, ArrivingAtAnIdleGpuRunsAtOnceWhileTheOtherIsBusy) {
  world.add_gpu(1, kGpu);
  const Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(20 * kSec);
  const Player& b = world.add_player(1, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  EXPECT_EQ(state(a), ClientState::kRunning);
  EXPECT_EQ(state(b), ClientState::kRunning);
  run_to_the_end();
  EXPECT_EQ(a.drops + b.drops, 0U);
}

TEST_F(Turns, FinishingEarlyStartsTheNextAtOnce) {
  const Player& a = world.add_player(0, {run_for(5 * kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(50 * kSec), leave_now()}, 12 * kGiB);
  run(4 * kSec);
  EXPECT_EQ(state(b), ClientState::kWaiting);
  run_to_the_end();
  EXPECT_LT(b.granted_at.at(0) - *a.finished_at, 10 * kMs);
  EXPECT_EQ(a.drops + b.drops, 0U);
}

TEST_F(Turns, ReleasingEarlyStartsTheNextAtOnce) {
  const Player& a = world.add_player(0, {run_for(5 * kSec), idle_for(500 * kSec), run_for(kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(50 * kSec), leave_now()}, 12 * kGiB);
  run(20 * kSec);
  EXPECT_EQ(state(a), ClientState::kIdle);
  EXPECT_EQ(state(b), ClientState::kRunning);
  EXPECT_LT(b.granted_at.at(0) - start, 8 * kSec);
  run_to_the_end();
  EXPECT_EQ(a.drops, 0U);
}

TEST_F(Turns, MemoryFreedInMidTurnAdmitsAWaiterWithoutADrop) {
  const Player& a = world.add_player(0, {run_for(5 * kSec), shrink_by(10 * kGiB), run_for(100 * kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(50 * kSec), leave_now()}, 12 * kGiB);
  run(4 * kSec);
  EXPECT_EQ(state(b), ClientState::kWaiting);
  run(6 * kSec);
  EXPECT_EQ(state(a), ClientState::kRunning);
  EXPECT_EQ(state(b), ClientState::kRunning);
  run_to_the_end();
  EXPECT_EQ(a.drops + b.drops, 0U);
}

TEST_F(Turns, GrowingIntoFreeMemoryNeitherWaitsNorDisturbs) {
  const Player& a = world.add_player(0, {run_for(kSec), grow_by(6 * kGiB), run_for(10 * kSec), leave_now()}, 4 * kGiB);
  const Player& b = world.add_player(0, {run_for(30 * kSec), leave_now()}, 4 * kGiB);
  run_to_the_end();
  EXPECT_EQ(a.refusals, 0U);
  EXPECT_EQ(a.drops + b.drops, 0U);
  EXPECT_LT(*a.finished_at - start, 13 * kSec);
}

TEST_F(Turns, GrowingPastANeighbourEndsTheLongestTurnAndKeepsTheClockOfTheOther) {
  const Player& a = world.add_player(0, {run_for(200 * kSec), leave_now()}, 8 * kGiB);  // the longest turn
  run(100 * kSec);
  const Player& b = world.add_player(0, {run_for(2 * kSec), grow_by(4 * kGiB), run_for(100 * kSec), leave_now()}, 6 * kGiB);
  run(3 * kSec);
  EXPECT_EQ(a.drops, 1U);
  run(5 * kSec);
  EXPECT_EQ(state(a), ClientState::kWaiting);
  EXPECT_EQ(state(b), ClientState::kRunning);
  EXPECT_EQ(b.refusals, 0U);
  EXPECT_EQ(b.memory.allocated, 10 * kGiB);
  // From now on they take turns: b's turn began when it was first granted, not when it grew.
  const Duration turn = world.gpu_view(0).switch_time;
  run(b.running_at.at(0) + turn - world.now() - kSec);
  EXPECT_EQ(b.drops, 0U);
  run(2 * kSec);
  EXPECT_EQ(b.drops, 1U);
  run_to_the_end();
  EXPECT_EQ(a.ran, 200 * kSec);
  EXPECT_EQ(b.ran, 102 * kSec);
}

TEST_F(Turns, TheLongestRunningThatGrowsWaitsForItsNextTurnWithMoreMemory) {
  const Player& a = world.add_player(0, {run_for(100 * kSec), grow_by(4 * kGiB), run_for(10 * kSec), leave_now()}, 8 * kGiB);
  run(98 * kSec);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 6 * kGiB);
  run(5 * kSec);
  EXPECT_EQ(a.drops, 1U);  // its turn was over; the allocation went on without the GPU
  EXPECT_EQ(a.memory.allocated, 12 * kGiB);
  EXPECT_EQ(a.refusals, 0U);
  EXPECT_EQ(b.drops, 0U);
  run_to_the_end();
  EXPECT_EQ(a.ran, 110 * kSec);
}

TEST_F(Turns, GrowingPastTheGpuIsRefused) {
  const Player& a = world.add_player(0, {run_for(kSec), grow_by(16 * kGiB), run_for(kSec), leave_now()}, 4 * kGiB);
  run_to_the_end();
  EXPECT_EQ(a.refusals, 1U);
  EXPECT_EQ(a.ran, 2 * kSec);
}

TEST_F(Turns, SixteenAskedAndOneUsedCountsAsSixteen) {
  // 15 GiB allocated, of which the program would touch one: who sees only the allocation may not run anybody beside it.
  const Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 14 * kGiB);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 2 * kGiB);
  for (int i = 0; i < 100; ++i) {
    run(kSec);
    ASSERT_FALSE(state(a) == ClientState::kRunning && state(b) == ClientState::kRunning);
  }
  run_to_the_end();
}

TEST_F(Turns, FourTimesTwelveRotate) {
  std::vector<const Player*> players;
  for (int i = 0; i < 4; ++i) players.push_back(&world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB));
  run(300 * kSec);
  for (const Player* player : players) {
    EXPECT_GE(player->grants, 2U);
    EXPECT_NEAR(static_cast<double>(player->ran) / kSec, 75, 30);
  }
  run_to_the_end();
  // Four hours of work in four hours and the swaps: at most what the multiplier allows.
  EXPECT_LT(since_start() > 0 ? *players[3]->finished_at - start : 0, 400 * kSec * 6 / 5 + 20 * kSec);
}

TEST_F(Turns, TenTimesOneRunTogether) {
  std::vector<const Player*> players;
  for (int i = 0; i < 10; ++i) players.push_back(&world.add_player(0, {run_for(100 * kSec), leave_now()}, kGiB));
  run_to_the_end();
  for (const Player* player : players) {
    EXPECT_EQ(player->drops, 0U);
    EXPECT_LT(*player->finished_at - start, 103 * kSec);
  }
}

TEST_F(Turns, AWakingInteractiveClientEndsATurnEarly) {
  const Player& batch = world.add_player(0, {run_for(1000 * kSec), leave_now()}, 12 * kGiB);
  std::deque<Phase> cells{run_for(kSec)};
  for (int i = 0; i < 5; ++i) {
    cells.push_back(idle_for(100 * kSec));
    cells.push_back(run_for(kSec));
  }
  cells.push_back(leave_now());
  const Player& notebook = world.add_player(0, cells, 8 * kGiB);
  run(1100 * kSec);
  ASSERT_GE(notebook.granted_at.size(), 6U) << world.describe();
  EXPECT_TRUE(notebook.finished_at);
  // After the first cell its wait is a hand-off, not the batch job's turn.
  EXPECT_EQ(notebook.drops, 0U);
  EXPECT_LT(world.view_of(batch.id).time_waiting, 60 * kSec);
  EXPECT_LT(*notebook.finished_at - notebook.granted_at.at(0), 5 * 110 * kSec);
  run_to_the_end();
}

TEST_F(Turns, ABatchJobThatCameSecondIsNoWakingClient) {
  world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(20 * kSec);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  const Instant came = world.now();
  run(kSec);
  const Duration turn = world.gpu_view(0).switch_time;
  EXPECT_GT(turn, 30 * kSec);
  run(100 * kSec);
  ASSERT_FALSE(b.granted_at.empty());
  EXPECT_GT(b.granted_at[0] - came, turn - 25 * kSec);
  EXPECT_LE(b.granted_at[0] - came, turn);
  run_to_the_end();
}

struct FixedTurns : Case {
  FixedTurns() : Case(fixed_turns(30 * kSec)) {}
};

TEST_F(FixedTurns, LastTheConfiguredTimeFromTheEndOfLoading) {
  const Player& a = world.add_player(0, {run_for(300 * kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(300 * kSec), leave_now()}, 12 * kGiB);
  run(200 * kSec);
  ASSERT_GE(a.running_at.size(), 2U);
  ASSERT_GE(b.running_at.size(), 2U);
  EXPECT_NEAR(static_cast<double>(b.granted_at[0] - a.running_at[0]) / kSec, 30, 0.1);
  EXPECT_NEAR(static_cast<double>(a.granted_at[1] - b.running_at[0]) / kSec, 30, 0.1);
  run_to_the_end();
}

TEST_F(FixedTurns, ALoneClientIsNeverDisturbed) {
  const Player& a = world.add_player(0, {run_for(3000 * kSec), leave_now()}, 12 * kGiB);
  run_to_the_end();
  EXPECT_EQ(a.drops, 0U);
  EXPECT_LT(*a.finished_at - start, 3003 * kSec);
}

TEST_F(FixedTurns, OnlyTheShortfallMoves) {
  const Player& a = world.add_player(0, {run_for(300 * kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(300 * kSec), leave_now()}, 6 * kGiB);
  run(33 * kSec);
  EXPECT_EQ(state(b), ClientState::kRunning);
  const Bytes shortfall = 18 * kGiB - world.gpu_view(0).safe_limit;
  EXPECT_GE(a.memory.resident, 12 * kGiB - shortfall - world.chunk);
  EXPECT_LE(a.memory.resident, 12 * kGiB - shortfall);
}

TEST_F(FixedTurns, MemoryIsTakenFromWhoseTurnIsFurthestAway) {
  const Player& idle = world.add_player(0, {run_for(kSec), idle_for(5000 * kSec), leave_now()}, 3 * kGiB);
  run(5 * kSec);
  const Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 11 * kGiB);
  run(5 * kSec);
  EXPECT_EQ(state(a), ClientState::kRunning);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 3 * kGiB);
  run(5 * kSec);
  EXPECT_LT(idle.memory.resident, kGiB);  // not one of the two that have work
  EXPECT_EQ(state(b), ClientState::kRunning);
  EXPECT_EQ(a.drops + b.drops, 0U);
}

TEST_F(FixedTurns, ASmallClientPassesALargeWaiterOnlyWithoutDelayingIt) {
  const Player& running = world.add_player(0, {run_for(300 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& large = world.add_player(0, {run_for(300 * kSec), leave_now()}, 13 * kGiB);
  run(kSec);
  const Player& small = world.add_player(0, {run_for(300 * kSec), leave_now()}, kGiB);
  run(kSec);
  EXPECT_EQ(state(large), ClientState::kWaiting);
  EXPECT_EQ(state(small), ClientState::kRunning);
  run(30 * kSec);
  EXPECT_EQ(state(large), ClientState::kRunning);
  EXPECT_LT(large.granted_at.at(0) - running.running_at.at(0), 30 * kSec + 50 * kMs);
  run_to_the_end();
}

TEST_F(FixedTurns, HigherPriorityGoesFirst) {
  world.add_player(0, {run_for(200 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& low = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& high = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB, 5);
  run_to_the_end();
  EXPECT_LT(high.granted_at.at(0), low.granted_at.at(0));
}

TEST_F(FixedTurns, APriorityThatChangesHoldsForThoseThatWaitAndEndsNoTurn) {
  const Player& running = world.add_player(0, {run_for(200 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& first = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& second = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  world.set_priority(second.tenant, 5);
  world.set_priority(77, 5);  // there is no such tenant
  EXPECT_EQ(world.view_of(second.id).priority, 5);
  run(5 * kSec);
  EXPECT_EQ(state(running), ClientState::kRunning) << "its turn is its own";
  run_to_the_end();
  EXPECT_LT(second.granted_at.at(0), first.granted_at.at(0));
}

// However high the others' priority: after four turn limits one is served as the highest.
TEST_F(FixedTurns, ALoweredPriorityStarvesNobody) {
  std::vector<const Player*> high;
  for (int i = 0; i < 2; ++i) high.push_back(&world.add_player(0, {run_for(2000 * kSec), leave_now()}, 12 * kGiB, 100));
  run(3 * kSec);
  const Player& low = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB, 100);
  world.set_priority(low.tenant, -100);
  run(12 * 30 * kSec);
  EXPECT_GE(low.grants, 1U);
  run_to_the_end();
}

TEST_F(FixedTurns, WhoEndsGetsTheNextTurnAtOnceAndOnce) {
  const Player& running = world.add_player(0, {run_for(200 * kSec), leave_now()}, 12 * kGiB);
  run(5 * kSec);
  const Player& waits = world.add_player(0, {run_for(200 * kSec), leave_now()}, 12 * kGiB, 7);
  run(kSec);
  const Player& ends = world.add_player(0, {run_for(200 * kSec), leave_now()}, 12 * kGiB);
  run(kSec);
  const Instant announced = world.now();
  world.announce_end(ends.tenant);
  run(10 * kSec);
  ASSERT_EQ(ends.grants, 1U) << world.describe();
  EXPECT_LT(ends.granted_at[0] - announced, 5 * kSec) << "it does not wait for the turn's end, nor for a higher priority";
  EXPECT_EQ(state(running), ClientState::kWaiting);
  run(200 * kSec);
  ASSERT_GE(waits.grants, 1U);
  ASSERT_GE(ends.grants, 2U);
  EXPECT_GT(ends.granted_at[1], waits.granted_at[0]) << "once: then its place is as everybody's";
  EXPECT_GE(ends.granted_at[1] - ends.granted_at[0], 30 * kSec);
  run_to_the_end();
}

// The turn under way when its end is announced is not the one that it gets for that.
TEST_F(FixedTurns, WhoEndsInTheMiddleOfItsTurnGetsAnother) {
  const Player& ends = world.add_player(0, {run_for(200 * kSec), leave_now()}, 12 * kGiB);
  run(5 * kSec);
  std::vector<const Player*> others;
  for (int i = 0; i < 3; ++i) others.push_back(&world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB));
  run(kSec);
  world.announce_end(ends.tenant);
  run(80 * kSec);
  ASSERT_GE(ends.grants, 2U) << world.describe();
  uint64_t before = 0;
  for (const Player* other : others) before += other->grants > 0 && other->granted_at[0] < ends.granted_at[1] ? 1 : 0;
  EXPECT_LE(before, 1U);
  run_to_the_end();
}

// Nobody takes the other's last turn from it; a turn that is taken back is none.
TEST_F(FixedTurns, TwoThatEndFollowEachOther) {
  const Player& running = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(5 * kSec);
  const Player& a = world.add_player(0, {run_for(40 * kSec), leave_now()}, 12 * kGiB);
  const Player& b = world.add_player(0, {run_for(40 * kSec), leave_now()}, 12 * kGiB);
  const Player& c = world.add_player(0, {run_for(40 * kSec), leave_now()}, 12 * kGiB);
  run(kSec);
  world.announce_end(c.tenant);
  world.announce_end(a.tenant);
  world.announce_end(b.tenant);
  world.announce_end(a.tenant, false);
  run(100 * kSec);
  ASSERT_GE(b.grants, 1U);
  ASSERT_GE(c.grants, 1U);
  EXPECT_LE(b.grants + c.grants, 4U) << "each has a whole turn";
  EXPECT_TRUE(a.grants == 0 || a.granted_at[0] > std::max(b.granted_at[0], c.granted_at[0]));
  EXPECT_LE(running.drops, 3U);
  run_to_the_end();
}

// Writing down what was copied leaves the GPU idle: the turn goes on after that. Not for ever.
TEST_F(FixedTurns, AFinalTurnInPiecesIsOneTurn) {
  const Player& running = world.add_player(0, {run_for(400 * kSec), leave_now()}, 12 * kGiB);
  run(5 * kSec);
  std::deque<Phase> pieces;
  for (int i = 0; i < 60; ++i) {
    pieces.push_back(run_for(2 * kSec));
    pieces.push_back(idle_for(2 * kSec));
  }
  pieces.push_back(leave_now());
  const Player& ends = world.add_player(0, pieces, 12 * kGiB);
  world.announce_end(ends.tenant);
  run(120 * kSec);
  EXPECT_GE(ends.grants, 3U) << world.describe();
  EXPECT_GT(running.ran, 20 * kSec) << "its neighbour goes on";
  run_to_the_end();
}

TEST_F(FixedTurns, AnUnansweredDropIsToldOnceAndNeighboursThatFitGoOn) {
  Player& hung = world.add_player(0, {run_for(1000 * kSec), leave_now()}, 8 * kGiB);
  hung.hangs = true;
  world.expect_bounded = false;
  run(3 * kSec);
  const Player& large = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(100 * kSec);
  EXPECT_EQ(state(hung), ClientState::kUnresponsive);
  EXPECT_EQ(world.view_of(hung.id).unanswered_drops, 1U);
  EXPECT_EQ(state(large), ClientState::kWaiting);
  const Player& small = world.add_player(0, {run_for(10 * kSec), leave_now()}, 4 * kGiB);
  run(5 * kSec);
  EXPECT_EQ(state(small), ClientState::kRunning);
  world.kill(hung.id, true);
  run(20 * kSec);
  EXPECT_EQ(state(large), ClientState::kRunning);
}

TEST_F(FixedTurns, ADrainThatFailsIsTriedAgain) {
  Player& stubborn = world.add_player(0, {run_for(2000 * kSec), leave_now()}, 12 * kGiB);
  stubborn.drains_to_fail = 10;
  world.expect_bounded = false;  // it answers, but cannot move
  run(3 * kSec);
  const Player& other = world.add_player(0, {run_for(10 * kSec), leave_now()}, 12 * kGiB);
  for (int i = 0; i < 200 && world.view_of(stubborn.id).drainable; ++i) run(kSec);
  EXPECT_FALSE(world.view_of(stubborn.id).drainable);
  for (int i = 0; i < 400 && !world.view_of(stubborn.id).drainable; ++i) run(kSec);
  EXPECT_EQ(world.view_of(stubborn.id).failed_drains, 10U);
  run(5 * kSec);
  EXPECT_TRUE(other.finished_at || state(other) == ClientState::kRunning) << world.describe();
  EXPECT_TRUE(world.view_of(stubborn.id).drainable);
  run_to_the_end();
}

TEST_F(FixedTurns, WithNoHostMemoryThoseWhoRunGoOn) {
  world.set_host(2 * kGiB);
  world.expect_bounded = false;
  const Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& b = world.add_player(0, {run_for(10 * kSec), leave_now()}, 12 * kGiB);
  run(60 * kSec);
  EXPECT_EQ(a.drops, 0U);
  EXPECT_NE(world.view_of(b.id).waiting_for.find("host memory"), std::string::npos) << world.view_of(b.id).waiting_for;
  run_to_the_end();
  EXPECT_EQ(a.ran, 100 * kSec);
  EXPECT_EQ(b.ran, 10 * kSec);
}

TEST_F(FixedTurns, AFailedEvictionGivesTheGpuBackToWhomItWasTakenFrom) {
  world.expect_bounded = false;
  Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  a.evictions_to_fail = 2;
  run(3 * kSec);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(60 * kSec);
  EXPECT_GT(a.ran, 50 * kSec);
  run_to_the_end();
  EXPECT_EQ(a.ran, 100 * kSec);
  EXPECT_EQ(b.ran, 100 * kSec);
}

TEST_F(FixedTurns, AnIdleHolderIsDroppedAtOnceForAWaiter) {
  const Player& idle = world.add_player(0, {run_for(kSec), idle_for(500 * kSec), run_for(kSec), leave_now()}, 12 * kGiB);
  run(10 * kSec);
  EXPECT_TRUE(idle.has_lock);
  const Player& b = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  EXPECT_EQ(state(b), ClientState::kRunning);
}

TEST_F(FixedTurns, ForeignMemoryThatAppearsShrinksWhatMayRunTogether) {
  const Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 7 * kGiB);
  const Player& b = world.add_player(0, {run_for(100 * kSec), leave_now()}, 7 * kGiB);
  run(10 * kSec);
  EXPECT_EQ(a.drops + b.drops, 0U);
  world.set_foreign(0, 4 * kGiB);
  run(3 * kSec);
  EXPECT_EQ(a.drops + b.drops, 1U);
  EXPECT_LE(world.resident(0), world.gpu_view(0).safe_limit);
  world.set_foreign(0, 0);
  run(5 * kSec);
  EXPECT_EQ(state(a), ClientState::kRunning);
  EXPECT_EQ(state(b), ClientState::kRunning);
  run_to_the_end();
}

TEST_F(FixedTurns, DeadMemoryCountsUntilItIsFreed) {
  Player& a = world.add_player(0, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(3 * kSec);
  const Player& b = world.add_player(0, {run_for(10 * kSec), leave_now()}, 12 * kGiB);
  run(kSec);
  world.kill(a.id, false);
  EXPECT_GE(world.gpu_view(0).departed, 12 * kGiB);
  run(5 * kSec);
  EXPECT_EQ(world.gpu_view(0).departed, 0);
  EXPECT_EQ(state(b), ClientState::kRunning);
}

}  // namespace
}  // namespace nvshare::policy::testing
