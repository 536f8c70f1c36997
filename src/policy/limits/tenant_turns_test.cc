// A tenant that takes its turns in another way than all (TenantTurns), on virtual time.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "policy/testing/quota_world.h"
#include "repeats.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kMost = 10LL << 30;  // of two such programs one fits

// Turns as they are sent: how long each tenant's turns were, from the grant to the drop.
struct Turns {
  explicit Turns(QuotaWorld& world) {
    world.tamper_with([this, &world](Actions& actions) {
      for (const Action& action : actions) {
        if (const auto* lock = std::get_if<SendLock>(&action); lock != nullptr && lock->grant != grants[lock->client]) {
          grants[lock->client] = lock->grant;
          began[lock->client] = world.now();
        }
        if (const auto* drop = std::get_if<SendDrop>(&action); drop != nullptr && began.contains(drop->client)) {
          longest[drop->client] = std::max(longest[drop->client], world.now() - began[drop->client]);
          shortest[drop->client] = std::min(shortest.try_emplace(drop->client, INT64_MAX).first->second, world.now() - began[drop->client]);
        }
      }
    });
  }
  std::map<ClientId, GrantId> grants;
  std::map<ClientId, Instant> began;
  std::map<ClientId, Duration> longest, shortest;
};

Config turns_of(Duration length) {
  Config config;
  config.switch_time_mode = SwitchTimeMode::kFixed;
  config.switch_time_fixed = length;
  return config;
}

double share_over(QuotaWorld& world, TenantId tenant, Duration time) {
  const double before = world.work(tenant);
  world.run_for(time);
  return (world.work(tenant) - before) * 100 / static_cast<double>(time);
}

TEST(TenantTurns, TogetherAndTurnsHoldBesideComputeLimits) {
  QuotaWorld world({}, 1);
  world.limit(1, 40);
  world.limit(2, 40);
  world.add(1);
  world.add(2);
  world.run_for(2 * kSeconds);
  EXPECT_STREQ(world.gpu().mode, "turns");
  for (const TenantId tenant : {1, 2}) world.set_turns({tenant, TenantSharing::kTogether});
  world.run_for(kSeconds);
  EXPECT_STREQ(world.gpu().mode, "together");
  EXPECT_NEAR(share_over(world, 1, 20 * kSeconds), 40, 4);  // the limits hold all the same; what the driver's switching costs is its own
  for (const TenantId tenant : {1, 2}) world.set_turns({tenant});
  world.run_for(kSeconds);
  EXPECT_STREQ(world.gpu().mode, "turns");
  EXPECT_FALSE(world.broken()) << world.describe();
}

TEST(TenantTurns, WhoLeavesGapsTakesTurnsWhereItIsToDoSo) {
  QuotaWorld world({}, 1);
  world.set_turns({2, TenantSharing::kTurns});  // before its first client
  world.limit(1, 40);
  world.add(1);
  world.add_bursty(2, 3 * kMsec, 7 * kMsec, 100 * kUs);
  world.run_for(4 * kSeconds);
  EXPECT_STREQ(world.gpu().mode, "turns");
  world.set_turns({2});
  world.run_for(2 * kSeconds);
  EXPECT_STREQ(world.gpu().mode, "together");
  EXPECT_FALSE(world.broken()) << world.describe();
}

TEST(TenantTurns, AShorterTurnWhereMemoryForcesTurns) {
  QuotaWorld world(turns_of(20 * kSeconds), 1);
  world.set_turns({1, TenantSharing::kNode, 8 * kSeconds});
  const ClientId brief = world.add(1, kMsec, kMost).id;
  const ClientId other = world.add(2, kMsec, kMost).id;
  world.run_for(30 * kSeconds);
  Turns turns(world);
  world.run_for(200 * kSeconds);
  EXPECT_LE(turns.longest[brief], 13 * kSeconds);  // the loading of its memory besides
  EXPECT_GE(turns.shortest[brief], 8 * kSeconds);
  EXPECT_GE(turns.longest[other], 20 * kSeconds);  // the neighbour's are what they were
  world.set_turns({1});
  world.run_for(50 * kSeconds);
  turns.longest.clear();
  world.run_for(100 * kSeconds);
  EXPECT_GE(turns.longest[brief], 20 * kSeconds);
  EXPECT_FALSE(world.broken()) << world.describe();
}

