// The ledger alone: leases, asks and recalls, live changes, deaths. memory_ledger_property_test.cc has random processes.
#include "scheduler/memory/memory_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kUnlimited = MemoryLedger::kUnlimited;
using Decisions = MemoryLedger::Decisions;

template <typename Kind>
std::vector<Kind> all(const Decisions& decisions) {
  std::vector<Kind> found;
  for (const auto& decision : decisions) {
    if (const auto* kind = std::get_if<Kind>(&decision)) found.push_back(*kind);
  }
  return found;
}

class MemoryLedgerTest : public testing::Test {
 protected:
  Decisions join(MemoryLedger::ClientId client, int64_t node_limit, int64_t own_limit = 0, int64_t charged = 0, int64_t lease = 0) {
    return ledger_.join({client, 1, 0, own_limit, node_limit, charged, lease}, now_);
  }
  MemoryLedger ledger_;
  MemoryLedger::Instant now_ = 1'000'000'000;
};

TEST_F(MemoryLedgerTest, WithoutALimitALeaseIsNoBound) {
  join(1, 0);
  EXPECT_EQ(ledger_.lease_of(1), kUnlimited);
}

TEST_F(MemoryLedgerTest, WhoIsAloneHasAllOfItAndNeedNotAsk) {
  join(1, 8 * kGiB);
  EXPECT_EQ(ledger_.lease_of(1), 8 * kGiB);
}

TEST_F(MemoryLedgerTest, TheLowestLimitCountsAndEndsWithItsProcess) {
  join(1, 8 * kGiB);
  join(2, 8 * kGiB, 6 * kGiB);
  EXPECT_EQ(ledger_.limit_of(1), 6 * kGiB) << "one process's environment lowers the tenant's";
  join(3, 8 * kGiB, 20 * kGiB);
  EXPECT_EQ(ledger_.limit_of(1), 6 * kGiB) << "and never raises it";
  ledger_.leave(2, now_);
  EXPECT_EQ(ledger_.limit_of(1), 8 * kGiB);
}

// Containers of 4 and 2 GiB.
TEST_F(MemoryLedgerTest, PartsOfATenantHaveTheirOwnLimitsAndTogetherTheirSum) {
  const auto join_part = [&](MemoryLedger::ClientId client, uint64_t part, int64_t own, int64_t node) {
    return ledger_.join({client, 1, 0, own, node, 0, 0, false, part}, now_);
  };
  join_part(1, 7, 4 * kGiB, 0);
  join_part(2, 8, 2 * kGiB, 0);
  EXPECT_EQ(ledger_.limit_of(1), 4 * kGiB);
  EXPECT_EQ(ledger_.limit_of(2), 2 * kGiB);
  EXPECT_EQ(ledger_.lease_of(1), 4 * kGiB);
  EXPECT_EQ(ledger_.view_of(1, 0)->limit, 6 * kGiB);
  ledger_.report(1, 3 * kGiB, now_);
  EXPECT_EQ(ledger_.charged_by_others(2), 0) << "what the other container has is no part of its own";

  ledger_.set_limit(1, 0, 5 * kGiB, now_);  // the pod's
  EXPECT_EQ(ledger_.limit_of(1), 4 * kGiB);
  EXPECT_EQ(ledger_.view_of(1, 0)->limit, 5 * kGiB);
  ledger_.report(1, 4 * kGiB, now_);
  EXPECT_EQ(ledger_.limit_of(2) - ledger_.charged_by_others(2), kGiB) << "the pod has no more left";

  Decisions decisions = join_part(3, 9, 0, 5 * kGiB);  // bound by the pod alone
  EXPECT_EQ(ledger_.limit_of(3), 5 * kGiB);
  EXPECT_EQ(ledger_.limit_of(1), 4 * kGiB) << "nobody raises another container's";
  ledger_.set_limit(1, 0, 0, now_);
  EXPECT_EQ(ledger_.lease_of(3), kUnlimited);
  EXPECT_LE(ledger_.lease_of(1), 4 * kGiB);
  decisions = ledger_.ask(1, 1, 5 * kGiB, 0, now_);
  ASSERT_EQ(all<MemoryLedger::Grant>(decisions).size(), 1u);
  EXPECT_FALSE(all<MemoryLedger::Grant>(decisions)[0].granted);
}

