#include "scheduler/host/host_budget.h"

#include <gtest/gtest.h>

#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

using Owner = HostBudget::Owner;
using Bound = HostBudget::Bound;

// A budget with clients that do at once what they are told, and a scheduler that can make segments.
class HostBudgetTest : public testing::Test {
 protected:
  void SetUp() override {
    budget_.observe({100 * kGiB, std::nullopt});  // keeps 20 GiB free
    for (policy::ClientId client : {1, 2, 3}) budget_.join(client, member(client == 3 ? 7 : client));
  }

  static HostBudget::Member member(policy::TenantId tenant) {
    HostBudget::Member member;
    member.tenant = tenant;
    return member;
  }
  std::vector<HostBudget::Decision> settle() { return budget_.settle(now_); }
  // Nobody has what was to be discarded.
  void gone(const std::vector<HostBudget::Decision>& decisions) {
    for (const auto& discard : of<HostBudget::Discard>(decisions)) budget_.discarded(discard.segment);
  }
  template <typename Kind>
  static std::vector<Kind> of(const std::vector<HostBudget::Decision>& decisions) {
    std::vector<Kind> found;
    for (const auto& decision : decisions) {
      if (const auto* one = std::get_if<Kind>(&decision)) found.push_back(*one);
    }
    return found;
  }
  static int64_t lent(const std::vector<HostBudget::Decision>& decisions) {
    int64_t sum = 0;
    for (const auto& lend : of<HostBudget::Lend>(decisions)) sum += lend.bytes;
    return sum;
  }
  // Asks and answers Make; what was decided in sum.
  std::vector<HostBudget::Decision> ask(policy::ClientId client, int64_t total, Owner owner = Owner::kProcess, bool urgent = true) {
    budget_.request(client, ++requests_, total, owner, urgent);
    auto decisions = settle();
    for (const auto& make : of<HostBudget::Make>(decisions)) budget_.made(make.segment, true);
    auto more = settle();
    decisions.insert(decisions.end(), more.begin(), more.end());
    return decisions;
  }
  // Client 1 has so many whole segments and uses none of them.
  std::vector<HostBudget::Lend> lend_unused(int segments) {
    auto lends = of<HostBudget::Lend>(ask(1, segments * HostBudget::kSegmentMax));
    budget_.report(1, segments * HostBudget::kSegmentMax, 0);
    return lends;
  }
  // The machine runs short by so many for a moment.
  std::vector<HostBudget::Shrink> run_short_by(int segments) {
    budget_.observe({20 * kGiB - segments * HostBudget::kSegmentMax, std::nullopt});
    auto shrinks = of<HostBudget::Shrink>(settle());
    budget_.observe({100 * kGiB, std::nullopt});
    return shrinks;
  }

  HostBudget budget_{[this] { return ++last_id_; }, 0};
  SegmentId last_id_ = 0;
  policy::Instant now_ = kSecond;
  uint64_t requests_ = 0;
};

TEST_F(HostBudgetTest, AsMuchIsKeptFreeAsIsSet) {
  EXPECT_EQ(budget_.view().room, 80 * kGiB) << "a fifth of what there was";
  budget_.set_bounds({{}, std::nullopt});
  EXPECT_EQ(budget_.view().room, 80 * kGiB);
  budget_.set_bounds({{}, 5 * kGiB});
  EXPECT_EQ(budget_.view().room, 95 * kGiB);
  budget_.observe({6 * kGiB, std::nullopt});
  EXPECT_EQ(budget_.view().room, 1 * kGiB);
}

TEST_F(HostBudgetTest, ATenantWithManySegmentsGetsNoSmallOnes) {
  int64_t total = 0;
  size_t count = 0;
  for (int i = 0; i < 1000 && total < 20 * kGiB; ++i) {
    const auto lends = of<HostBudget::Lend>(ask(1, total + HostBudget::kUnit, Owner::kScheduler));
    for (const auto& lend : lends) total += lend.bytes;
    count += lends.size();
    ASSERT_LE(static_cast<int64_t>(count), HostBudget::kSegmentsSmall + total / HostBudget::kPieceMax + 1);
  }
  EXPECT_GE(total, 20 * kGiB) << "it gets larger ones";
  EXPECT_EQ(of<HostBudget::Lend>(ask(2, HostBudget::kUnit, Owner::kScheduler)).at(0).bytes, HostBudget::kUnit) << "another tenant's first";
}

