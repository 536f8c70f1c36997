// A quarter of an hour on virtual time (NVSHARE_TEST_MINUTES=120: two hours, in seven seconds) with tenants that come and go, whose limits
// are set, changed and taken away: in every stretch without a change each has what is due to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "policy/limits/quota.h"
#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

struct Visitor {
  ClientId client = 0;
  int limit = 100;
  bool bursty = false;
};

class Visitors {
 public:
  explicit Visitors(uint64_t seed) : world_({}, seed), dice_(seed) {}

  void play(Duration time) {
    const Instant end = world_.now() + time;
    while (world_.now() < end && !world_.broken()) {
      for (int i = number(1, 3); i > 0; --i) change();
      world_.run_for(3 * kSeconds);  // what was saved up before is used up
      look(number(10, 60) * kSeconds);
    }
    EXPECT_FALSE(world_.broken()) << world_.describe();
  }

  int came = 0, left = 0, changed = 0, looks = 0;
  double worst = 0;  // points that one of those that keep the GPU busy had less, or more, than was due
  double worst_over = 0;

 private:
  int number(int low, int high) { return static_cast<int>(low + static_cast<int64_t>(dice_() % static_cast<uint64_t>(high - low + 1))); }

  void change() {
    const int what = number(0, 9);
    if (here_.empty() || (what < 4 && here_.size() < 6)) return come();
    const auto at = std::next(here_.begin(), number(0, static_cast<int>(here_.size()) - 1));
    if (what < 7) {
      world_.remove(at->second.client);
      here_.erase(at);
      ++left;
      return;
    }
    limit(at->first, at->second);
    ++changed;
  }

  void limit(TenantId tenant, Visitor& visitor) {
    constexpr int kLimits[] = {10, 20, 30, 40, 60, 80, 100};
    visitor.limit = kLimits[number(0, 6)];
    world_.limit(tenant, visitor.limit);
  }

  void come() {
    const TenantId tenant = ++came;
    Visitor& visitor = here_[tenant];
    limit(tenant, visitor);
    visitor.bursty = number(0, 3) == 0;
    constexpr Duration kKernels[] = {20 * kUs, kMsec, 20 * kMsec};
    Job& job = visitor.bursty ? world_.add_bursty(tenant, number(1, 20) * kMsec, number(10, 200) * kMsec)
                              : world_.add(tenant, kKernels[number(0, 2)]);
    visitor.client = job.id;
  }

  void look(Duration time) {
    std::map<TenantId, double> before;
    for (const auto& [tenant, visitor] : here_) before[tenant] = world_.work(tenant);
    const Instant from = world_.now();
    world_.run_for(time);
    ++looks;
    double sum = 0;
    bool free_runner = false, limited = false, mixed = false;
    for (const auto& [tenant, visitor] : here_) {
      mixed |= visitor.bursty;
      limited |= visitor.limit < 100;
      if (visitor.limit < 100) sum += visitor.limit;
      free_runner |= visitor.limit == 100;
    }
    if (!limited) return;
    const double most = free_runner ? 95 : 100;
    for (const auto& [tenant, visitor] : here_) {
      if (visitor.limit == 100) continue;
      const double got = (world_.work(tenant) - before[tenant]) * 100 / static_cast<double>(world_.now() - from);
      const double due = sum <= most ? visitor.limit : visitor.limit * most / sum;
      worst_over = std::max(worst_over, got - visitor.limit);
      if (!mixed) worst = std::max(worst, std::abs(got - due));  // beside pauses others may have more, and programs with pauses less
    }
  }

  QuotaWorld world_;
  std::mt19937_64 dice_;
  std::map<TenantId, Visitor> here_;
};

TEST(QuotaVisitors, EachHasItsDueWhileTenantsComeAndGo) {
  const char* text = std::getenv("NVSHARE_TEST_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 20261123;
  std::printf("NVSHARE_TEST_SEED=%lu\n", static_cast<unsigned long>(seed));
  const char* minutes = std::getenv("NVSHARE_TEST_MINUTES");
  Visitors visitors(seed);
  visitors.play(60 * kSeconds * (minutes != nullptr ? std::clamp(std::atoi(minutes), 1, 6000) : 15));
  std::printf("%d came, %d left, %d limits changed, %d looks: at most %.2f points from what was due, %.2f above a limit\n", visitors.came,
              visitors.left, visitors.changed, visitors.looks, visitors.worst, visitors.worst_over);
  EXPECT_GE(visitors.looks, 5);
  EXPECT_LT(visitors.worst, 1.5);
  EXPECT_LT(visitors.worst_over, 1.5);
}

}  // namespace
}  // namespace nvshare::policy::testing