TEST_F(MemoryLedgerTest, RandomAsksOfPartsNeverPassTheirLimitsNorTheTenants) {
  uint64_t random = 12345;
  const auto below = [&](int64_t bound) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((random >> 16) % static_cast<uint64_t>(bound));
  };
  const int64_t of_part[] = {4 * kGiB, 2 * kGiB, 0};
  constexpr int64_t kPod = 7 * kGiB;
  std::map<MemoryLedger::ClientId, std::pair<uint64_t, int64_t>> clients;  // part, charged
  uint64_t request = 0;
  uint64_t answered = 0;
  const std::function<void(const Decisions&)> perform = [&](const Decisions& decisions) {
    for (const auto& grant : all<MemoryLedger::Grant>(decisions)) answered = std::max(answered, grant.request);
    for (const auto& recall : all<MemoryLedger::Recall>(decisions)) {
      const int64_t charged = clients.at(recall.client).second;
      perform(ledger_.returned(recall.client, recall.recall, ledger_.lease_of(recall.client) - charged, charged, now_));
    }
  };
  for (int step = 0; step < 5000; ++step) {
    const auto id = static_cast<MemoryLedger::ClientId>(1 + below(8));
    now_ += 1'000'000;
    auto at = clients.find(id);
    if (at == clients.end()) {
      const auto part = static_cast<uint64_t>(below(3));
      clients[id] = {part, 0};
      perform(ledger_.join({id, 1, 0, of_part[part], kPod, 0, 0, false, part}, now_));
    } else if (below(10) == 0) {
      clients.erase(at);
      perform(ledger_.leave(id, now_));
    } else if (below(2) == 0) {
      at->second.second = below(at->second.second + 1);
      perform(ledger_.report(id, at->second.second, now_));
    } else {
      const int64_t bytes = 1 + below(2 * kGiB);
      const int64_t free_now = ledger_.lease_of(id) - at->second.second;
      if (bytes > free_now) {
        perform(ledger_.ask(id, ++request, bytes, free_now, now_));
        ASSERT_EQ(answered, request) << "step " << step;
      }
      if (ledger_.lease_of(id) - at->second.second >= bytes) at->second.second += bytes;
    }
    int64_t leased[3] = {};
    for (const auto& [client, known] : clients) leased[known.first] += ledger_.lease_of(client);
    ASSERT_LE(leased[0] + leased[1] + leased[2], kPod) << "step " << step;
    for (int part = 0; part < 2; ++part) ASSERT_LE(leased[part], of_part[part]) << "step " << step;
  }
  EXPECT_GT(request, 100u);
}

TEST_F(MemoryLedgerTest, UnusedLeasesAreRecalledAndThenGranted) {
  join(1, 8 * kGiB);
  join(2, 8 * kGiB);
  ledger_.report(1, kGiB, now_);
  Decisions first = ledger_.ask(2, 1, 4 * kGiB, 0, now_);
  ASSERT_EQ(all<MemoryLedger::Recall>(first).size(), 1u);
  const auto recall = all<MemoryLedger::Recall>(first)[0];
  EXPECT_EQ(recall.client, 1u);
  EXPECT_GE(recall.bytes, 4 * kGiB);
  EXPECT_TRUE(all<MemoryLedger::Grant>(first).empty()) << "what is leased may be in use already";
  Decisions second = ledger_.returned(1, recall.recall, 5 * kGiB, kGiB, now_);
  ASSERT_EQ(all<MemoryLedger::Grant>(second).size(), 1u);
  EXPECT_TRUE(all<MemoryLedger::Grant>(second)[0].granted);
  EXPECT_GE(all<MemoryLedger::Grant>(second)[0].bytes, 4 * kGiB);
  EXPECT_LE(ledger_.lease_of(1) + ledger_.lease_of(2), 8 * kGiB);
}

TEST_F(MemoryLedgerTest, OfTwoThatRaceForTheLastGibOneGetsIt) {
  join(1, 8 * kGiB, 0, 4 * kGiB, 4 * kGiB);
  Decisions decisions = join(2, 8 * kGiB, 0, 3 * kGiB, 3 * kGiB);
  for (const auto& more : ledger_.ask(1, 1, kGiB, ledger_.lease_of(1) - 4 * kGiB, now_)) decisions.push_back(more);
  for (const auto& more : ledger_.ask(2, 1, kGiB, ledger_.lease_of(2) - 3 * kGiB, now_)) decisions.push_back(more);
  for (int round = 0; round < 4; ++round) {
    for (const auto& recall : all<MemoryLedger::Recall>(decisions)) {
      for (const auto& more : ledger_.returned(recall.client, recall.recall, 0, recall.client == 1 ? 5 * kGiB : 3 * kGiB, now_)) {
        decisions.push_back(more);
      }
    }
  }
  int granted = 0;
  int answered = 0;
  for (const auto& grant : all<MemoryLedger::Grant>(decisions)) {
    ++answered;
    granted += grant.granted ? 1 : 0;
  }
  EXPECT_EQ(answered, 2);
  EXPECT_EQ(granted, 1);
  EXPECT_LE(ledger_.lease_of(1) + ledger_.lease_of(2), 8 * kGiB);
}

