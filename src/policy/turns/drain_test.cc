// Drains that do not end: nobody is held up by them but who needs that very memory.
#include <gtest/gtest.h>

#include "policy/testing/test_world.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kGpu = 16 * kGiB;

struct Drains : ::testing::Test {
  Drains() : world({}, 1) { world.add_gpu(0, kGpu); }
  void run(Duration time) {
    world.run_until(world.now() + time);
    ASSERT_FALSE(world.broken()) << world.describe();
  }
  ClientState state(const Player& player) const { return world.view_of(player.id).state; }
  World world;
};

TEST_F(Drains, NeighboursThatFitGoOnBesideOneThatNeverEnds) {
  world.expect_bounded = false;
  Player& endless = world.add_player(0, {run_for(10'000 * kSec)}, 8 * kGiB);
  endless.drains_to_fail = 1'000'000;
  run(kSec);
  const Player& large = world.add_player(0, {run_for(5 * kSec), leave_now()}, 12 * kGiB);
  run(200 * kSec);  // past the first turn: its swap is expected to cost much, as nothing was measured yet
  EXPECT_EQ(state(large), ClientState::kWaiting);
  const ClientView stuck = world.view_of(endless.id);
  EXPECT_GE(stuck.failed_drains, 5U);
  EXPECT_FALSE(stuck.drainable);
  EXPECT_EQ(world.view_of(large.id).waiting_for.find("memory that its neighbours cannot give up"), 0U)
      << world.view_of(large.id).waiting_for;

  // Each is admitted at once, whatever moment of the retries it meets, and is not asked to leave for a switch that cannot be.
  for (int i = 0; i < 20; ++i) {
    const Player& small = world.add_player(0, {run_for(1500 * kMs), leave_now()}, kGiB);
    run(300 * kMs);
    ASSERT_EQ(state(small), ClientState::kRunning) << world.describe();
    run(kSec + i * 97 * kMs);
    EXPECT_EQ(small.drops, 0U);
  }
  run(60 * kSec);
  EXPECT_EQ(state(large), ClientState::kWaiting);

  endless.drains_to_fail = 0;  // now it ends after all
  run(60 * kSec);
  EXPECT_TRUE(large.finished_at) << world.describe();
  EXPECT_TRUE(world.view_of(endless.id).drainable);
}

// A drain under way for long is no reason to keep others waiting either, long before its time to answer is over.
TEST_F(Drains, ASlowDrainHoldsNobodyBackWhoFits) {
  world.expect_bounded = false;
  Player& hung = world.add_player(0, {run_for(10'000 * kSec)}, 8 * kGiB);
  hung.hangs = true;
  run(150 * kSec);
  const Player& large = world.add_player(0, {run_for(5 * kSec), leave_now()}, 12 * kGiB);
  run(500 * kMs);
  ASSERT_EQ(state(hung), ClientState::kDropping);
  const Player& small = world.add_player(0, {run_for(kSec), leave_now()}, kGiB);
  run(1500 * kMs);
  EXPECT_EQ(state(hung), ClientState::kDropping);
  EXPECT_TRUE(small.finished_at || state(small) == ClientState::kRunning) << world.describe();
  EXPECT_EQ(state(large), ClientState::kWaiting);
}

// One that does not drain is passed over where another's leaving makes room as well.
TEST_F(Drains, OthersLeaveInsteadOfOneThatDoesNotDrain) {
  Player& endless = world.add_player(0, {run_for(10'000 * kSec)}, 4 * kGiB);
  endless.drains_to_fail = 1'000'000;
  run(kSec);
  Player& willing = world.add_player(0, {run_for(10'000 * kSec)}, 4 * kGiB);
  world.expect_bounded = false;
  run(300 * kSec);
  const Player& comer = world.add_player(0, {run_for(5 * kSec), leave_now()}, 10 * kGiB);
  run(300 * kSec);
  EXPECT_TRUE(comer.finished_at) << world.describe();
  EXPECT_GE(willing.drops, 1U);
}

// It keeps the GPU against every request for minutes. Once it has given it up after all, everybody else goes first, whatever its priority.
TEST_F(Drains, OneThatKeptTheGpuAgainstRequestsComesAfterEverybodyElse) {
  world.expect_bounded = false;
  Player& greedy = world.add_player(0, {run_for(100'000 * kSec)}, 12 * kGiB, 5);
  greedy.drains_to_fail = 1'000'000;
  run(kSec);
  const Player& first = world.add_player(0, {run_for(1000 * kSec)}, 12 * kGiB);
  const Player& second = world.add_player(0, {run_for(1000 * kSec)}, 12 * kGiB);
  run(600 * kSec);
  ASSERT_GE(world.view_of(greedy.id).failed_drains, 10U);
  greedy.drains_to_fail = 0;
  run(100 * kSec);
  const uint64_t turns = world.view_of(greedy.id).turns;
  run(400 * kSec);
  EXPECT_EQ(world.view_of(greedy.id).turns, turns) << "it waits for as long as it had kept the GPU, ten minutes at most";
  EXPECT_GT(world.view_of(first.id).time_running, 100 * kSec);
  EXPECT_GT(world.view_of(second.id).time_running, 100 * kSec);
  run(600 * kSec);
  EXPECT_GT(world.view_of(greedy.id).turns, turns) << "and then it is one of them again";
}

}  // namespace
}  // namespace nvshare::policy::testing