TEST(TenantTurns, NoShorterThanTheSwitchIsWorth) {
  Config config;
  config.switch_time_min = config.switch_time_max = 60 * kSeconds;
  QuotaWorld world(config, 1);
  world.bandwidth = 4LL << 30;
  world.set_turns({1, TenantSharing::kNode, kSeconds});
  const ClientId brief = world.add(1, kMsec, kMost).id;
  world.add(2, kMsec, kMost);
  world.run_for(100 * kSeconds);
  Turns turns(world);
  world.run_for(300 * kSeconds);
  EXPECT_GE(turns.shortest[brief], 4 * kSeconds);
  EXPECT_LE(turns.longest[brief], 20 * kSeconds);
  EXPECT_FALSE(world.broken()) << world.describe();
}

TEST(TenantTurns, AShorterTurnBesideComputeLimitsKeepsTheShares) {
  const auto measured = [](Duration most) {
    QuotaWorld world(turns_of(20 * kSeconds), 1);
    world.set_turns({1, TenantSharing::kNode, most});
    world.limit(1, 40);
    world.limit(2, 60);
    const ClientId brief = world.add(1, kMsec, kMost).id;
    world.add(2, kMsec, kMost);
    world.run_for(200 * kSeconds);
    EXPECT_STREQ(world.gpu().mode, "rotation");
    Turns turns(world);
    const double before = world.work(1), other = world.work(2);
    world.run_for(2000 * kSeconds);
    EXPECT_FALSE(world.broken()) << world.describe();
    const double mine = world.work(1) - before;
    return std::pair(turns.longest[brief], mine * 100 / (mine + world.work(2) - other));
  };
  const auto as_all = measured(0), brief = measured(8 * kSeconds);
  EXPECT_GE(as_all.first, 18 * kSeconds);
  EXPECT_LE(brief.first, 15 * kSeconds);
  EXPECT_NEAR(as_all.second, 40, 2);
  EXPECT_NEAR(brief.second, 40, 2);
}

// Whatever is said of whom and when: all that is promised holds in each step, nobody starves, and no ceiling is passed.
TEST(TenantTurns, NobodyStarvesWhateverIsSaidOfTheOthers) {
  for (uint64_t seed = 1; seed <= repeats(12u, 3); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
    QuotaWorld world(turns_of(4 * kSeconds), seed);
    const bool in_turns_for_memory = seed % 3 == 0;
    constexpr int kTenants = 4;
    for (TenantId tenant = 1; tenant <= kTenants; ++tenant) {
      world.limit(tenant, 20);
      const Bytes memory = in_turns_for_memory ? kMost : 0;
      tenant == 4 ? world.add_bursty(tenant, 3 * kMsec, 7 * kMsec, 100 * kUs) : world.add(tenant, kMsec, memory);
    }
    for (int change = 0; change < 60; ++change) {
      const auto tenant = static_cast<TenantId>(1 + below(kTenants));
      world.set_turns({tenant, static_cast<TenantSharing>(below(3)), below(4) * 2 * kSeconds});
      world.run_for(100 * kMsec + below(2000) * kMsec);
      ASSERT_FALSE(world.broken()) << "seed " << seed << "\n" << world.describe();
    }
    std::map<TenantId, double> before;
    for (TenantId tenant = 1; tenant <= kTenants; ++tenant) before[tenant] = world.work(tenant);
    constexpr Duration kTime = 200 * kSeconds;
    world.run_for(kTime);
    for (const auto& [tenant, work] : before) {
      const double share = (world.work(tenant) - work) * 100 / static_cast<double>(kTime);
      const bool pauses_in_its_turns = in_turns_for_memory && tenant == 4;  // it works 30 % of its time
      EXPECT_GT(share, pauses_in_its_turns ? 3 : 8) << "seed " << seed << ", tenant " << tenant;
      EXPECT_LT(share, 23) << "seed " << seed << ", tenant " << tenant;
    }
    ASSERT_FALSE(world.broken()) << "seed " << seed << "\n" << world.describe();
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
