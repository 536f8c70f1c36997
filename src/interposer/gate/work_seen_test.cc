#include "interposer/gate/work_seen.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

constexpr int64_t kSec = 1'000'000'000;

TEST(WorkSeen, KeepsTheLongestForAWhile) {
  WorkSeen seen;
  const int64_t now = 1000 * kSec;
  EXPECT_EQ(seen.longest_ns(now), 0);
  seen.ended_after(6 * kSec, now);
  seen.ended_after(kSec, now + kSec);
  EXPECT_EQ(seen.longest_ns(now + 2 * kSec), 6 * kSec);
  EXPECT_EQ(seen.longest_ns(now + WorkSeen::kKept_ns), 0);
  seen.ended_after(kSec, now + WorkSeen::kKept_ns);
  EXPECT_EQ(seen.longest_ns(now + WorkSeen::kKept_ns + 1), kSec);
}

}  // namespace
}  // namespace nvshare::interposer
