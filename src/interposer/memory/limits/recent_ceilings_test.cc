#include "interposer/memory/limits/recent_ceilings.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'000 * kSecond;

TEST(RecentCeilings, EachFallIsRememberedForItsOwnFiveSeconds) {
  RecentCeilings ceilings;
  EXPECT_FALSE(ceilings.had_room_for(1, kStart));
  ceilings.fell_from(1000, kStart);
  EXPECT_TRUE(ceilings.had_room_for(1000, kStart + 5 * kSecond - 1));
  EXPECT_FALSE(ceilings.had_room_for(1001, kStart));
  EXPECT_FALSE(ceilings.had_room_for(1000, kStart + 5 * kSecond));
}

// A neighbour that starts one process after the other: the fall that began five seconds ago says nothing of the one a moment ago.
TEST(RecentCeilings, ALaterFallIsNotCutShortByAnEarlierOne) {
  RecentCeilings ceilings;
  ceilings.fell_from(1000, kStart);
  ceilings.fell_from(900, kStart + 4 * kSecond);
  EXPECT_TRUE(ceilings.had_room_for(900, kStart + 6 * kSecond));
  EXPECT_FALSE(ceilings.had_room_for(1000, kStart + 6 * kSecond)) << "that was more than five seconds ago";
  EXPECT_FALSE(ceilings.had_room_for(900, kStart + 9 * kSecond));
}

TEST(RecentCeilings, ManyFallsLoseNothingThatIsRecent) {
  RecentCeilings ceilings;
  for (int64_t i = 0; i < 100; ++i) ceilings.fell_from(static_cast<size_t>(1000 + i % 2), kStart + i * kSecond / 100);
  EXPECT_TRUE(ceilings.had_room_for(1001, kStart + 5 * kSecond));
  EXPECT_FALSE(ceilings.had_room_for(1002, kStart + kSecond));
  EXPECT_FALSE(ceilings.had_room_for(1, kStart + 6 * kSecond));
  ceilings.fell_from(500, kStart + 7 * kSecond);
  EXPECT_TRUE(ceilings.had_room_for(500, kStart + 11 * kSecond));
}

// A neighbour that starts one process after the other, without end.
TEST(CeilingWait, EndsHoweverOftenTheCeilingFalls) {
  RecentCeilings ceilings;
  CeilingWait wait;
  ceilings.fell_from(1000, kStart - 4 * kSecond);
  for (int64_t now = kStart; now < kStart + 5 * kSecond; now += kSecond / 10) {
    if (now % kSecond == 0) ceilings.fell_from(1000, now);
    EXPECT_TRUE(wait.goes_on(ceilings, 1000, now)) << now - kStart;
  }
  ceilings.fell_from(1000, kStart + 5 * kSecond);
  EXPECT_FALSE(wait.goes_on(ceilings, 1000, kStart + 5 * kSecond));
  EXPECT_TRUE(CeilingWait().goes_on(ceilings, 1000, kStart + 5 * kSecond)) << "another allocation";
}

TEST(CeilingWait, IsNotBegunForWhatWasAlwaysTooMuch) {
  RecentCeilings ceilings;
  EXPECT_FALSE(CeilingWait().goes_on(ceilings, 1, kStart));
  ceilings.fell_from(1000, kStart);
  EXPECT_FALSE(CeilingWait().goes_on(ceilings, 1001, kStart));
}

}  // namespace
}  // namespace nvshare::interposer
