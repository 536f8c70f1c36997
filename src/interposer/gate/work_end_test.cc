// When the work in flight ends, as a thread foretells it from its events.
#include "interposer/gate/work_end.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace nvshare::interposer {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(WorkEnd, IsNotKnownWithoutAnEventThatWasSeenToEnd) {
  WorkEnd end;
  EXPECT_EQ(end.at_ns(1), 0);
  end.done({.not_yet_ns = 0, .seen_ns = 100 * kMs, .spacing_ns = 8 * kMs, .submissions = 8});  // when it ended nobody knows
  EXPECT_EQ(end.at_ns(1), 0);
}

TEST(WorkEnd, IsWhereTheEventsBeforeItPoint) {
  WorkEnd end;
  end.done({.not_yet_ns = 100 * kMs, .seen_ns = 101 * kMs, .spacing_ns = 0, .submissions = 8});
  EXPECT_EQ(end.at_ns(8), 0);  // so long one takes is not known
  end.done({.not_yet_ns = 108 * kMs, .seen_ns = 109 * kMs, .spacing_ns = 8 * kMs, .submissions = 4});
  EXPECT_EQ(end.at_ns(0), 108 * kMs + kMs / 2);
  EXPECT_EQ(end.at_ns(5), 118 * kMs + kMs / 2);
}

TEST(WorkEnd, IsForgottenWithAnEventWhoseEndWasNotSeen) {
  WorkEnd end;
  end.done({.not_yet_ns = 100 * kMs, .seen_ns = 101 * kMs, .spacing_ns = 8 * kMs, .submissions = 8});
  end.lost();
  EXPECT_EQ(end.at_ns(8), 0);
  end.done({.not_yet_ns = 120 * kMs, .seen_ns = 122 * kMs, .spacing_ns = 0, .submissions = 8});
  EXPECT_EQ(end.at_ns(8), 129 * kMs);  // what a submission takes is known still
}

// Looks come late by up to 0.2 ms, and yet the end is known far better after a while.
TEST(WorkEnd, IsKnownBetterThanEventsAreLookedAt) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  WorkEnd end;
  int64_t true_end = 100 * kMs;
  for (int i = 0; i < 200; ++i) {
    const int64_t spacing = 8 * kMs + static_cast<int64_t>(random() % kMs);
    true_end += spacing;
    const int64_t late = static_cast<int64_t>(random() % (kMs / 5));
    const int64_t noise = static_cast<int64_t>(random() % 1000) - 500;  // an event's time is one of half a microsecond
    end.done({.not_yet_ns = true_end + late - kMs / 5, .seen_ns = true_end + late, .spacing_ns = spacing + noise, .submissions = 8});
  }
  EXPECT_LT(std::abs(end.at_ns(0) - true_end), kMs / 40);
}

}  // namespace
}  // namespace nvshare::interposer