// What it has was taken for memory that is yet to be made until it reported again, which a client that waits for the GPU never does, so
// that neighbours that had to move out for it got none (simulation, seed 1048462).
TEST_F(HostBudgetTest, WhatAReturningClientReportedBeforeItsSegmentsCounts) {
  for (const auto& lend : of<HostBudget::Lend>(ask(1, 40 * kGiB))) last_id_ = lend.segment;
  budget_.report(1, 40 * kGiB, 40 * kGiB);
  budget_.observe({60 * kGiB, std::nullopt});
  EXPECT_EQ(budget_.view().used, 40 * kGiB);
  EXPECT_EQ(budget_.view().room, 40 * kGiB);
  budget_.leave(1);
  for (const auto& discard : of<HostBudget::Discard>(settle())) budget_.still_held(discard.segment, now_);
  HostBudget::Member again = member(1);
  again.former = 1;
  budget_.join(4, again);
  budget_.report(4, 40 * kGiB, 40 * kGiB);
  for (SegmentId id = 1; id <= last_id_; ++id) budget_.held(4, id, 256 * kMiB, Owner::kProcess);
  EXPECT_EQ(budget_.view(4).lent_process, 40 * kGiB);
  EXPECT_EQ(budget_.view().used, 40 * kGiB);
  EXPECT_EQ(lent(ask(2, 40 * kGiB)), 40 * kGiB);
}

TEST_F(HostBudgetTest, LendsInSegmentsWhatIsFree) {
  auto decisions = ask(1, 600 * kMiB + 1);
  auto lends = of<HostBudget::Lend>(decisions);
  ASSERT_EQ(lends.size(), 3u);
  EXPECT_EQ(lends[0].bytes, 256 * kMiB);
  EXPECT_EQ(lends[2].bytes, 90 * kMiB) << "rounded up to whole units";
  EXPECT_TRUE(of<HostBudget::Refuse>(decisions).empty());
  EXPECT_EQ(budget_.view(1).lent_process, 602 * kMiB);
  EXPECT_EQ(lent(ask(1, 500 * kMiB)), 0) << "it has that already";
  EXPECT_EQ(lent(ask(1, 700 * kMiB)), 98 * kMiB);
}

TEST_F(HostBudgetTest, NobodyGetsMoreThanTheBudgetAndTheReasonIsKept) {
  budget_.set_bounds({kGiB, {}});
  EXPECT_EQ(lent(ask(1, 900 * kMiB)), 900 * kMiB);
  budget_.report(1, 900 * kMiB, 900 * kMiB);
  auto decisions = ask(2, 512 * kMiB);
  EXPECT_EQ(lent(decisions), 124 * kMiB) << "a part serves too";
  ASSERT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u);
  EXPECT_EQ(of<HostBudget::Refuse>(decisions)[0].missing, 388 * kMiB);
  EXPECT_EQ(budget_.view(2).missing, 388 * kMiB);
  EXPECT_EQ(budget_.view(2).bound, Bound::kBudget);
  EXPECT_EQ(budget_.view().reserved, kGiB);
  EXPECT_EQ(budget_.view().budget, kGiB);
  EXPECT_EQ(budget_.view().bound, Bound::kBudget);
  budget_.leave(1);
  gone(settle());
  settle();
  EXPECT_EQ(budget_.view(2).missing, 0) << "it could have it now";
}

TEST_F(HostBudgetTest, NothingTooSmallForWhatMovesAtOnceIsLent) {
  budget_.set_bounds({40 * kMiB, {}});
  EXPECT_EQ(lent(ask(1, 512 * kMiB)), 0);
  EXPECT_EQ(lent(ask(1, 30 * kMiB)), 30 * kMiB) << "but what suffices is";
}

