#include "interposer/gate/launch_seen.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

constexpr int64_t kUs = 1'000;

TEST(LaunchSeen, TellsTheLeastOfTheLatest) {
  LaunchSeen seen;
  EXPECT_EQ(seen.least_ns(), 0) << "not known yet";
  int64_t now = 0;
  const auto took = [&](int64_t us) { seen.took(us * kUs, now += 10 * kUs); };
  took(2000);
  EXPECT_EQ(seen.least_ns(), 2000 * kUs);
  took(12);
  took(900);
  EXPECT_EQ(seen.least_ns(), 12 * kUs);
  for (size_t more = 0; more < LaunchSeen::kKept; ++more) took(20);
  EXPECT_EQ(seen.least_ns(), 20 * kUs) << "what was long ago says nothing of now";
}

TEST(LaunchSeen, MeasuresNowAndThenOnceItKnows) {
  LaunchSeen seen;
  int64_t now = 1'000'000 * kUs;
  for (size_t n = 0; n < LaunchSeen::kKept; ++n) {
    EXPECT_TRUE(seen.is_wanted(now));
    seen.took(15 * kUs, now);
  }
  EXPECT_FALSE(seen.is_wanted(now + LaunchSeen::kPause_ns - 1));
  EXPECT_TRUE(seen.is_wanted(now + LaunchSeen::kPause_ns));
}

}  // namespace
}  // namespace nvshare::interposer
