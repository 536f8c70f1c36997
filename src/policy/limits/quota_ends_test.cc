// A tenant that is about to be ended from outside has its next turn beside compute limits, too; one that is suspended has none.
#include <gtest/gtest.h>

#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kLarge = 10LL << 30;  // two of them do not fit together

// Turns of half a minute that memory forces; the second tenant has just had its own, and owes.
QuotaWorld rotation(int first, int second) {
  Config config;
  config.switch_time_mode = SwitchTimeMode::kFixed;
  config.switch_time_fixed = 30 * kSeconds;
  QuotaWorld world(config, 1);
  world.limit(1, first);
  world.limit(2, second);
  return world;
}

TEST(QuotaEnds, ATenantThatEndsGetsATurnWhereMemoryForcesTurns) {
  for (const auto& [first, second] : std::vector<std::pair<int, int>>{{90, 10}, {50, 100}, {30, 30}}) {
    QuotaWorld world = rotation(first, second);
    world.add(1, kMsec, kLarge);
    world.add(2, kMsec, kLarge);
    world.run_for(20 * kSeconds);
    // From the moment that its neighbour has begun a turn.
    for (const TenantId ends : {TenantId{1}, TenantId{2}}) {
      const TenantId other = 3 - ends;
      for (int i = 0; i < 6000; ++i) {
        const double work = world.work(other);
        world.run_for(100 * kMsec);
        if (world.work(other) > work + 50e6) break;
      }
      const double before = world.work(ends);
      world.end(ends);
      world.run_for(10 * kSeconds);  // of which the swap takes two
      EXPECT_GT(world.work(ends) - before, 5e9) << first << " + " << second << ", tenant " << ends << "\n" << world.describe();
      EXPECT_STREQ(world.gpu().mode, "rotation");
      world.run_for(300 * kSeconds);
      const double others = world.work(other);
      world.run_for(300 * kSeconds);
      EXPECT_GT(world.work(other) - others, 10e9) << "one turn, and no more\n" << world.describe();
      EXPECT_FALSE(world.broken()) << world.describe();
    }
  }
}

TEST(QuotaEnds, ATenantThatIsThrottledAndEndsGetsATurn) {
  QuotaWorld world({}, 1);
  world.limit(1, 5);
  world.limit(2, 60);
  world.add(1, 300 * kMsec);
  world.add(2);
  for (int i = 0; i < 1000 && !(world.tenant(1).throttled && world.tenant(1).debt > 200 * kMsec); ++i) world.run_for(10 * kMsec);
  ASSERT_GT(world.tenant(1).debt, 200 * kMsec);
  const double before = world.work(1);
  world.end(1);
  world.run_for(kSeconds);
  EXPECT_GT(world.work(1) - before, 400e6) << "at least half of the GPU, beside its neighbour\n" << world.describe();
  EXPECT_FALSE(world.broken()) << world.describe();
}

// Two that end follow each other.
TEST(QuotaEnds, TwoThatEndHaveATurnEach) {
  QuotaWorld world = rotation(40, 40);
  for (const TenantId tenant : {1, 2, 3}) world.add(tenant, kMsec, kLarge);
  world.run_for(50 * kSeconds);
  const double before[] = {world.work(1), world.work(2)};
  world.end(1);
  world.end(2);
  world.run_for(75 * kSeconds);
  EXPECT_GT(world.work(1) - before[0], 20e9) << world.describe();
  EXPECT_GT(world.work(2) - before[1], 20e9) << world.describe();
  EXPECT_FALSE(world.broken()) << world.describe();
}

// Its neighbour has the GPU up to its ceiling meanwhile, and afterwards each has its own again: a pause is neither saved up nor owed.
TEST(QuotaSuspensions, ASuspendedTenantsShareGoesToTheOthersAndComesBack) {
  for (const Bytes memory : {Bytes{0}, kLarge}) {
    QuotaWorld world = rotation(40, 60);
    world.ceiling(2, 80);
    world.limit(1, 40);
    world.add(1, kMsec, memory);
    world.add(2, kMsec, memory);
    world.run_for(300 * kSeconds);
    world.suspend_tenant(1, true);
    world.run_for(100 * kSeconds);
    const double before[] = {world.work(1), world.work(2)};
    world.run_for(300 * kSeconds);
    EXPECT_EQ(world.work(1), before[0]) << world.describe();
    EXPECT_NEAR((world.work(2) - before[1]) / 300e9, 0.8, 0.05) << world.describe();
    world.suspend_tenant(1, false);
    world.run_for(200 * kSeconds);
    const double then[] = {world.work(1), world.work(2)};
    world.run_for(900 * kSeconds);
    const double had = world.work(1) - then[0], other = world.work(2) - then[1];
    EXPECT_NEAR(had / (had + other), 0.4, 0.04) << world.describe();
    EXPECT_FALSE(world.broken()) << world.describe();
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
