// The client's turn core, event by event: memory, growth, headroom and what comes in ahead. turn_test.cc has turns and drains.
#include <gtest/gtest.h>

#include "interposer/turn/test_turn.h"
#include "interposer/turn/turn.h"

namespace nvshare::interposer::turn {
namespace {

using testing::kMs;
using testing::TestTurn;

constexpr Phase O = Phase::kOut, L = Phase::kLoading, R = Phase::kRunning, D = Phase::kDraining, P = Phase::kPaused;

// ---- memory that moves ----

TEST(TurnMemory, WhatMovesWhileTheSchedulerIsAwayIsToldToTheNext) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(protocol::SwapProgress{});
  EXPECT_EQ(turn.sent<protocol::SwapProgress>().size(), 1U);
  turn.take(Disconnected{});
  turn.take(Registering{true});
  const int reports = turn.reports;
  turn.take(protocol::SwapProgress{});
  EXPECT_EQ(turn.sent<protocol::SwapProgress>().size(), 1U);
  EXPECT_EQ(turn.reports, reports + 1) << "the registration under way may say less";
}

// ---- growth ----

TEST(TurnGrowth, NothingIsTakenAloneThatTheNextSchedulerIsNotToldOf) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(Disconnected{});
  turn.take(GrowthWanted{100});
  turn.now += 3000 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{false});
  turn.take(Registering{true});
  const uint64_t budget = turn.budget;
  turn.take(GrowthAlone{budget + 100});
  EXPECT_EQ(turn.budget, budget) << "the registration under way says less";
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kAsked);
  turn.take(Registering{false});
  turn.take(GrowthAlone{budget + 100});
  EXPECT_EQ(turn.budget, budget + 100) << "there was no scheduler after all";
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kGranted);
}

// Others that wait for memory take back what is not used, but not what was granted a moment ago: its thread would ask anew without end.
TEST(TurnGrowth, WhatWasGrantedIsKeptUntilItsThreadHasHadTimeToTakeIt) {
  TestTurn turn;
  turn.contend(1, 1, 0);
  turn.bring_to(R);
  turn.take(turn.contention());
  turn.take(GrowthWanted{100});
  EXPECT_EQ(growth_kept(turn.state()), 0U);
  protocol::MemAvailable granted{};
  granted.request = turn->growth.request;
  granted.granted = 1;
  granted.budget = turn.budget + 100;
  turn.take(granted);
  turn.take(turn.contention());
  EXPECT_EQ(growth_kept(turn.state()), 100U);
  turn.take(GrowthEnded{});
  turn.now += 9 * kMs;
  turn.take(Tick{});
  EXPECT_EQ(growth_kept(turn.state()), 100U) << "the thread may be on its way";
  ASSERT_LE(next_deadline(turn.state()), turn.now + kMs);
  const int reports = turn.reports;
  turn.now += kMs;
  turn.take(Tick{});
  EXPECT_EQ(growth_kept(turn.state()), 0U);
  EXPECT_EQ(turn.reports, reports + 1) << "nobody gives it back";
  EXPECT_EQ(next_deadline(turn.state()), kNever);
}

// Two threads: what the first was granted was given up for the second's request, before the first had woken up.
TEST(TurnGrowth, AnotherThreadsRequestLeavesWhatTheFirstWasGranted) {
  TestTurn turn;
  turn.contend(1, 1, 0);
  turn.bring_to(R);
  const auto grant = [&](uint64_t bytes) {
    turn.take(GrowthWanted{bytes});
    protocol::MemAvailable granted{};
    granted.request = turn->growth.request;
    granted.granted = 1;
    granted.budget = turn.budget + bytes;
    turn.take(granted);
    turn.take(GrowthEnded{});
  };
  grant(100);
  turn.now += 4 * kMs;
  turn.take(GrowthWanted{50});
  EXPECT_EQ(growth_kept(turn.state()), 100U);
  turn.take(GrowthEnded{});
  grant(50);
  EXPECT_EQ(growth_kept(turn.state()), 150U);
  turn.now += 6 * kMs;
  turn.take(Tick{});
  EXPECT_EQ(growth_kept(turn.state()), 50U) << "each for its own time";
  EXPECT_EQ(next_deadline(turn.state()), turn.now + 4 * kMs);
  turn.now += 4 * kMs;
  turn.take(Tick{});
  EXPECT_EQ(growth_kept(turn.state()), 0U);
}

TEST(TurnGrowth, OfManyGrantsNoneIsForgottenBeforeItsTime) {
  KeptGrants kept;
  for (int i = 0; i < 10; ++i) kept.keep(10, 100 + i);
  EXPECT_EQ(kept.bytes(), 100U);
  EXPECT_FALSE(kept.end_before(99));
  EXPECT_TRUE(kept.end_before(102));
  EXPECT_EQ(kept.bytes(), 70U);
  EXPECT_EQ(kept.next_end(), 109) << "the later ones count as one";
  EXPECT_TRUE(kept.end_before(109));
  EXPECT_EQ(kept.bytes(), 0U);
  EXPECT_EQ(kept.next_end(), kNever);
}