TEST_F(MemoryLedgerTest, WhoDoesNotAnswerCountsWithAllThatItHasAndIsWaitedForOnce) {
  join(1, 8 * kGiB);  // holds all of it, and is stopped
  join(2, 8 * kGiB);
  ASSERT_TRUE(all<MemoryLedger::Grant>(ledger_.ask(2, 1, kGiB, 0, now_)).empty());
  ASSERT_EQ(ledger_.next_deadline(), now_ + MemoryLedger::kAnswerPatience);
  now_ += MemoryLedger::kAnswerPatience;
  auto refused = all<MemoryLedger::Grant>(ledger_.tick(now_));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_FALSE(refused[0].granted);
  refused = all<MemoryLedger::Grant>(ledger_.ask(2, 2, kGiB, 0, now_));
  ASSERT_EQ(refused.size(), 1u) << "not waited for again";
  EXPECT_FALSE(refused[0].granted);
  // It goes on, and answers what it was asked.
  ledger_.returned(1, 1, 8 * kGiB, 0, now_);
  auto granted = all<MemoryLedger::Grant>(ledger_.ask(2, 3, kGiB, 0, now_));
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_TRUE(granted[0].granted);
}

TEST_F(MemoryLedgerTest, ADeathGivesItsLeaseToWhoWaits) {
  join(1, 8 * kGiB);
  join(2, 8 * kGiB);
  ASSERT_TRUE(all<MemoryLedger::Grant>(ledger_.ask(2, 1, 8 * kGiB, 0, now_)).empty());
  auto granted = all<MemoryLedger::Grant>(ledger_.leave(1, now_));
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_TRUE(granted[0].granted);
  EXPECT_EQ(ledger_.lease_of(2), 8 * kGiB);
}

// Whoever the first client of an account is: one that is here, or one that is not back yet.
TEST_F(MemoryLedgerTest, AccountsComeWithTheirFirstClientsAndATenantsGpusAreItsOwn) {
  const auto compare = [&](std::vector<MemoryLedger::ClientId> clients) {
    std::vector<MemoryLedger::ClientView> views(clients.size());
    std::vector<MemoryLedger::View> found, whole = ledger_.view();
    ledger_.views_of(clients, views, found);
    ledger_.add_views_of_absent(found);
    const auto key = [](const MemoryLedger::View& view) { return std::pair(view.tenant, view.gpu); };
    std::ranges::sort(found, {}, key);
    ASSERT_EQ(found.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(key(found[i]), key(whole[i]));
      EXPECT_EQ(found[i].limit, whole[i].limit);
      EXPECT_EQ(found[i].charged, whole[i].charged);
      EXPECT_EQ(found[i].leased, whole[i].leased);
    }
  };
  MemoryLedger::ClientId client = 10;
  std::vector<MemoryLedger::ClientId> all;
  for (const MemoryLedger::TenantId tenant : {3, 1, 2, 1}) {
    for (const MemoryLedger::GpuId gpu : {2, 0, 5}) {
      if (tenant == 2 && gpu == 5) continue;
      ledger_.join({++client, tenant, gpu, 0, static_cast<int64_t>(client) * kGiB, kMiB, 0}, now_);
      all.push_back(client);
    }
  }
  ASSERT_EQ(ledger_.view().size(), 8u) << "tenant 1 has two clients on each GPU";
  compare(all);
  ledger_.join({1, 1, 0, 0, kGiB, 5, kMiB, true}, now_);  // before others of its account
  ledger_.join({2, 7, 5, 0, kGiB, 6, kMiB, true}, now_);  // alone
  ledger_.join({99, 3, 2, 0, kGiB, 7, kMiB, true}, now_);
  compare(all);
  ledger_.join({2, 7, 5, 0, kGiB, 6, kMiB}, now_);  // it is back
  all.push_back(2);
  compare(all);
  ledger_.leave(1, now_);
  compare(all);
  EXPECT_EQ(ledger_.gpus_of(1), (std::vector<MemoryLedger::GpuId>{0, 2, 5}));
  EXPECT_EQ(ledger_.gpus_of(2), (std::vector<MemoryLedger::GpuId>{0, 2}));
  EXPECT_TRUE(ledger_.gpus_of(4).empty());
}

