// Clients that are asked to give back what they do not use, and how long others wait for them.
#include "scheduler/testing/test_host_budget.h"

namespace nvshare::scheduler {
namespace {

using Bound = HostBudget::Bound;

TEST_F(HostBudgetTest, TheUrgentGetsWhatOthersDoNotUse) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB, Owner::kProcess, false);
  budget_.report(1, kGiB, 256 * kMiB);
  EXPECT_EQ(of<HostBudget::Refuse>(ask(2, 512 * kMiB, Owner::kProcess, false)).size(), 1u) << "who only prepares takes from nobody";
  auto decisions = ask(2, 512 * kMiB);
  auto shrinks = of<HostBudget::Shrink>(decisions);
  ASSERT_EQ(shrinks.size(), 1u);
  EXPECT_EQ(shrinks[0].client, 1u);
  EXPECT_EQ(shrinks[0].bytes, 512 * kMiB);
  EXPECT_TRUE(of<HostBudget::Refuse>(decisions).empty()) << "not answered yet";
  EXPECT_TRUE(of<HostBudget::Shrink>(settle()).empty()) << "asked once";
  budget_.returned(1, 1, now_);
  EXPECT_EQ(lent(settle()), 256 * kMiB);
  budget_.returned(1, 2, now_);
  budget_.shrunk(1, shrinks[0].shrink, 512 * kMiB, now_);
  EXPECT_EQ(lent(settle()), 256 * kMiB);
  EXPECT_EQ(budget_.view(1).lent_process, 512 * kMiB) << "and it does not get them back at once";
  EXPECT_EQ(budget_.view(2).missing, 0);
}

TEST_F(HostBudgetTest, WhoDoesNotAnswerIsNotWaitedForLong) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, 0);
  EXPECT_EQ(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).size(), 1u);
  ASSERT_TRUE(budget_.next_deadline());
  now_ = *budget_.next_deadline();
  auto decisions = settle();
  ASSERT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u);
  EXPECT_EQ(of<HostBudget::Refuse>(decisions)[0].client, 2u);
  budget_.report(1, kGiB, 0);
  EXPECT_TRUE(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).empty()) << "nor asked again soon, whatever it reports";
  now_ += HostBudget::kShrinkAgain;
  EXPECT_EQ(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).size(), 1u);
}

// Its neighbour got no answer, and the scheduler asked again and again, thousands of times a second.
TEST_F(HostBudgetTest, WhoSaysThatItGaveAndDidNotIsNotWaitedForLong) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, 0);
  const auto shrinks = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(shrinks.size(), 1u);
  budget_.shrunk(1, shrinks[0].shrink, 512 * kMiB, now_);
  const auto decisions = settle();
  EXPECT_TRUE(of<HostBudget::Shrink>(decisions).empty());
  ASSERT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u);
  EXPECT_EQ(of<HostBudget::Refuse>(decisions)[0].client, 2u);
}

// A unit at a time, each just before nobody would have waited for it any more.
TEST_F(HostBudgetTest, WhoGivesLittleByLittleIsNotWaitedForLong) {
  budget_.set_bounds({kGiB, {}});
  std::vector<SegmentId> segments;
  for (int i = 1; i <= 128; ++i) {
    for (const auto& lend : of<HostBudget::Lend>(ask(1, i * HostBudget::kUnit))) segments.push_back(lend.segment);
  }
  ask(1, kGiB);
  budget_.report(1, kGiB, 0);
  auto decisions = ask(2, 512 * kMiB);
  const policy::Instant begun = now_;
  while (of<HostBudget::Refuse>(decisions).empty() && now_ - begun < 60 * kSecond) {
    const auto shrinks = of<HostBudget::Shrink>(decisions);
    ASSERT_EQ(shrinks.size(), 1u);
    now_ += HostBudget::kShrinkPatience - kSecond / 10;
    ASSERT_FALSE(segments.empty());
    budget_.returned(1, segments.back(), now_);
    segments.pop_back();
    budget_.report(1, kGiB, 0);
    budget_.shrunk(1, shrinks[0].shrink, HostBudget::kUnit, now_);
    decisions = settle();
  }
  EXPECT_LE(now_ - begun, HostBudget::kShrinkPatienceInAll + HostBudget::kShrinkPatience);
  EXPECT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u);
}

