// Compute limits over random mixes of programs on virtual time. NVSHARE_TEST_SEED repeats one run, NVSHARE_TEST_SCALE multiplies them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iterator>

#include "policy/testing/due_shares.h"
#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

class Mix {
 public:
  explicit Mix(uint64_t seed) : random_(seed), world_({}, seed) {}

  QuotaWorld& world() { return world_; }
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(int percent) { return between(1, 100) <= percent; }
  SchedulingMode mode() { return kSchedulingModes[between(0, std::ssize(kSchedulingModes) - 1)]; }

  // A row that there may be one day.
  SchedulingMode made_up_mode() {
    return {.name = "made-up",
            .in_turns = static_cast<SchedulingMode::InTurns>(between(0, 3)),
            .bills = static_cast<SchedulingMode::Bills>(between(0, 1)),
            .scales = chance(70),
            .turns_of = static_cast<SchedulingMode::TurnsOf>(between(0, 1)),
            .slice_ms = chance(30) ? between(1, 500) : 0};
  }

  Duration kernel() {
    switch (between(0, 4)) {
      case 0:
        return between(5, 100) * kUs;
      case 1:
        return between(1, 10) * 100 * kUs;
      case 2:
        return between(1, 20) * kMsec;
      case 3:
        return between(20, 100) * kMsec;
      default:
        return between(100, 300) * kMsec;
    }
  }

  // 1 to 6 tenants that never pause; some without a limit.
  void add_tenants(int64_t count) {
    for (int64_t i = 1; i <= count; ++i) {
      const auto tenant = static_cast<TenantId>(i);
      const int percent = static_cast<int>(chance(15) && i > 1 ? 100 : between(3, 95));
      const bool granted = chance(60);
      asked_[tenant] = {granted && percent < 100 ? double(percent) : 0, double(percent)};
      kernels_[tenant] = kernel();
      granted ? world_.limit(tenant, percent) : world_.ceiling(tenant, percent);
      const int64_t processes = chance(20) ? 2 : 1;
      for (int64_t process = 0; process < processes; ++process) world_.add(tenant, kernels_[tenant]);
      kernels_[tenant] *= processes;
    }
    world_.efficiency_together = 1;  // of processes of one tenant
  }

  // Empty, or what is wrong with the shares of 20 windows. `dues`: by the rule of the user guide, worked out apart from the policy.
  std::string judge() {
    const std::map<TenantId, double> dues = due_shares(asked_);
    double allowed = 0;
    std::map<TenantId, double> before;
    for (const auto& [tenant, due] : dues) allowed += due, before[tenant] = world_.work(tenant);
    const double lost = allowed > 99 ? 0.01 : 0;  // to hand-overs; where time is left over nobody loses by them
    const Duration time = 40 * kSeconds;
    world_.run_for(time);
    double sum = 0, kernels = 0;
    for (const auto& [tenant, due] : dues) kernels += static_cast<double>(kernels_[tenant]) * 100 / static_cast<double>(time);
    std::string wrong;
    for (const auto& [tenant, due] : dues) {
      const double share = (world_.work(tenant) - before[tenant]) * 100 / static_cast<double>(time);
      sum += share;
      // A kernel at each border of the time is counted or not; what the hand-overs cost is lost to all alike.
      const double kernel = static_cast<double>(kernels_[tenant] + 10 * kMsec) * 100 / static_cast<double>(time);
      // What a neighbour's kernel kept from it before the time began it gets in it, and the same at the end.
      double longest = 0;
      for (const auto& [other, length] : kernels_) longest = other == tenant ? longest : std::max(longest, static_cast<double>(length));
      const double near = 0.2 + kernel + longest * due / static_cast<double>(time) + (asked_[tenant].ceiling > due ? kernels : 0);
      if (share > due + near || share < due * (1 - lost) - near) {
        wrong += "tenant " + std::to_string(tenant) + " is due " + std::to_string(due) + " and had " + std::to_string(share) + "\n";
      }
    }
    if (sum < 0.99 * allowed - kernels) wrong += "in sum " + std::to_string(sum) + " of " + std::to_string(allowed) + "\n";
    return wrong;
  }

 private:
  std::mt19937_64 random_;
  QuotaWorld world_;
  std::map<TenantId, Ask> asked_;
  std::map<TenantId, Duration> kernels_;
};

