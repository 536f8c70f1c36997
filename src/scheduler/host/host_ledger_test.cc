// The sums of a HostLedger against counting anew, over random events of clients that a HostBudget takes in: requests, lies about what was
// held, segments that come and go in any order, deaths. Reproducible: NVSHARE_TEST_SEED.
#include "scheduler/host/host_ledger.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "repeats.h"
#include "scheduler/host/host_budget.h"
#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

class RandomEvents {
 public:
  explicit RandomEvents(uint64_t seed) : random_(seed) { budget_.observe({100 * kGiB, std::nullopt}); }

  void step() {
    now_ += static_cast<policy::Instant>(below(200'000'000));
    const auto client = static_cast<policy::ClientId>(1 + below(12));
    switch (below(12)) {
      case 0:
        return join(client);
      case 1:
        return budget_.leave(client);
      case 2:
      case 3:
        return budget_.request(client, ++requests_, bytes(20), owner(), below(2) == 0);
      case 4:
        return budget_.returned(client, some_segment(), now_);
      case 5:
        return budget_.shrunk(client, below(40), bytes(1), now_);
      case 6:
        return budget_.held(client, some_segment(), bytes(2), owner());
      case 7:
        return budget_.report(client, bytes(20), bytes(20));
      case 8:
        return below(2) == 0 ? budget_.discarded(some_segment()) : budget_.still_held(some_segment(), now_);
      case 9:
        return budget_.cannot_hand_over(client, some_segment());
      case 10:
        return look_at_the_machine();
      default:
        return settle();
    }
  }
  std::string problem() const { return budget_.ledger().wrong_in_sums(); }

 private:
  uint64_t below(uint64_t bound) { return std::uniform_int_distribution<uint64_t>(0, bound - 1)(random_); }
  int64_t bytes(uint64_t gib) { return static_cast<int64_t>(below(gib * 512)) * HostBudget::kUnit; }
  HostBudget::Owner owner() { return below(2) == 0 ? HostBudget::Owner::kProcess : HostBudget::Owner::kScheduler; }
  SegmentId some_segment() { return 1 + below(ids_ + 3); }

  void join(policy::ClientId client) {
    HostBudget::Member member;
    member.tenant = 1 + client % 4;
    member.most = bytes(40);
    member.held_process = bytes(4);
    member.held_scheduler = bytes(4);
    member.former = below(3) == 0 ? static_cast<policy::ClientId>(1 + below(12)) : 0;
    budget_.leave(client);
    budget_.join(client, member);
  }

  void look_at_the_machine() {
    budget_.set_bounds({below(2) == 0 ? std::optional<int64_t>(bytes(60)) : std::nullopt, {}});
    budget_.observe({bytes(120), below(2) == 0 ? std::optional<int64_t>(bytes(20)) : std::nullopt});
    budget_.set_elsewhere(bytes(2));
  }

  void settle() {
    for (const HostBudget::Decision& decision : budget_.settle(now_)) {
      if (const auto* make = std::get_if<HostBudget::Make>(&decision); make != nullptr && below(4) > 0) {
        budget_.made(make->segment, below(8) > 0);
      }
    }
  }

  std::mt19937_64 random_;
  policy::Instant now_ = kSecond;
  SegmentId ids_ = 0;
  uint64_t requests_ = 0;
  HostBudget budget_{[this] { return ++ids_; }};
};

TEST(HostLedger, SumsAreWhatCountingAnewGives) {
  const char* given = std::getenv("NVSHARE_TEST_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + (given != nullptr ? 1 : repeats(40u, 4)); ++seed) {
    RandomEvents events(seed);
    for (int i = 0; i < 400; ++i) {
      events.step();
      ASSERT_EQ(events.problem(), "") << "NVSHARE_TEST_SEED=" << seed << ", step " << i;
    }
  }
}

TEST(HostLedger, ATenantThatIsGoneLeavesNothing) {
  HostLedger ledger;
  ledger.open(1, [](HostLedger::Account& account) { account.tenant = 7; });
  ledger.put(1, 11, {kGiB, HostLedger::Owner::kScheduler, true, false});
  EXPECT_EQ(ledger.sums().held_by(7, true), kGiB);
  EXPECT_EQ(ledger.sums().all.lent, kGiB);
  ledger.close(1);
  EXPECT_EQ(ledger.sums(), HostSums());
  EXPECT_FALSE(ledger.knows(11));
  EXPECT_EQ(ledger.sums().most_used_below(kGiB), std::nullopt) << "it uses nothing any more";
}

}  // namespace
}  // namespace nvshare::scheduler