// It had nothing to give when it was asked, then brought memory in that it had swapped out. What it has now is what its neighbour waits for
// (simulation, seed 61020020).
TEST_F(HostBudgetTest, WhoGaveNothingIsAskedAgainOnceItHasMore) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, kGiB - 32 * kMiB);
  ask_in_vain();
  budget_.report(1, kGiB, kGiB - 64 * kMiB);
  EXPECT_TRUE(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).empty()) << "hardly more than it could not give";
  budget_.report(1, kGiB, kGiB - 600 * kMiB);
  const auto again = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].bytes, 512 * kMiB);
}

// 1 GiB of memory lies nowhere on the GPU and has 512 MiB of places: what was never written needs none, so that some of the places may be
// unused, such as copies of what came in for a turn that has not begun (simulation, seed 6000199488).
TEST_F(HostBudgetTest, WhoHasMoreSwappedThanPlacesIsAskedForWhatItDoesNotUse) {
  budget_.set_bounds({kGiB, {}});
  ask(1, 512 * kMiB);
  budget_.report(1, 512 * kMiB, kGiB);
  EXPECT_EQ(budget_.view().used, 512 * kMiB);
  ask(3, 256 * kMiB);
  budget_.report(3, 256 * kMiB, 192 * kMiB);
  const auto shrinks = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(shrinks.size(), 2u);
  EXPECT_EQ(shrinks[0].client, 3u) << "who is known to have something comes first";
  EXPECT_EQ(shrinks[0].bytes, 64 * kMiB);
  EXPECT_EQ(shrinks[1].client, 1u);
  EXPECT_EQ(shrinks[1].bytes, 192 * kMiB);
  budget_.shrunk(3, shrinks[0].shrink, 0, now_);
  budget_.returned(1, 1, now_);
  budget_.shrunk(1, shrinks[1].shrink, 256 * kMiB, now_);
  EXPECT_EQ(lent(settle()), 256 * kMiB);
  EXPECT_EQ(budget_.view(2).missing, 0);
}

TEST_F(HostBudgetTest, WhoHasAsManyPlacesAsIsSwappedIsNotAsked) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, kGiB);
  const auto decisions = ask(2, 512 * kMiB);
  EXPECT_TRUE(of<HostBudget::Shrink>(decisions).empty());
  EXPECT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u);
}

TEST_F(HostBudgetTest, WhoMayHaveSomethingAndGaveNothingIsNotAskedAgainSoon) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, 2 * kGiB);
  ask_in_vain();
  budget_.report(1, kGiB, 2 * kGiB - 32 * kMiB);
  EXPECT_TRUE(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).empty());
  budget_.report(1, kGiB, 2 * kGiB - 64 * kMiB);  // what came in since may have left copies (simulation, seed 7200951398)
  ask_in_vain();
  now_ += HostBudget::kShrinkAgain;
  EXPECT_EQ(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).size(), 1u);
}

// Unused places that it could not give back then, as an eviction read them, were used since: what is unused now is something else
// (simulation, seed 7000067865).
TEST_F(HostBudgetTest, WhoGaveNothingAndHadLessMeanwhileIsAskedAgain) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, 700 * kMiB);
  ask_in_vain();
  budget_.report(1, kGiB, 980 * kMiB);
  EXPECT_TRUE(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).empty());
  budget_.report(1, kGiB, 700 * kMiB);
  EXPECT_EQ(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).size(), 1u);
}

TEST_F(HostBudgetTest, WhoSwapsOutItselfIsNotAskedToShrink) {
  budget_.set_bounds({kGiB, {}});
  ask(1, 900 * kMiB);
  budget_.report(1, 900 * kMiB, 0);
  budget_.request(1, ++requests_, 2 * kGiB, Owner::kProcess, true);
  budget_.request(2, ++requests_, 512 * kMiB, Owner::kProcess, true);
  EXPECT_TRUE(of<HostBudget::Shrink>(settle()).empty() || budget_.view(1).missing > 0);
}