TEST(TurnGrowth, NothingIsKeptBeyondTheSchedulerThatGrantedIt) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(GrowthWanted{100});
  protocol::MemAvailable granted{};
  granted.request = turn->growth.request;
  granted.granted = 1;
  turn.take(granted);
  turn.take(Disconnected{});
  EXPECT_EQ(growth_kept(turn.state()), 0U);
}

// The next scheduler may have taken in what the registration said, and gives the rest to others.
TEST(TurnGrowth, PatienceBeginsAnewWhereASchedulerBrokeARegistrationOff) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(Disconnected{});
  const Instant left = turn->disconnected_at;
  turn.now += 5000 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{false});
  EXPECT_EQ(turn->disconnected_at, left) << "nobody listened";
  turn.take(Registering{true});
  turn.take(Registering{false, true});
  EXPECT_EQ(turn->disconnected_at, turn.now);
  // One that never lets it register must not hold allocations up for ever.
  for (int i = 0; i < 20; ++i) {
    turn.now += 1000 * kMs;
    turn.take(Registering{true});
    turn.take(Registering{false, true});
  }
  EXPECT_GT(turn.now - turn->disconnected_at, 2000 * kMs);
  turn.take(Registering{true});
  turn.take(Connected{2, false});
  turn.take(Disconnected{});
  turn.now += 1000 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{false, true});
  EXPECT_EQ(turn->disconnected_at, turn.now) << "as at first";
}

TEST(TurnGrowth, IsAnsweredOnceAndOnlyToItsRequest) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(GrowthWanted{100});
  EXPECT_EQ(turn.sent<SendMemory>().back().wanted, 100U);
  turn.take(protocol::MemAvailable{0, 1, {}, 500, 2});
  EXPECT_EQ(turn.budget, 500U);
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kAsked) << "that was an earlier request's";
  turn.take(protocol::MemAvailable{1, 1, {}, 600, 3});
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kGranted);
  turn.take(GrowthEnded{});
  turn.take(GrowthWanted{100});
  turn.take(protocol::MemAvailable{2, 0, {}, 600, 4});
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kRefused);
}

TEST(TurnGrowth, EndsWithTheTurn) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(GrowthWanted{100});
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  turn.take(WorkDrained{turn.drains.back()});
  EXPECT_FALSE(lost_turn(turn.state()));
  turn.take(MemoryLeft{});
  EXPECT_TRUE(lost_turn(turn.state()));
  turn.take(protocol::MemAvailable{1, 1, {}, 600, 3});
  EXPECT_EQ(turn.budget, 0U) << "the lock is lost, and with it the request";
}

TEST(TurnGrowth, IsAskedForAnewOfTheNextScheduler) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(GrowthWanted{100});
  turn.take(Disconnected{});
  turn.take(Connected{9, false});
  EXPECT_EQ(turn.reports, 1);
  turn.take(MemoryChanged{});
  EXPECT_EQ(turn.sent<SendMemory>().back().wanted, 100U);
}

TEST(TurnGrowth, WithoutASchedulerForLongTakesWhatIsFree) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(GrowthWanted{100});
  turn.take(GrowthAlone{900});
  EXPECT_NE(turn.budget, 900U) << "there is one";
  turn.take(Disconnected{});
  turn.now += 1900 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{false});
  turn.take(GrowthAlone{900});
  EXPECT_NE(turn.budget, 900U) << "it may only be restarting";
  turn.now += 100 * kMs;
  turn.take(GrowthAlone{900});
  EXPECT_EQ(turn.budget, 900U);
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kGranted);
}

// Found by test/simulation (seed 1720037355): stopped while it waited without a scheduler. The next one has come meanwhile, and has given
// what is free to others.
TEST(TurnGrowth, AProgramThatWasStoppedLooksForASchedulerBeforeItHelpsItself) {
  TestTurn turn;
  turn.bring_to(R);
  const uint64_t budget = turn.budget;
  turn.take(GrowthWanted{100});
  turn.take(Disconnected{});
  turn.now += 100 * kMs;
  EXPECT_FALSE(helps_itself(turn.state(), turn.now + 60'000 * kMs)) << "none was looked for";
  turn.now += 1000 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{false});
  turn.now += 7000 * kMs;
  turn.take(GrowthAlone{900});
  EXPECT_EQ(turn.budget, budget);
  EXPECT_EQ(turn->growth.answer, Growth::Answer::kAsked);
  turn.take(Registering{true});
  turn.take(Registering{false});
  turn.take(GrowthAlone{900});
  EXPECT_EQ(turn.budget, 900U) << "there is none";
}

// ---- headroom ----

TEST(TurnHeadroom, AGrantThatCoversTheAllocationIsChargedAtOnce) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(HeadroomWanted{100});
  ASSERT_EQ(turn.sent<AskHeadroom>().size(), 1U);
  EXPECT_EQ(turn.sent<AskHeadroom>()[0].bytes, 100U);
  turn.take(protocol::Headroom{1, 150, 0, 0, 1, {}});
  EXPECT_EQ(turn->headroom.answer, Headroom::Answer::kCharged);
  EXPECT_EQ(turn.charged, 100U);
  EXPECT_EQ(turn.lease, 50U);
  turn.take(HeadroomEnded{});
  EXPECT_EQ(turn->headroom.answer, Headroom::Answer::kNone);
}

