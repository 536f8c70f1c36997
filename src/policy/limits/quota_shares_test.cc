// What tenants are entitled to (docs/adr/0017), by the figures in force and by the work that gets done. due_shares.h states the rule apart
// from the policy.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "policy/limits/quota.h"
#include "policy/testing/due_shares.h"
#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

constexpr int kNone = 0;
using Asks = std::map<TenantId, Ask>;

Ask granted(double percent) { return {percent, percent}; }
Ask ceiling_of(double percent) { return {0, percent}; }

struct Example {
  std::vector<Ask> asked;
  std::vector<double> due;
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all = {
      {{granted(50), granted(60)}, {45.45, 54.55}},
      {{granted(50), Ask{}}, {50, 50}},
      {{granted(30), Ask{}}, {30, 70}},
      {{ceiling_of(95), Ask{}}, {50, 50}},
      {{granted(30), ceiling_of(99), Ask{}}, {30, 35, 35}},
      {{granted(30), ceiling_of(1), Ask{}}, {30, 1, 69}},
      {{granted(80), granted(80), Ask{}}, {47.5, 47.5, 5}},
      {{ceiling_of(20), ceiling_of(90), ceiling_of(90)}, {20, 40, 40}},
      {{ceiling_of(30), ceiling_of(40)}, {30, 40}},
      {{{40, 70}, ceiling_of(90)}, {50, 50}},
      {{{100, 100}, Ask{}}, {95, 5}},
  };
  return all;
}

Asks by_tenant(const std::vector<Ask>& asked) {
  Asks all;
  for (size_t i = 0; i < asked.size(); ++i) all[i + 1] = asked[i];
  return all;
}

// Some GPUs on which each tenant's clients want the lock, and nothing moves: what is in force is there at once.
class Standing {
 public:
  Standing(const std::vector<Asks>& gpus, bool gangs) : state_(make_state({})) {
    std::map<TenantId, Ask> all;
    for (const Asks& asked : gpus) all.insert(asked.begin(), asked.end());
    for (GpuId gpu = 0; gpu < gpus.size(); ++gpu) feed(GpuAppeared{gpu, 64LL << 30});
    for (const auto& [tenant, ask] : all) limit(tenant, ask);
    ClientId id = kNone;
    for (GpuId gpu = 0; gpu < gpus.size(); ++gpu) {
      for (const auto& [tenant, ask] : gpus[gpu]) feed(ClientJoined{++id, gpu, tenant, 0, {}, true, false, true, gangs});
    }
  }
  void limit(TenantId tenant, const Ask& ask) { feed(ComputeLimit{tenant, static_cast<int>(ask.ceiling), static_cast<int>(ask.reserved)}); }
  std::map<TenantId, double> shares(GpuId gpu) const {
    std::map<TenantId, double> found;
    const std::vector<GpuView> gpus = view(*state_, now_);
    for (const TenantView& tenant : gpus.at(gpu).tenants) found[tenant.tenant] = tenant.quota;
    return found;
  }