TEST_F(HostBudgetTest, AMachineThatRunsShortGetsBackWhatIsUnused) {
  ask(1, 4 * kGiB, Owner::kProcess, false);
  budget_.report(1, 4 * kGiB, kGiB);
  budget_.observe({18 * kGiB, std::nullopt});  // 2 GiB under what is to be free
  auto shrinks = of<HostBudget::Shrink>(settle());
  ASSERT_EQ(shrinks.size(), 1u);
  EXPECT_EQ(shrinks[0].bytes, 2 * kGiB);
  EXPECT_EQ(budget_.view().room, kGiB) << "18 + 3 unused - 20 kept free";
  EXPECT_EQ(lent(ask(2, kGiB)), 0);
  budget_.shrunk(1, shrinks[0].shrink, 0, now_);
  EXPECT_EQ(of<HostBudget::Refuse>(settle()).size(), 1u);
  EXPECT_EQ(budget_.view(2).bound, Bound::kAvailable);
}

// What a client asks for while it gives segments back is in addition to what it keeps: it was taken to have that much already, and waited
// for an answer in vain.
TEST_F(HostBudgetTest, WhatAClientAsksForWhileItGivesBackIsLentAfterwards) {
  const auto lends = lend_unused(2);
  const auto shrinks = run_short_by(2);
  ASSERT_EQ(shrinks.size(), 1u);
  const int64_t needed = HostBudget::kSegmentMax + 64 * kMiB;
  EXPECT_TRUE(ask(1, needed).empty()) << "before it has said what it gives back nothing can be said";
  for (const auto& lend : lends) budget_.returned(1, lend.segment, now_);
  EXPECT_EQ(lent(settle()), 0);
  budget_.shrunk(1, shrinks[0].shrink, 2 * HostBudget::kSegmentMax, now_);
  EXPECT_EQ(lent(settle()), needed);
}

// The same of a client that was stopped for so long that nobody waits for its answer any more.
TEST_F(HostBudgetTest, WhatAClientAsksForWhileItGivesBackTooLateIsLentAfterwards) {
  const auto lends = lend_unused(2);
  const auto shrinks = run_short_by(2);
  ASSERT_EQ(shrinks.size(), 1u);
  now_ += 60 * kSecond;
  settle();
  const int64_t needed = HostBudget::kSegmentMax + 64 * kMiB;
  EXPECT_TRUE(ask(1, needed).empty()) << "it has as much, as far as is known";
  int64_t made = 0;
  for (const auto& lend : lends) {
    budget_.returned(1, lend.segment, now_);
    made += lent(settle());
  }
  budget_.shrunk(1, shrinks[0].shrink, 2 * HostBudget::kSegmentMax, now_);
  EXPECT_EQ(made + lent(settle()), needed);
}

// The same of one that is asked to give back more before it has answered the first time.
TEST_F(HostBudgetTest, WhatAClientAsksForBetweenTwoShrinksIsLentAfterwards) {
  const auto lends = lend_unused(3);
  const auto first = run_short_by(1);
  ASSERT_EQ(first.size(), 1u);
  now_ += 60 * kSecond;
  settle();
  const int64_t needed = 2 * HostBudget::kSegmentMax + 64 * kMiB;
  EXPECT_TRUE(ask(1, needed).empty()) << "it has as much, as far as is known";
  now_ += HostBudget::kShrinkAgain;
  const auto second = run_short_by(1);
  ASSERT_EQ(second.size(), 1u);
  for (const auto& lend : lends) budget_.returned(1, lend.segment, now_);
  budget_.shrunk(1, first[0].shrink, HostBudget::kSegmentMax, now_);
  EXPECT_EQ(lent(settle()), 0) << "nobody knows yet how much it gives back";
  budget_.shrunk(1, second[0].shrink, 2 * HostBudget::kSegmentMax, now_);
  EXPECT_EQ(lent(settle()), needed);
}
}  // namespace
}  // namespace nvshare::scheduler