TEST_F(HostBudgetTest, WhatIsLentAndNotBuiltYetCountsAsGone) {
  budget_.observe({21 * kGiB, std::nullopt});
  EXPECT_EQ(lent(ask(1, kGiB)), kGiB);
  auto decisions = ask(2, kGiB);
  EXPECT_EQ(lent(decisions), 0);
  EXPECT_EQ(budget_.view(2).bound, Bound::kAvailable);
  budget_.report(1, kGiB, kGiB);
  budget_.observe({20 * kGiB, std::nullopt});  // and now it is in the machine's own figure
  EXPECT_EQ(lent(ask(2, kGiB)), 0);
  budget_.observe({22 * kGiB, std::nullopt});
  EXPECT_EQ(lent(ask(2, kGiB)), kGiB);
}

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
  const auto first = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(first.size(), 1u);
  budget_.shrunk(1, first[0].shrink, 0, now_);
  EXPECT_EQ(of<HostBudget::Refuse>(settle()).size(), 1u);
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
  const auto first = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(first.size(), 1u);
  budget_.shrunk(1, first[0].shrink, 0, now_);
  EXPECT_EQ(of<HostBudget::Refuse>(settle()).size(), 1u);
  budget_.report(1, kGiB, 2 * kGiB - 32 * kMiB);
  EXPECT_TRUE(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).empty());
  budget_.report(1, kGiB, 2 * kGiB - 64 * kMiB);  // what came in since may have left copies (simulation, seed 7200951398)
  const auto second = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(second.size(), 1u);
  budget_.shrunk(1, second[0].shrink, 0, now_);
  EXPECT_EQ(of<HostBudget::Refuse>(settle()).size(), 1u);
  now_ += HostBudget::kShrinkAgain;
  EXPECT_EQ(of<HostBudget::Shrink>(ask(2, 512 * kMiB)).size(), 1u);
}

