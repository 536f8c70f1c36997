#include "scheduler/host/host_budget.h"

#include "scheduler/testing/test_host_budget.h"

namespace nvshare::scheduler {
namespace {

using Owner = HostBudget::Owner;
using Bound = HostBudget::Bound;

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