template <typename Run>
void for_seeds(uint64_t base, int64_t runs, Run run) {
  const int64_t only = from_environment("NVSHARE_TEST_SEED", -1);
  const int64_t all = only >= 0 ? 1 : runs * from_environment("NVSHARE_TEST_SCALE", 1);
  for (int64_t i = 0; i < all; ++i) {
    const uint64_t seed = only >= 0 ? static_cast<uint64_t>(only) : base + static_cast<uint64_t>(i);
    run(seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(QuotaProperties, SharesOfTwentyWindowsAreExact) {
  for_seeds(1'000'000, 12, [](uint64_t seed) {
    Mix mix(seed);
    mix.add_tenants(mix.between(1, 6));
    mix.world().run_for(4 * kSeconds);
    const std::string wrong = mix.judge();
    ASSERT_TRUE(wrong.empty() && !mix.world().broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << wrong << mix.world().describe();
  });
}

// What programs say of their memory has limits looked at less often, and lets nobody have more or less.
TEST(QuotaProperties, NewsOfMemoryChangesNoShare) {
  for_seeds(5'000'000, 8, [](uint64_t seed) {
    std::map<TenantId, double> quiet;
    for (const bool talks : {false, true}) {
      Mix mix(seed);
      QuotaWorld& world = mix.world();
      if (talks) world.talk_of_memory(mix.between(100, 3000) * kUs);
      if (!talks) mix.between(100, 3000);
      for (TenantId left = 90; left < 99; ++left) {  // these leave debts
        world.ceiling(left, 10);
        const ClientId id = world.add(left, 100 * kMsec).id;
        world.run_for(mix.between(100, 1000) * kMsec);
        world.remove(id);
      }
      mix.add_tenants(mix.between(1, 6));
      world.run_for(4 * kSeconds);
      const std::string wrong = mix.judge();
      ASSERT_TRUE(wrong.empty() && !world.broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << wrong << world.describe();
      for (TenantId tenant = 1; tenant <= 6; ++tenant) {
        if (!talks) quiet[tenant] = world.work(tenant);
        EXPECT_NEAR(world.work(tenant), quiet[tenant], 150e6) << "tenant " << tenant << ", NVSHARE_TEST_SEED=" << seed;
      }
    }
  });
}

// Programs come, go, pause, change their limits, cannot drain; the scheduler restarts and changes its mode. Then all is as it should be.
TEST(QuotaProperties, WhateverHappensSharesAreRightAgainAfterwards) {
  for_seeds(2'000'000, 8, [](uint64_t seed) {
    Mix mix(seed);
    QuotaWorld& world = mix.world();
    std::vector<ClientId> others;
    for (int64_t i = mix.between(5, 30); i > 0; --i) {
      const auto tenant = static_cast<TenantId>(mix.between(50, 55));
      switch (mix.between(0, 5)) {
        case 0:
          others.push_back(world.add(tenant, mix.kernel()).id);
          world.job(others.back()).patience = mix.chance(50) ? 200 * kMsec : 2 * kSeconds;
          break;
        case 1:
          others.push_back(world.add_bursty(tenant, mix.between(1, 300) * kMsec, mix.between(1, 1000) * kMsec, 100 * kUs).id);
          break;
        case 2:
          mix.chance(50) ? world.limit(tenant, static_cast<int>(mix.between(1, 100)))
                         : world.ceiling(tenant, static_cast<int>(mix.between(1, 100)));
          break;
        case 3:
          if (!others.empty()) world.remove(others[static_cast<size_t>(mix.between(0, static_cast<int64_t>(others.size()) - 1))]);
          break;
        case 4:
          if (mix.chance(30)) world.restart();
          break;
        default: {
          Config config;
          config.scheduling_mode = mix.mode();
          if (mix.chance(50)) config.compute_window = mix.between(10, 5000) * kMsec;
          if (mix.chance(20)) config.quota_sample_interval = mix.between(1, 100) * kMsec;
          if (mix.chance(20)) config.scheduling_slice = mix.between(1, 200) * kMsec;
          if (mix.chance(20)) config.quota_carryover_percent = static_cast<int>(mix.between(0, 100));
          world.set_config(config);
          break;
        }
      }
      world.run_for(mix.between(1, 3000) * kMsec);
    }
    for (const ClientId id : others) world.remove(id);
    world.set_config({});
    world.run_for(kSeconds);
    mix.add_tenants(mix.between(1, 4));
    world.run_for(15 * kSeconds);
    const std::string wrong = mix.judge();
    ASSERT_TRUE(wrong.empty() && !world.broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << wrong << world.describe();
  });
}

// Everybody under a limit gets on, in every mode, whatever its neighbours are.
void nobody_starves(uint64_t first_seed, SchedulingMode (Mix::*draw_mode)()) {
  for_seeds(first_seed, 10, [draw_mode](uint64_t seed) {
    Mix mix(seed);
    QuotaWorld& world = mix.world();
    Config config;
    config.scheduling_mode = (mix.*draw_mode)();
    if (mix.chance(50)) config.compute_window = mix.between(100, 3000) * kMsec;
    world.set_config(config);
    const int64_t tenants = mix.between(2, 6);
    for (int64_t i = 1; i <= tenants; ++i) {
      const auto tenant = static_cast<TenantId>(i);
      const int percent = static_cast<int>(mix.chance(20) ? 100 : mix.between(1, 99));
      mix.chance(50) ? world.limit(tenant, percent) : world.ceiling(tenant, percent);
      if (mix.chance(40)) {
        world.add_bursty(tenant, mix.between(1, 50) * kMsec, mix.between(1, 200) * kMsec, 50 * kUs);
      } else {
        world.add(tenant, mix.kernel()).patience = mix.chance(30) ? 200 * kMsec : 2 * kSeconds;
      }
    }
    world.run_for(20 * kSeconds);
    std::map<TenantId, double> before;
    for (const auto& [id, job] : world.jobs()) before[job.tenant] = world.work(job.tenant);
    world.run_for(60 * kSeconds);
    for (const auto& [tenant, work] : before) {
      ASSERT_GT(world.work(tenant), work + 50e6) << "tenant " << tenant << " stood still, NVSHARE_TEST_SEED=" << seed << "\n"
                                                 << world.describe();
    }
    ASSERT_FALSE(world.broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << world.describe();
  });
}

TEST(QuotaProperties, NobodyStarves) { nobody_starves(3'000'000, &Mix::mode); }

TEST(QuotaProperties, NobodyStarvesWhateverAModesRowSays) { nobody_starves(3'500'000, &Mix::made_up_mode); }

// Tenants that do not fit together rotate: what they get done compares as their limits do, whatever moves in and out.
TEST(QuotaProperties, SharesHoldWhileMemoryForcesTurns) {
  for_seeds(4'000'000, 8, [](uint64_t seed) {
    Mix mix(seed);
    QuotaWorld& world = mix.world();
    Config config;
    config.switch_time_mode = SwitchTimeMode::kFixed;
    config.switch_time_fixed = mix.between(500, 2000) * kMsec;
    world.set_config(config);
    const int64_t tenants = mix.between(2, 4);
    std::map<TenantId, Ask> asked;
    for (int64_t i = 1; i <= tenants; ++i) {  // their limits add up to 100 at least
      const auto tenant = static_cast<TenantId>(i);
      const int percent = static_cast<int>(mix.between(i == 1 ? 90 : 10, 90));
      const bool granted = mix.chance(70);
      asked[tenant] = {granted ? double(percent) : 0, double(percent)};
      granted ? world.limit(tenant, percent) : world.ceiling(tenant, percent);
      world.add(tenant, mix.between(1, 20) * kMsec, (mix.between(9, 12)) << 30);
    }
    world.run_for(60 * kSeconds);
    std::map<TenantId, double> before;
    const std::map<TenantId, double> dues = due_shares(asked);
    for (const auto& [tenant, due] : dues) before[tenant] = world.work(tenant);
    const double swapping = world.swapping(), idle = world.idle();
    const Duration time = 600 * kSeconds;
    world.run_for(time);
    ASSERT_STREQ(world.gpu().mode, "rotation") << "NVSHARE_TEST_SEED=" << seed;
    double sum = 0;
    for (const auto& [tenant, work] : before) sum += world.work(tenant) - work;
    for (const auto& [tenant, work] : before) {
      const double share = (world.work(tenant) - work) * 100 / sum;
      const double due = dues.at(tenant);  // the time may begin or end in mid-turn
      ASSERT_NEAR(share, due, 1 + due * static_cast<double>(world.gpu().window) / static_cast<double>(time))
          << "NVSHARE_TEST_SEED=" << seed << "\n"
          << world.describe();
    }
    ASSERT_LT((world.idle() - idle - (world.swapping() - swapping)) / static_cast<double>(time), 0.03) << "NVSHARE_TEST_SEED=" << seed;
    ASSERT_FALSE(world.broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << world.describe();
  });
}

// The judge can say no.
TEST(QuotaCanary, DropsThatAreLostAreNoticed) {
  int noticed = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Mix mix(seed);
    int count = 0;
    mix.world().tamper_with([&](Actions& actions) {
      std::erase_if(actions, [&](const Action& action) { return std::holds_alternative<SendDrop>(action) && ++count > 0; });
    });
    mix.add_tenants(2);
    mix.world().run_for(4 * kSeconds);
    noticed += !mix.judge().empty() || mix.world().broken();
  }
  EXPECT_GE(noticed, 9);
}

TEST(QuotaCanary, ALimitThatIsAnotherIsNoticed) {
  Mix mix(7);
  mix.add_tenants(1);
  mix.world().limit(1, 99);  // the judge believes what add_tenants chose
  mix.world().run_for(4 * kSeconds);
  EXPECT_FALSE(mix.judge().empty());
}

}  // namespace
}  // namespace nvshare::policy::testing