TEST_F(MemoryLedgerTest, WhatIsLookedUpTogetherIsWhatEachIsAskedFor) {
  join(1, 8 * kGiB, 6 * kGiB, kGiB, kGiB);
  join(2, 8 * kGiB, 0, 3 * kGiB, 3 * kGiB);
  ledger_.join({3, 2, 0, 0, 0, 5, 0}, now_);
  ledger_.join({4, 2, 1, kGiB, 0, 7, 0}, now_);
  join(1, 8 * kGiB, 5 * kGiB, 2 * kGiB, 2 * kGiB);                 // again: another place in memory
  ledger_.join({2, 1, 3, 0, 4 * kGiB, 2 * kGiB, 2 * kGiB}, now_);  // on another GPU now
  ledger_.leave(4, now_);
  const std::array<MemoryLedger::ClientId, 6> clients{3, 1, 99, 2, 4, 1};
  std::array<MemoryLedger::ClientView, 6> views;
  views[2].lease = views[4].charged = 17;  // of clients that are not known
  std::vector<MemoryLedger::View> accounts;
  ledger_.views_of(clients, views, accounts);
  for (size_t i = 0; i < clients.size(); ++i) {
    const MemoryLedger::ClientView one = ledger_.view_of(clients[i]);
    EXPECT_EQ(views[i].limit, one.limit) << clients[i];
    EXPECT_EQ(views[i].charged, one.charged) << clients[i];
    EXPECT_EQ(views[i].lease, one.lease) << clients[i];
  }
  EXPECT_EQ(views[1].limit, 5 * kGiB);
  EXPECT_EQ(views[3].charged, 2 * kGiB);
  EXPECT_EQ(views[3].limit, 4 * kGiB);
  EXPECT_EQ(views[2].lease, 0);
  EXPECT_EQ(views[4].charged, 0);
}

TEST_F(MemoryLedgerTest, ARaisedLimitServesWhoWaitsAndALoweredOneGrantsNothingMore) {
  join(1, 2 * kGiB);
  join(2, 2 * kGiB);
  ledger_.report(1, 2 * kGiB, now_);
  ASSERT_TRUE(all<MemoryLedger::Grant>(ledger_.ask(2, 1, kGiB, 0, now_)).empty());
  auto granted = all<MemoryLedger::Grant>(ledger_.set_limit(1, 0, 4 * kGiB, now_));
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_TRUE(granted[0].granted);
  EXPECT_EQ(all<MemoryLedger::Tell>(ledger_.set_limit(1, 0, kGiB, now_)).size(), 2u) << "both are told";
  EXPECT_TRUE(ledger_.view()[0].over());
  now_ += 10 * MemoryLedger::kAnswerPatience;
  ledger_.tick(now_);
  auto refused = all<MemoryLedger::Grant>(ledger_.ask(2, 2, 1, 0, now_));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_FALSE(refused[0].granted);
  EXPECT_EQ(refused[0].bytes, 0);
  // none again
  auto unlimited = all<MemoryLedger::Grant>(ledger_.set_limit(1, 0, 0, now_));
  EXPECT_EQ(unlimited.size(), 2u);
  EXPECT_EQ(ledger_.lease_of(1), kUnlimited);
  EXPECT_EQ(ledger_.lease_of(2), kUnlimited);
}

TEST_F(MemoryLedgerTest, ALimitWhereThereWasNoneRecallsWhatIsUnused) {
  join(1, 0);
  join(2, 0);
  ledger_.report(1, 3 * kGiB, now_);
  auto recalls = all<MemoryLedger::Recall>(ledger_.set_limit(1, 0, 4 * kGiB, now_));
  ASSERT_EQ(recalls.size(), 2u);
  ledger_.returned(1, recalls[0].recall, kUnlimited - 3 * kGiB, 3 * kGiB, now_);
  // The other is stopped: it had no limit, so what it said it uses counts.
  now_ += MemoryLedger::kAnswerPatience;
  ledger_.tick(now_);
  auto granted = all<MemoryLedger::Grant>(ledger_.ask(1, 1, kGiB, 0, now_));
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_TRUE(granted[0].granted);
}