// Unused places that it could not give back then, as an eviction read them, were used since: what is unused now is something else
// (simulation, seed 7000067865).
TEST_F(HostBudgetTest, WhoGaveNothingAndHadLessMeanwhileIsAskedAgain) {
  budget_.set_bounds({kGiB, {}});
  ask(1, kGiB);
  budget_.report(1, kGiB, 700 * kMiB);
  const auto first = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
  ASSERT_EQ(first.size(), 1u);
  budget_.shrunk(1, first[0].shrink, 0, now_);
  EXPECT_EQ(of<HostBudget::Refuse>(settle()).size(), 1u);
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

TEST_F(HostBudgetTest, TheSchedulersOwnCgroupBoundsWhatItMakes) {
  budget_.observe({100 * kGiB, 300 * kMiB});
  auto decisions = ask(1, 512 * kMiB, Owner::kScheduler);
  EXPECT_EQ(lent(decisions), 256 * kMiB);
  EXPECT_EQ(budget_.view(1).bound, Bound::kOwnCgroup);
  EXPECT_EQ(lent(ask(2, 512 * kMiB, Owner::kProcess)), 512 * kMiB) << "a process's own memory is not the scheduler's";
  EXPECT_EQ(budget_.view(1).lent_scheduler, 256 * kMiB);
}

TEST_F(HostBudgetTest, ReturnedSegmentsServeTheSameTenantOnly) {
  budget_.join(4, member(7));
  auto lends = of<HostBudget::Lend>(ask(3, 256 * kMiB, Owner::kScheduler));
  ASSERT_EQ(lends.size(), 1u);
  budget_.returned(3, lends[0].segment, now_);
  EXPECT_EQ(budget_.view().pooled, 256 * kMiB);
  auto stranger = of<HostBudget::Lend>(ask(1, 256 * kMiB, Owner::kScheduler));
  ASSERT_EQ(stranger.size(), 1u);
  EXPECT_NE(stranger[0].segment, lends[0].segment);
  auto fellow = of<HostBudget::Lend>(ask(4, 256 * kMiB, Owner::kScheduler));
  ASSERT_EQ(fellow.size(), 1u);
  EXPECT_EQ(fellow[0].segment, lends[0].segment);
}

TEST_F(HostBudgetTest, ThePoolGivesWayAndGrowsOld) {
  budget_.set_bounds({512 * kMiB, {}});
  auto lends = of<HostBudget::Lend>(ask(3, 256 * kMiB, Owner::kScheduler));
  budget_.returned(3, lends.at(0).segment, now_);
  auto decisions = ask(1, 512 * kMiB);
  EXPECT_EQ(of<HostBudget::Discard>(decisions).size(), 1u);
  EXPECT_EQ(lent(decisions), 256 * kMiB) << "what is not gone yet counts";
  EXPECT_TRUE(of<HostBudget::Refuse>(decisions).empty()) << "but is waited for";
  gone(decisions);
  EXPECT_EQ(lent(settle()), 256 * kMiB);
  budget_.leave(1);
  gone(settle());
  lends = of<HostBudget::Lend>(ask(3, 256 * kMiB, Owner::kScheduler));
  budget_.returned(3, lends.at(0).segment, now_);
  ASSERT_TRUE(budget_.next_deadline());
  now_ = *budget_.next_deadline();
  auto old = settle();
  EXPECT_EQ(of<HostBudget::Discard>(old).size(), 1u);
  EXPECT_EQ(budget_.view().reserved, 256 * kMiB);
  gone(old);
  EXPECT_EQ(budget_.view().reserved, 0);
}

TEST_F(HostBudgetTest, TheDeadsSegmentsGoAndAreNeverLentAgain) {
  auto lends = of<HostBudget::Lend>(ask(3, 256 * kMiB, Owner::kScheduler));
  budget_.request(3, ++requests_, 512 * kMiB, Owner::kScheduler, true);
  auto makes = of<HostBudget::Make>(settle());
  ASSERT_EQ(makes.size(), 1u);
  budget_.leave(3);
  auto discards = of<HostBudget::Discard>(settle());
  ASSERT_EQ(discards.size(), 1u);
  EXPECT_EQ(discards[0].segment, lends.at(0).segment);
  EXPECT_EQ(discards[0].holder, 3u) << "its process may live";
  EXPECT_EQ(budget_.view().reserved, 512 * kMiB) << "until they are known to be gone";
  budget_.discarded(discards[0].segment);
  budget_.join(3, member(7));  // it comes again under the same id
  budget_.made(makes[0].segment, true);
  discards = of<HostBudget::Discard>(settle());
  ASSERT_EQ(discards.size(), 1u) << "what was in the making when it died";
  EXPECT_EQ(discards[0].segment, makes[0].segment);
  budget_.discarded(discards[0].segment);
  EXPECT_EQ(budget_.view().reserved, 0);
}

TEST_F(HostBudgetTest, WhatCannotBeMadeIsRefused) {
  budget_.request(1, ++requests_, 512 * kMiB, Owner::kScheduler, true);
  auto makes = of<HostBudget::Make>(settle());
  ASSERT_EQ(makes.size(), 2u);
  budget_.made(makes[0].segment, true);
  budget_.made(makes[1].segment, false);
  auto decisions = settle();
  EXPECT_EQ(lent(decisions), 256 * kMiB);
  EXPECT_EQ(budget_.view(1).lent_scheduler, 256 * kMiB);
  ASSERT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u) << "else the client would wait for it";
  EXPECT_EQ(budget_.view(1).bound, Bound::kCannotMake);
  EXPECT_EQ(budget_.view(1).missing, 256 * kMiB);
}

TEST_F(HostBudgetTest, WhatAnEarlierSchedulerLentCounts) {
  budget_.set_bounds({kGiB, {}});
  HostBudget::Member returning = member(1);
  returning.held_scheduler = 800 * kMiB;
  returning.held_process = kGiB;
  returning.most = 900 * kMiB;
  budget_.join(1, returning);
  budget_.held(1, 900, 700 * kMiB, Owner::kScheduler);
  budget_.report(1, 700 * kMiB, 700 * kMiB);
  EXPECT_EQ(budget_.view().reserved, 700 * kMiB);
  budget_.held(1, 901, 200 * kMiB, Owner::kScheduler);
  EXPECT_EQ(budget_.view().reserved, 700 * kMiB) << "more than the kernel shows";
  budget_.held(1, 902, 300 * kMiB, Owner::kProcess);
  EXPECT_EQ(budget_.view().reserved, 700 * kMiB) << "more than its GPU could need";
  auto decisions = ask(2, 512 * kMiB);
  EXPECT_EQ(lent(decisions), 324 * kMiB);
  budget_.returned(1, 900, now_);
  EXPECT_TRUE(of<HostBudget::Discard>(settle()).empty()) << "it is not ours to discard";
  EXPECT_EQ(budget_.view().reserved, 324 * kMiB);
}

