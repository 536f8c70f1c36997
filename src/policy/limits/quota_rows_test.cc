// Programs that stay while work comes in stretches, with other limits in each: what was saved under one limit is not spent under the next.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "policy/testing/due_shares.h"
#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

constexpr Duration kJudged = 3 * kSeconds;  // of each stretch, from its first moment on
constexpr double kAllowed = 5.5;            // points: a turn of up to 125 ms at either end of it; by the seed up to 5.1

class Stretches {
 public:
  explicit Stretches(int tenants) : world_({}, 1) {
    for (int i = 1; i <= tenants; ++i) jobs_.push_back(world_.add_bursty(tenant(i), kMsec, 3600 * kSeconds, kMsec / 2).id);
    world_.run_for(kSeconds);
  }

  // The first tenants have these limits and work. Empty, or whose share is wrong.
  std::string play(const std::vector<int>& limits) {
    const int working = static_cast<int>(limits.size());
    std::map<TenantId, Ask> asked;
    std::map<TenantId, double> before;
    for (int i = 1; i <= working; ++i) {
      const int limit = limits[static_cast<size_t>(i - 1)];
      world_.limit(tenant(i), limit);
      asked[tenant(i)] = {double(limit), double(limit)};
      before[tenant(i)] = world_.work(tenant(i));
    }
    for (int i = 0; i < working; ++i) world_.begin_work(jobs_[static_cast<size_t>(i)]);
    world_.run_for(kJudged);
    std::string wrong;
    for (const auto& [tenant, due] : due_shares(asked)) {
      const double share = (world_.work(tenant) - before[tenant]) * 100 / static_cast<double>(kJudged);
      if (std::abs(share - due) > kAllowed)
        wrong += "tenant " + std::to_string(tenant) + " is due " + std::to_string(due) + " and had " + std::to_string(share) + "\n";
    }
    world_.run_for(11 * kSeconds);
    for (int i = 0; i < working; ++i) world_.end_work(jobs_[static_cast<size_t>(i)]);
    world_.run_for(kSeconds / 2);
    return wrong;
  }

  void take_limits_away() {
    for (size_t i = 1; i <= jobs_.size(); ++i) world_.limit(static_cast<TenantId>(i), 100);
    rest();
  }

  void rest() { world_.run_for(2 * kSeconds); }

 private:
  static TenantId tenant(int number) { return static_cast<TenantId>(number); }

  QuotaWorld world_;
  std::vector<ClientId> jobs_;
};

const std::vector<std::vector<int>> kRows = {{30, 60}, {50, 50}, {25, 75}, {10, 20, 30, 40}, {50, 60}, {80, 80}, {40, 40, 40}, {20, 10}};

TEST(QuotaRows, SavingsAreNotSpentUnderALimitThatComesAfterNone) {
  Stretches stretches(4);
  for (const std::vector<int>& limits : kRows) {
    EXPECT_EQ(stretches.play(limits), "");
    stretches.take_limits_away();
  }
}

TEST(QuotaRows, SavingsAreNotSpentUnderALowerLimit) {
  Stretches stretches(4);
  for (const std::vector<int>& limits : kRows) {
    EXPECT_EQ(stretches.play(limits), "");
    stretches.rest();
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