TEST_F(MemoryLedgerTest, AfterARestartNothingIsGrantedUntilAllAreBack) {
  ledger_.freeze(true, now_);
  join(1, 8 * kGiB, 0, kGiB, 5 * kGiB);
  EXPECT_EQ(ledger_.lease_of(1), 5 * kGiB) << "what it holds it keeps";
  EXPECT_TRUE(all<MemoryLedger::Grant>(ledger_.ask(1, 1, 6 * kGiB, 4 * kGiB, now_)).empty());
  join(2, 8 * kGiB, 0, 2 * kGiB, 3 * kGiB);
  auto decisions = ledger_.freeze(false, now_);
  ASSERT_EQ(all<MemoryLedger::Recall>(decisions).size(), 1u);
  auto refused = all<MemoryLedger::Grant>(ledger_.returned(2, all<MemoryLedger::Recall>(decisions)[0].recall, kGiB, 2 * kGiB, now_));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_FALSE(refused[0].granted) << "1 + 2 are in use, 6 more are too many";
}

TEST_F(MemoryLedgerTest, WhatTheOthersUseIsToldNowAndThenNotEachTime) {
  join(1, 8 * kGiB);
  join(2, 8 * kGiB);
  now_ += MemoryLedger::kTellInterval;
  size_t told = 0;
  for (int i = 1; i <= 1000; ++i) {
    now_ += MemoryLedger::kTellInterval / 1000;
    told += all<MemoryLedger::Tell>(ledger_.report(1, i * 4096, now_)).size();
    told += all<MemoryLedger::Tell>(ledger_.tick(now_)).size();
  }
  EXPECT_GE(told, 1u);
  EXPECT_LE(told, 4u);
  now_ += MemoryLedger::kTellInterval;
  ledger_.tick(now_);
  EXPECT_EQ(ledger_.charged_by_others(2), 1000 * 4096);
  EXPECT_FALSE(ledger_.next_deadline()) << "all is told";
}

TEST_F(MemoryLedgerTest, WhatNobodyCouldRefuseCountsAndStopsTheRest) {
  join(1, 4 * kGiB);
  ledger_.report(1, 4 * kGiB, now_);
  ledger_.taken(1, kGiB, now_);
  EXPECT_EQ(ledger_.lease_of(1), 5 * kGiB);
  auto refused = all<MemoryLedger::Grant>(ledger_.ask(1, 1, 1, 0, now_));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_FALSE(refused[0].granted);
}

// Stopped while the scheduler was restarted: nobody can ask it, and what it may have charged is nobody else's.
TEST_F(MemoryLedgerTest, WhoIsNotBackAfterARestartCountsWithItsLease) {
  ledger_.freeze(true, now_);
  join(2, 8 * kGiB, 0, kGiB, 2 * kGiB);
  const Decisions absent = ledger_.join({1, 1, 0, 0, 8 * kGiB, kGiB, 5 * kGiB, true}, now_);
  EXPECT_TRUE(all<MemoryLedger::Grant>(absent).empty());
  ledger_.freeze(false, now_);
  EXPECT_EQ(ledger_.lease_of(1), 5 * kGiB);
  const auto refused = all<MemoryLedger::Grant>(ledger_.ask(2, 1, 2 * kGiB, 0, now_));
  ASSERT_EQ(refused.size(), 1u) << "at once: it is not there to give anything back";
  EXPECT_FALSE(refused[0].granted);
  EXPECT_LE(ledger_.lease_of(1) + ledger_.lease_of(2), 8 * kGiB);
  // It comes back with more than was written of it, and nothing of that was given away before.
  join(1, 8 * kGiB, 0, 4 * kGiB, 5 * kGiB);
  EXPECT_GE(ledger_.lease_of(1), 5 * kGiB);
  EXPECT_LE(ledger_.lease_of(1) + ledger_.lease_of(2), 8 * kGiB);
  EXPECT_EQ(all<MemoryLedger::Recall>(ledger_.ask(2, 2, 2 * kGiB, 0, now_)).size(), 1u) << "and is asked like anybody";
}

TEST_F(MemoryLedgerTest, WhatWhoIsNotBackHadIsFreeWhenItHasEnded) {
  join(2, 8 * kGiB);
  ledger_.join({1, 1, 0, 0, 8 * kGiB, 0, 8 * kGiB, true}, now_);
  EXPECT_FALSE(all<MemoryLedger::Grant>(ledger_.ask(2, 1, 2 * kGiB, kUnlimited, now_)).at(0).granted);
  ledger_.leave(1, now_);
  EXPECT_TRUE(all<MemoryLedger::Grant>(ledger_.ask(2, 2, 2 * kGiB, 0, now_)).at(0).granted);
}

}  // namespace
}  // namespace nvshare::scheduler