// As the kernel shows it: a process can map a file of that name and any size, of which there is not a page.
TEST_F(HostBudgetTest, WhoClaimsMoreThanThereIsTakesNothingFromOthers) {
  HostBudget budget([this] { return ++last_id_; });
  budget.observe({100 * kGiB, std::nullopt});
  HostBudget::Member liar = member(1);
  liar.held_scheduler = 1000 * kGiB;
  budget.join(1, liar);
  budget.join(2, member(2));
  for (const bool is_budgeted : {false, true}) {
    if (is_budgeted) budget.set_bounds({10 * kGiB, {}});
    for (SegmentId id = 1000; id < 2000; ++id) budget.held(1, id + (is_budgeted ? 1000 : 0), HostBudget::kSegmentMax, Owner::kScheduler);
    budget.report(1, 0, 0);
    budget.request(2, ++requests_, (is_budgeted ? 512 : 256) * kMiB, Owner::kProcess, true);
    EXPECT_EQ(lent(budget.settle(now_)), 256 * kMiB) << (is_budgeted ? "with a budget" : "without");
    EXPECT_LE(budget.view().reserved, (is_budgeted ? 10 : 400) * kGiB);
    budget.leave(1);
    for (const auto& discard : of<HostBudget::Discard>(budget.settle(now_))) budget.discarded(discard.segment);
    budget.join(1, liar);
  }
}

// Each of them ended the scheduler: a segment in the making that its client said it had, and gave back.
TEST_F(HostBudgetTest, ASegmentInTheMakingIsNobodysToHoldOrReturn) {
  for (const bool there : {true, false}) {
    budget_.request(1, ++requests_, 64 * kMiB, Owner::kScheduler, true);
    auto makes = of<HostBudget::Make>(settle());
    ASSERT_EQ(makes.size(), 1u);
    for (policy::ClientId client : {1, 2}) {
      budget_.held(client, makes[0].segment, kGiB, Owner::kScheduler);
      budget_.returned(client, makes[0].segment, now_);
    }
    budget_.observe({100 * kGiB, kGiB});  // and the scheduler's own cgroup has a limit
    settle();
    budget_.request(2, ++requests_, 64 * kMiB, Owner::kScheduler, false);
    for (const auto& make : of<HostBudget::Make>(settle())) budget_.made(make.segment, true);
    budget_.made(makes[0].segment, there);
    settle();
    EXPECT_EQ(budget_.view(1).lent_scheduler, there ? 64 * kMiB : 0);
    EXPECT_EQ(budget_.view(2).lent_scheduler, 64 * kMiB);
    for (policy::ClientId client : {1, 2}) {
      budget_.leave(client);
      gone(settle());
      budget_.join(client, member(client));
    }
  }
}

TEST_F(HostBudgetTest, AnothersSegmentIsNobodysToHold) {
  auto lends = of<HostBudget::Lend>(ask(1, 64 * kMiB, Owner::kScheduler));
  ASSERT_EQ(lends.size(), 1u);
  budget_.held(2, lends[0].segment, 64 * kMiB, Owner::kScheduler);
  EXPECT_EQ(budget_.view(2).lent_scheduler, 0);
  budget_.returned(2, lends[0].segment, now_);
  EXPECT_EQ(budget_.view(1).lent_scheduler, 64 * kMiB);
  EXPECT_EQ(budget_.view().pooled, 0);
}

// 200 of them used up the budget.
TEST_F(HostBudgetTest, WhatNobodyKnowsOfIsNotHeld) {
  for (SegmentId id = 1000; id < 1200; ++id) budget_.held(1, id, 256 * kMiB, id % 2 == 0 ? Owner::kProcess : Owner::kScheduler);
  EXPECT_EQ(budget_.view().reserved, 0);
}

