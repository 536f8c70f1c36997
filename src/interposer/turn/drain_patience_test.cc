#include "interposer/turn/drain_patience.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSec = 1000 * kMs;

// Attempts until the work's own length of time is granted; 0: never, in a hundred.
int attempts_until_drained(int64_t work_ns, int64_t seen_ns) {
  DrainPatience patience;
  for (int attempt = 1; attempt <= 100; ++attempt) {
    if (patience.value_ns() >= work_ns) return attempt;
    patience.gave_up(seen_ns);
  }
  return 0;
}

TEST(DrainPatience, GrowsEveryOtherTime) {
  DrainPatience patience;
  EXPECT_EQ(patience.value_ns(), 200 * kMs);
  patience.gave_up(0);
  EXPECT_EQ(patience.value_ns(), 200 * kMs);
  patience.gave_up(0);
  EXPECT_EQ(patience.value_ns(), 400 * kMs);
  EXPECT_GT(attempts_until_drained(3 * kSec, 0), 0);
}

// What cannot end, as far as anybody has seen, is not held up for longer and longer.
TEST(DrainPatience, HasABoundWhereNothingLongWasSeenToEnd) {
  EXPECT_EQ(attempts_until_drained(5 * kSec + 1, 0), 0);
  EXPECT_EQ(attempts_until_drained(5 * kSec + 1, 10 * kMs), 0);
}

// Eight seconds of work are in flight whenever the gate closes: it was seen to end, so it is waited for.
TEST(DrainPatience, WaitsForWhatWasSeenToEnd) {
  EXPECT_GT(attempts_until_drained(8 * kSec, 8 * kSec), 0);
  EXPECT_GT(attempts_until_drained(12 * kSec, 8 * kSec), 0) << "a little more than was seen";
  EXPECT_EQ(attempts_until_drained(26 * kSec, 60 * kSec), 0) << "the scheduler wants an answer";
}

TEST(DrainPatience, ComesDownWithADrainThatEnds) {
  DrainPatience patience;
  for (int i = 0; i < 30; ++i) patience.gave_up(10 * kSec);
  EXPECT_GT(patience.value_ns(), 5 * kSec);
  patience.drained(10 * kMs);
  EXPECT_EQ(patience.value_ns(), 200 * kMs);
  patience.drained(2 * kSec);
  EXPECT_EQ(patience.value_ns(), 4 * kSec);
  patience.drained(20 * kSec);
  EXPECT_LE(patience.value_ns(), 5 * kSec) << "longer only where drains were given up";
}

}  // namespace
}  // namespace nvshare::interposer
