// Bursts that are foreseen: who makes way for them, and who does not. What a program gets for it is in quota_bursty_test.cc.
#include <gtest/gtest.h>

#include <random>

#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

constexpr Duration kWarmsUp = 2 * kSeconds;
constexpr Duration kMeasured = 20 * kSeconds;
constexpr Duration kOn = 3270 * kUs, kOff = 7100 * kUs;  // hardly more than 30 %

// A program that works and pauses, and one that never pauses, in percent of the GPU's time.
struct Pair {
  Pair() : world({}, 7) {
    world.efficiency_together = 0.9;
    world.switch_takes = 130 * kUs;
  }

  void add(Duration on, Duration off) {
    bursty = world.add_bursty(1, on, off, 20 * kUs).id;
    world.job(bursty).in_flight = 4 * kMsec;
  }
  void add_neighbour(Duration in_flight_least = 2 * kMsec, Duration in_flight = 4 * kMsec) {
    Job& job = world.add(2, 20 * kUs);
    job.in_flight_least = in_flight_least;
    job.in_flight = in_flight;
    neighbour = job.id;
  }
  void run() {
    world.run_for(kWarmsUp);
    const double own_before = world.work(1), others_before = world.work(2);
    const uint64_t drops_before = world.job(neighbour).drops;
    world.run_for(kMeasured);
    EXPECT_EQ(world.broken(), std::nullopt) << world.describe();
    own = 100 * (world.work(1) - own_before) / static_cast<double>(kMeasured);
    neighbours = 100 * (world.work(2) - others_before) / static_cast<double>(kMeasured);
    drops_a_second = static_cast<double>(world.job(neighbour).drops - drops_before) / (static_cast<double>(kMeasured) / 1e9);
  }

  QuotaWorld world;
  ClientId bursty = 0, neighbour = 0;
  double own = 0, neighbours = 0, drops_a_second = 0;
};

TEST(ForeseenBursts, ANeighbourPausesDuringThem) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.world.limit(2, 60);
  pair.add(kOn, kOff);
  pair.add_neighbour();
  pair.run();
  EXPECT_NEAR(pair.own, 30, 0.7);
  EXPECT_NEAR(pair.neighbours, 60, 0.7);
  EXPECT_GT(pair.drops_a_second, 60);
}

// As recorded on an H200 (bench/results/h200-bursts-recording.jsonl.gz): a neighbour's work in flight goes on as a burst begins, which gets
// nothing for as long; it takes now less, now more; and some pauses are longer, those after them shorter.
TEST(ForeseenBursts, WorkInFlightThatDiffersAndAPauseThatIsLateCostLittle) {
  for (const int late_each : {0, 40, 15}) {
    Pair pair;
    pair.world.limit(1, 30);
    pair.world.limit(2, 60);
    pair.world.drains_go_first = true;
    pair.world.late_each = late_each;
    pair.world.pause_delay = 200 * kUs;
    pair.add(kOn, kOff);
    pair.add_neighbour(1500 * kUs, 3300 * kUs);
    pair.run();
    if (std::getenv("NVSHARE_TEST_SHOW") != nullptr)
      printf("late %d: %.2f, neighbour %.2f, %.0f drops/s\n", late_each, pair.own, pair.neighbours, pair.drops_a_second);
    EXPECT_NEAR(pair.own, 30, 0.7) << late_each;
    EXPECT_NEAR(pair.neighbours, 60, 0.7) << late_each;
  }
}

TEST(ForeseenBursts, OneThatAsksForLessThanItIsGrantedHasWhatItAsksFor) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.world.limit(2, 60);
  pair.add(2500 * kUs, 7500 * kUs);
  pair.add_neighbour();
  pair.run();
  EXPECT_NEAR(pair.own, 25, 1) << "20.5 without";
  EXPECT_NEAR(pair.neighbours, 60, 0.8);
}

// Else a tenant could have more for setting itself a limit.
TEST(ForeseenBursts, NobodyMakesWayForACeilingThatATenantSetItself) {
  Pair pair;
  pair.world.ceiling(1, 30);
  pair.world.limit(2, 60);
  pair.add(kOn, kOff);
  pair.add_neighbour();
  pair.run();
  EXPECT_LT(pair.drops_a_second, 10);
}

TEST(ForeseenBursts, NobodyWithoutALimitMakesWay) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.add(kOn, kOff);
  pair.add_neighbour();
  pair.run();
  EXPECT_EQ(pair.drops_a_second, 0);
}

TEST(ForeseenBursts, NobodyMakesWayWhereLimitsLeaveNothing) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.world.limit(2, 70);
  pair.add(kOn, kOff);
  pair.add_neighbour();
  pair.run();
  EXPECT_LT(pair.drops_a_second, 10);
}

// To be asked before the pause has begun that comes before the burst is of no use.
TEST(ForeseenBursts, ANeighbourWithTooMuchInFlightDoesNotMakeWay) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.world.limit(2, 60);
  pair.add(kOn, kOff);
  pair.add_neighbour(8 * kMsec, 12 * kMsec);
  pair.run();
  EXPECT_LT(pair.drops_a_second, 10);
}

TEST(ForeseenBursts, ANeighbourThatNeedsTheTimeItselfHasItsLimit) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.world.limit(2, 66);
  pair.add(kOn, kOff);
  pair.add_neighbour();
  pair.run();
  EXPECT_GT(pair.neighbours, 64.5) << "1.2 are the GPU's switching";
}

// A burst each 6 to 16 ms.
TEST(ForeseenBursts, UnevenPausesAreNotForeseen) {
  Pair pair;
  pair.world.limit(1, 30);
  pair.world.limit(2, 60);
  pair.add(kOn, 100 * kSeconds);
  pair.add_neighbour();
  std::mt19937_64 random(11);
  Instant at = pair.world.now();
  for (int bursts = 0; bursts < 3000; ++bursts) {
    pair.world.at(at += kOn + 3 * kMsec + static_cast<Duration>(random() % (10 * kMsec)), [&pair] { pair.world.begin_work(pair.bursty); });
    pair.world.at(at + kOn, [&pair] { pair.world.end_work(pair.bursty); });
  }
  pair.run();
  EXPECT_LT(pair.drops_a_second, 12);
}

// What is foreseen goes by the scheduler's clock, and a neighbour makes way only where that costs it nothing.
TEST(ForeseenBursts, OneThatLiesOfItsBurstsTakesNothingFromItsNeighbour) {
  for (const Duration on : {kOn, 2 * kMsec, kMsec}) {
    Pair pair;
    pair.world.limit(1, 30);
    pair.world.limit(2, 60);
    pair.add(on, kOff);
    pair.world.job(pair.bursty).lies = true;
    pair.add_neighbour();
    pair.run();
    EXPECT_GT(pair.neighbours, 59.2) << on;
    EXPECT_LT(pair.own, 31.7) << on;
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