// They were counted as free, and 2.5 budgets could be held.
TEST_F(HostBudgetTest, WhatSomebodyKeepsCountsUntilItIsGone) {
  budget_.set_bounds({512 * kMiB, {}});
  auto lends = of<HostBudget::Lend>(ask(3, 256 * kMiB, Owner::kScheduler));
  budget_.leave(3);
  for (int i = 0; i < 8; ++i) {
    auto discards = of<HostBudget::Discard>(settle());
    ASSERT_EQ(discards.size(), 1u) << i;
    EXPECT_TRUE(of<HostBudget::Discard>(settle()).empty()) << "one look at a time";
    budget_.still_held(discards[0].segment, now_);
    EXPECT_EQ(budget_.view().reserved, 256 * kMiB);
    ASSERT_TRUE(budget_.next_deadline());
    now_ = *budget_.next_deadline();
  }
  EXPECT_EQ(lent(ask(1, 512 * kMiB)), 256 * kMiB);
  EXPECT_EQ(budget_.view(1).bound, Bound::kBudget) << "it is not waited for either";
  EXPECT_EQ(budget_.view().room, 256 * kMiB);
  budget_.discarded(lends.at(0).segment);
  EXPECT_EQ(lent(ask(1, 512 * kMiB)), 256 * kMiB);
}

TEST_F(HostBudgetTest, AConnectionThatBrokeDoesNotCostItsProcessItsData) {
  auto lends = of<HostBudget::Lend>(ask(3, 512 * kMiB, Owner::kScheduler));
  ASSERT_EQ(lends.size(), 2u);
  budget_.leave(3);
  auto discards = of<HostBudget::Discard>(settle());
  ASSERT_EQ(discards.size(), 2u);
  for (const auto& discard : discards) EXPECT_EQ(discard.holder, 3u);
  budget_.still_held(discards[0].segment, now_);
  HostBudget::Member again = member(7);
  again.former = 3;
  budget_.join(4, again);
  budget_.held(2, lends[0].segment, 256 * kMiB, Owner::kScheduler);
  EXPECT_EQ(budget_.view(2).lent_scheduler, 0) << "another's";
  budget_.held(4, lends[0].segment, 4096 * kMiB, Owner::kProcess);
  EXPECT_EQ(budget_.view(4).lent_scheduler, 256 * kMiB) << "as it was lent, not as is said";
  EXPECT_EQ(budget_.view().reserved, 512 * kMiB);
  budget_.request(4, ++requests_, 256 * kMiB, Owner::kScheduler, false);
  settle();
  budget_.held(4, lends[1].segment, 256 * kMiB, Owner::kScheduler);
  EXPECT_EQ(budget_.view(4).lent_scheduler, 256 * kMiB) << "what it did not name at first is nobody's";
  budget_.still_held(lends[1].segment, now_);
  now_ = *budget_.next_deadline();
  auto then = of<HostBudget::Discard>(settle());
  ASSERT_EQ(then.size(), 1u);
  EXPECT_EQ(then[0].holder, 0u) << "and is emptied";
  budget_.returned(4, lends[0].segment, now_);
  EXPECT_EQ(budget_.view().pooled, 256 * kMiB);
}

TEST_F(HostBudgetTest, NobodyIsLentMoreThanItsGpuCouldNeed) {
  HostBudget::Member small = member(1);
  small.most = kGiB;
  budget_.join(1, small);
  auto decisions = ask(1, 1024 * kGiB);
  EXPECT_EQ(lent(decisions), kGiB);
  ASSERT_EQ(of<HostBudget::Refuse>(decisions).size(), 1u);
  EXPECT_EQ(of<HostBudget::Refuse>(decisions)[0].missing, 1023 * kGiB);
}