 private:
  void feed(const Event& event) { step(*state_, event, now_); }
  StatePointer state_;
  Instant now_ = 1000 * kSeconds;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int between(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  Ask ask() {
    const int ceiling = between(0, 4) == 0 ? 100 : between(1, 100);
    const int kind = between(0, 3);
    return {kind == 0 ? 0.0 : kind == 1 ? between(0, ceiling) : between(0, 1) == 0 ? ceiling : 0.0, double(ceiling)};
  }
  Asks asks(int most) {
    Asks all;
    for (int i = between(1, most); i > 0; --i) all[static_cast<TenantId>(i)] = ask();
    return all;
  }

 private:
  std::mt19937_64 random_;
};

bool any_limit(const Asks& asked) {
  return std::any_of(asked.begin(), asked.end(), [](const auto& entry) { return entry.second.ceiling < 100 || entry.second.reserved > 0; });
}

template <typename Run>
void for_seeds(uint64_t runs, Run run) {
  const char* only = std::getenv("NVSHARE_TEST_SEED");
  for (uint64_t seed = only ? std::strtoull(only, nullptr, 10) : 1; seed <= runs || only; ++seed) {
    SCOPED_TRACE("NVSHARE_TEST_SEED=" + std::to_string(seed));
    run(seed);
    if (::testing::Test::HasFailure() || only) return;
  }
}

TEST(QuotaShares, ExamplesOfTheGuide) {
  for (const Example& example : examples()) {
    const Asks asked = by_tenant(example.asked);
    const Standing standing({asked}, false);
    for (size_t i = 0; i < example.due.size(); ++i) {
      EXPECT_NEAR(due_shares(asked).at(i + 1), example.due[i], 0.01);
      EXPECT_NEAR(standing.shares(0).at(i + 1), example.due[i], 0.01);
    }
  }
}

TEST(QuotaShares, AreThoseOfTheRuleForAnyMix) {
  for_seeds(2000, [](uint64_t seed) {
    Dice dice(seed);
    const Asks asked = dice.asks(9);
    if (!any_limit(asked)) return;
    const std::map<TenantId, double> due = due_shares(asked), found = Standing({asked}, false).shares(0);
    for (const auto& [tenant, share] : due) EXPECT_NEAR(found.at(tenant), share, 0.001) << "tenant " << tenant;
  });
}

// A tenant that is not active is told what it would have, by a search and not by sharing anew.
TEST(QuotaShares, OneMoreHasWhatItWouldHaveIfAllWereSharedOut) {
  for_seeds(2000, [](uint64_t seed) {
    Dice dice(seed);
    std::vector<Claim> claims;
    for (const auto& [tenant, ask] : dice.asks(30))
      claims.push_back({static_cast<int64_t>(ask.reserved) * 10'000, static_cast<int64_t>(ask.ceiling) * 10'000});
    scale_reservations(claims);
    for (int i = 0; i < 20; ++i) {
      const Ask ask = dice.ask();
      const Claim more{static_cast<int64_t>(ask.reserved) * 10'000, static_cast<int64_t>(ask.ceiling) * 10'000};
      std::vector<Claim> all = claims;
      all.push_back(more);
      scale_reservations(all);
      share_out(all);
      EXPECT_EQ(share_beside(claims, more), all.back().share) << ask.reserved << " of " << ask.ceiling;
    }
  });
}

// So it is worked out once for all tenants that are not active and ask for nothing but a ceiling.
TEST(QuotaShares, OneMoreWithACeilingHasThatMuchOfWhatItWouldHaveWithout) {
  for_seeds(1000, [](uint64_t seed) {
    Dice dice(seed);
    std::vector<Claim> claims;
    int64_t reserved = 0;
    for (const auto& [tenant, ask] : dice.asks(30)) {
      claims.push_back({static_cast<int64_t>(ask.reserved) * 10'000, static_cast<int64_t>(ask.ceiling) * 10'000});
      reserved += claims.back().reserved;
    }
    if (reserved > kWholeGpu - kRestLeast) return;  // reservations are scaled for one more
    const int64_t most = share_beside(claims, {});
    for (int64_t ceiling = 10'000; ceiling <= kWholeGpu; ceiling += 10'000)
      EXPECT_EQ(share_beside(claims, {.ceiling = ceiling}), std::min(ceiling, most));
  });
}

// Whoever lowers its own ceiling has no more than before, and nobody else has less.
TEST(QuotaShares, ACeilingTakesAndNeverGives) {
  for_seeds(2000, [](uint64_t seed) {
    Dice dice(seed);
    Asks asked = dice.asks(7);
    asked[100] = ceiling_of(60);  // there is a limit before and after
    asked[101] = {};              // and somebody who can take what is left
    Standing standing({asked}, false);
    const std::map<TenantId, double> before = standing.shares(0);
    const auto who = static_cast<TenantId>(asked.contains(1) && dice.between(0, 1) == 0 ? 1 : 101);
    Ask lower = asked.at(who);
    lower.ceiling = dice.between(1, static_cast<int>(lower.ceiling));
    if (lower.reserved > lower.ceiling) return;  // then it gives back a reservation too, and others' may be scaled less
    standing.limit(who, lower);
    for (const auto& [tenant, share] : standing.shares(0)) {
      if (tenant == who) {
        EXPECT_LE(share, before.at(tenant) + 0.001);
      } else {
        EXPECT_GE(share, before.at(tenant) - 0.001) << "tenant " << tenant;
      }
    }
  });
}

// A gang has the same share on all its GPUs, and nobody's share could be larger without taking from somebody who has no more: each tenant
// is at its ceiling, or has a GPU that is shared out, on which nobody has more but by a reservation.
TEST(QuotaShares, AGangHasTheLeastOfItsGpusAndOthersShareWhatItLeaves) {
  for_seeds(1000, [](uint64_t seed) {
    Dice dice(seed);
    const auto gpus = static_cast<size_t>(dice.between(2, 4));
    std::vector<Asks> asked(gpus);
    for (TenantId tenant = 1, tenants = static_cast<TenantId>(dice.between(2, 7)); tenant <= tenants; ++tenant) {
      const Ask ask = dice.ask();
      const auto first = static_cast<size_t>(dice.between(0, static_cast<int>(gpus) - 1));
      for (size_t gpu = 0; gpu < gpus; ++gpu) {
        if (gpu == first || dice.between(0, 2) == 0) asked[gpu][tenant] = ask;
      }
    }
    for (Asks& on_gpu : asked) on_gpu[100 + static_cast<TenantId>(&on_gpu - asked.data())] = ceiling_of(90);  // each GPU has a limit
    const Standing standing(asked, true);
    std::vector<std::map<TenantId, double>> shares, reserved;
    std::map<TenantId, double> least_reserved;
    for (size_t gpu = 0; gpu < gpus; ++gpu) {
      shares.push_back(standing.shares(static_cast<GpuId>(gpu)));
      for (const auto& [tenant, share] : due_reservations(asked[gpu])) {
        const auto [at, first] = least_reserved.try_emplace(tenant, share);
        at->second = std::min(at->second, share);
      }
    }
    std::map<TenantId, bool> justified;
    for (size_t gpu = 0; gpu < gpus; ++gpu) {
      double sum = 0;
      for (const auto& [tenant, share] : shares[gpu]) sum += share;
      EXPECT_LE(sum, 100.001);
      for (const auto& [tenant, share] : shares[gpu]) {
        for (size_t other = 0; other < gpus; ++other) {
          if (shares[other].contains(tenant)) {
            EXPECT_NEAR(shares[other].at(tenant), share, 0.001) << "tenant " << tenant;
          }
        }
        EXPECT_GE(share, least_reserved.at(tenant) - 0.001) << "tenant " << tenant;
        bool has_most = sum > 99.99;
        for (const auto& [other, others] : shares[gpu]) has_most &= others <= share + 0.001 || others <= least_reserved.at(other) + 0.001;
        justified[tenant] |= has_most || share >= asked[gpu].at(tenant).ceiling - 0.001;
      }
    }
    for (const auto& [tenant, is] : justified) EXPECT_TRUE(is) << "tenant " << tenant;
  });
}

// ---- by the work that programs get done ----

std::vector<double> work_shares(const std::vector<Ask>& asked, const SchedulingMode& mode, Duration window = 0) {
  Config config;
  config.scheduling_mode = mode;
  config.compute_window = window;
  QuotaWorld world(config, 1);
  world.efficiency_together = 1;  // what programs that run together lose is lost to both, and no question of shares
  for (size_t i = 0; i < asked.size(); ++i) {
    world.set({i + 1, static_cast<int>(asked[i].ceiling), static_cast<int>(asked[i].reserved)});
    world.add(i + 1);
  }
  world.run_for(4 * kSeconds);
  std::vector<double> shares;
  for (size_t i = 0; i < asked.size(); ++i) shares.push_back(world.work(i + 1));
  world.run_for(40 * kSeconds);
  for (size_t i = 0; i < asked.size(); ++i) shares[i] = (world.work(i + 1) - shares[i]) / 40e7;
  EXPECT_FALSE(world.broken()) << world.describe();
  return shares;
}

TEST(QuotaShares, ExamplesByTheWorkDoneInEachMode) {
  for (const SchedulingMode& mode : kSchedulingModes) {
    if (!mode.scales) continue;
    for (const Example& example : examples()) {
      const std::vector<double> shares = work_shares(example.asked, mode);
      double ceilings = 0;
      for (const Ask& ask : example.asked) ceilings += ask.ceiling;
      if (mode.bills == SchedulingMode::Bills::kAllOfIt && ceilings <= 100) continue;  // they run together
      for (size_t i = 0; i < shares.size(); ++i) {
        EXPECT_NEAR(shares[i], example.due[i], mode == kSchedulingModes[0] ? 0.7 : 3.5)
            << mode.name << ", example " << &example - examples().data() << ", tenant " << i + 1;
      }
    }
  }
}

TEST(QuotaShares, ExamplesWithWindowsOfAGivenLength) {
  for (const Example& example : examples()) {
    const std::vector<double> shares = work_shares(example.asked, mode_named("auto"), 2 * kSeconds);
    for (size_t i = 0; i < shares.size(); ++i)
      EXPECT_NEAR(shares[i], example.due[i], 1.5) << "example " << &example - examples().data() << ", tenant " << i + 1;
  }
}

// What nobody else wants a tenant may have up to its ceiling, and it owes nothing for it.
TEST(QuotaShares, WhatANeighbourLeavesIsThereUpToTheCeiling) {
  for (const SchedulingMode& mode : {mode_named("auto"), mode_named("weighted")}) {
    Config config;
    config.scheduling_mode = mode;
    QuotaWorld world(config, 1);
    world.efficiency_together = 1;
    world.ceiling(1, 80);
    world.add(1);
    const ClientId bursty = world.add_bursty(2, 4 * kMsec, 36 * kMsec).id;  // a tenth of the GPU's time, when alone
    world.run_for(4 * kSeconds);
    double before = world.work(1), others = world.work(2);
    world.run_for(40 * kSeconds);
    EXPECT_NEAR((world.work(1) - before) / 40e7, 80, 2) << world.describe();
    EXPECT_GT((world.work(2) - others) / 40e7, 8.5) << world.describe();
    world.remove(bursty);
    world.add(3);  // a newcomer begins at 0: from now on they have the same
    world.run_for(500 * kMsec);
    before = world.work(1), others = world.work(3);
    world.run_for(2 * kSeconds);
    EXPECT_NEAR((world.work(1) - before) / 2e7, 50, 3) << world.describe();
    EXPECT_NEAR((world.work(3) - others) / 2e7, 50, 3) << world.describe();
    EXPECT_FALSE(world.broken()) << world.describe();
  }
}

// Setting its own ceiling again and again clears nothing that a tenant owes others.
TEST(QuotaShares, ChangingItsOwnCeilingGainsNothing) {
  for (const Duration window : {Duration{0}, 2 * kSeconds}) {
    Config config;
    config.compute_window = window;
    QuotaWorld world(config, 1);
    world.limit(1, 30);
    for (const TenantId tenant : {1, 2, 3}) world.add(tenant, tenant == 2 ? 20 * kMsec : kMsec);
    world.run_for(4 * kSeconds);
    const double before[] = {world.work(1), world.work(2), world.work(3)};
    for (int i = 0; i < 800; ++i) {
      world.ceiling(2, i % 3 == 0 ? 100 : i % 3 == 1 ? 99 : 60);
      world.run_for(50 * kMsec);
    }
    EXPECT_GT((world.work(1) - before[0]) / 40e7, 29) << window;
    EXPECT_LT((world.work(2) - before[1]) / 40e7, 36) << window;
    EXPECT_GT((world.work(3) - before[2]) / 40e7, 33.5) << window;
    EXPECT_FALSE(world.broken()) << world.describe();
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