TEST(TurnHeadroom, ARefusalsRestStaysInTheLease) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(HeadroomWanted{100});
  turn.take(protocol::Headroom{1, 30, 0, 0, 0, {}});
  EXPECT_EQ(turn->headroom.answer, Headroom::Answer::kRefused);
  EXPECT_EQ(turn.lease, 30U);
  EXPECT_EQ(turn.charged, 0U);
}

TEST(TurnHeadroom, WhatAnswersNobodyGrowsTheLease) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(protocol::Headroom{0, 30, 0, 0, 1, {}});
  turn.take(HeadroomWanted{100});
  turn.take(protocol::Headroom{0, 200, 0, 0, 1, {}});
  EXPECT_EQ(turn->headroom.answer, Headroom::Answer::kAsked) << "the limit was raised; the answer is still to come";
  EXPECT_EQ(turn.lease, 230U);
}

TEST(TurnHeadroom, TheNextSchedulerIsAskedAfterItHasHeardWhatThereIs) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Disconnected{});
  turn.take(HeadroomWanted{100});
  turn.take(Connected{9, false});
  EXPECT_TRUE(turn.sent<AskHeadroom>().empty());
  turn.take(Introduced{});
  EXPECT_EQ(turn.sent<AskHeadroom>().size(), 1U);
  turn.take(Disconnected{});
  turn.lease = 100;  // another allocation's memory was freed
  turn.take(Connected{10, false});
  turn.take(Introduced{});
  EXPECT_EQ(turn->headroom.answer, Headroom::Answer::kCharged);
  EXPECT_EQ(turn.charged, 100U);
  EXPECT_EQ(turn.sent<AskHeadroom>().size(), 1U);
  turn.take(LeaseTried{true});
  turn.take(HeadroomEnded{});
  turn.take(LeaseTried{false});
  EXPECT_EQ(turn.sent<AskHeadroom>().size(), 1U) << "nobody waits any more";
}

// ---- memory that comes in without the lock ----

TEST(TurnPrefetch, ComesInWithinItsBudgetAndOpensNothing) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Wished{turn.now, false});
  turn.take(protocol::Prefetch{1, 400});
  EXPECT_EQ(turn.prefetches, std::vector<uint64_t>{1});
  EXPECT_EQ(turn.budget, 400U);
  EXPECT_TRUE(prefetch_wanted(turn.state(), 1));
  EXPECT_FALSE(turn.gate_open);
  turn.take(PrefetchEnded{1});
  EXPECT_EQ(turn.budget, 0U) << "from now on it has no more than it tells";
  EXPECT_FALSE(prefetch_wanted(turn.state(), 1));
  EXPECT_EQ(turn->phase, O);
}

TEST(TurnPrefetch, AGrantTakesItsPlaceAndItsEndChangesNothingMore) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(protocol::Prefetch{1, 400});
  turn.take(protocol::LockOk{TestTurn::grant(3), 1000, 1});
  EXPECT_FALSE(prefetch_wanted(turn.state(), 1)) << "the load brings the rest in";
  turn.take(PrefetchEnded{1});
  EXPECT_EQ(turn.budget, 1000U);
  EXPECT_EQ(turn->phase, L);
}

TEST(TurnPrefetch, TheNextSchedulerIsToldOnceItHasEnded) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(protocol::Prefetch{1, 400});
  turn.take(Disconnected{});
  EXPECT_FALSE(prefetch_wanted(turn.state(), 1));
  EXPECT_TRUE(in_between(turn.state()));
  turn.take(PrefetchEnded{1});
  EXPECT_FALSE(in_between(turn.state()));
  EXPECT_EQ(turn.budget, 0U);
}

TEST(TurnPrefetch, WithTheLockNothingIsWantedAndItIsAnswered) {
  for (const Phase phase : {L, R, D, P}) {
    TestTurn turn;
    turn.bring_to(phase);
    const uint64_t budget = turn.budget;
    turn.take(protocol::Prefetch{1, 400});
    EXPECT_EQ(turn.prefetches.size(), 1U) << "the swap engine tells that it has ended";
    EXPECT_FALSE(prefetch_wanted(turn.state(), 1));
    EXPECT_EQ(turn.budget, budget);
  }
}

}  // namespace
}  // namespace nvshare::interposer::turn