// Of each kind of memory, the program's own and the scheduler's, where only the scheduler's cgroup bounds it.
TEST(HostBudgetShares, EachTenantThatComesFindsSomeThatNobodyElseCouldTake) {
  for (const auto owner : {Owner::kProcess, Owner::kScheduler}) {
    SegmentId last = 0;
    HostBudget budget([&last] { return ++last; });
    if (owner == Owner::kProcess) {
      budget.observe({1000 * kGiB, std::nullopt});
      budget.set_bounds({64 * kGiB, {}});
    } else {
      budget.observe({1000 * kGiB, 64 * kGiB});
    }
    int64_t room = 64 * kGiB;
    int64_t before = 0;
    for (policy::ClientId tenant = 1; tenant <= 5; ++tenant) {
      HostBudget::Member member;
      member.tenant = tenant;
      budget.join(tenant, member);
      int64_t sum = 0;
      for (uint64_t request = 1; request <= 3; ++request) {  // asking again brings no more
        budget.request(tenant, request, 1024 * kGiB, owner, true);
        for (const auto& decision : budget.settle(kSecond)) {
          if (const auto* make = std::get_if<HostBudget::Make>(&decision)) {
            budget.made(make->segment, true);
            room -= make->bytes;
          }
        }
        if (owner == Owner::kScheduler) budget.observe({1000 * kGiB, room});
        budget.settle(kSecond);
        const auto view = budget.view(tenant);
        if (request > 1) {
          EXPECT_EQ(view.lent_process + view.lent_scheduler, sum) << tenant;
        }
        sum = view.lent_process + view.lent_scheduler;
      }
      if (tenant == 1) {
        EXPECT_EQ(sum, 56 * kGiB);
      } else {
        EXPECT_GE(sum, tenant == 2 ? 4 * kGiB : before / 2 - HostBudget::kUnit) << tenant;
      }
      before = sum;
      EXPECT_EQ(budget.view(tenant).bound, Bound::kShare);
    }
  }
}

// What the policy works out for a tenant that would move is what that tenant gets.
TEST(HostBudgetShares, WhatThePolicyReckonsWithIsLent) {
  for (const policy::TenantId one : {1, 2, 3}) {
    SegmentId last = 0;
    HostBudget budget([&last] { return ++last; });
    budget.observe({1000 * kGiB, std::nullopt});
    budget.set_bounds({64 * kGiB, {}});
    const auto ask = [&](policy::TenantId tenant, int64_t total) {
      budget.request(tenant, ++last, total, Owner::kProcess, true);
      budget.settle(kSecond);
    };
    const int64_t used[] = {40 * kGiB, kGiB, 0};
    for (policy::ClientId tenant = 1; tenant <= 3; ++tenant) {
      HostBudget::Member member;
      member.tenant = tenant;
      budget.join(tenant, member);
      ask(tenant, used[tenant - 1]);
      budget.report(tenant, used[tenant - 1], used[tenant - 1]);
    }
    const policy::HostMemory told = budget.view().for_policy;
    EXPECT_EQ(told.available, 23 * kGiB);
    EXPECT_EQ(budget.take_changed(), (std::set<policy::TenantId>{1, 2})) << "without who uses none";
    EXPECT_EQ(budget.ledger().sums().used_by(1), 40 * kGiB);
    const int64_t uses = used[one - 1];
    ask(one, 1024 * kGiB);
    const int64_t more = budget.view(one).lent_process - uses;
    EXPECT_EQ(policy::host_left_for(uses, told.free, told.kept, told.share), more) << one;
    EXPECT_GE(more, 15 * kGiB);
  }
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

TEST_F(HostBudgetTest, RoomIsWhatCouldBeSwappedOutYet) {
  EXPECT_EQ(budget_.view().room, 80 * kGiB);
  budget_.set_bounds({10 * kGiB, {}});
  EXPECT_EQ(budget_.view().room, 10 * kGiB);
  ask(1, 4 * kGiB);
  budget_.report(1, 4 * kGiB, 3 * kGiB);
  budget_.set_elsewhere(kGiB);
  EXPECT_EQ(budget_.view().room, 6 * kGiB) << "what is unused can be had back";
  EXPECT_EQ(budget_.view().used, 4 * kGiB);
  budget_.observe({100 * kGiB, 2 * kGiB});
  EXPECT_EQ(budget_.view().room, 6 * kGiB);
  ask(2, 64 * kMiB, Owner::kScheduler);
  budget_.report(2, 64 * kMiB, 0);
  EXPECT_EQ(budget_.view().room, 2 * kGiB + 64 * kMiB) << "somebody depends on the scheduler's own memory";
}

TEST_F(HostBudgetTest, ClaimsAreBoundedByWhatWasLent) {
  ask(1, kGiB);
  budget_.report(1, 1000 * kGiB, 900 * kGiB);
  EXPECT_EQ(budget_.view().used, kGiB);
}

}  // namespace
}  // namespace nvshare::scheduler
