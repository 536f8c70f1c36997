#include "scheduler/memory_watch.h"

#include <gtest/gtest.h>

#include "scheduler/test_amounts.h"

namespace nvshare::scheduler {
namespace {

GpuSample used(int64_t before, int64_t after) {
  GpuSample sample;
  sample.used_before = before;
  sample.used_after = after;
  return sample;
}

TEST(ForeignMemory, IsWhatIsUsedAndNotOurs) {
  ForeignMemoryWatch watch;
  EXPECT_EQ(watch.update(used(5 * kGiB, 5 * kGiB), 2 * kGiB, 0), 3 * kGiB);
  EXPECT_EQ(watch.update(used(5 * kGiB, 5 * kGiB), 2 * kGiB, 0), std::nullopt) << "unchanged";
  EXPECT_EQ(watch.bytes(), 3 * kGiB);
}

TEST(ForeignMemory, LiesFirstInWhatWeWereNotTold) {
  ForeignMemoryWatch watch;
  EXPECT_EQ(watch.update(used(5 * kGiB, 5 * kGiB), 0, 8 * kGiB), std::nullopt) << "fits beside what we were told";
  watch.update(used(10 * kGiB, 10 * kGiB), 0, 8 * kGiB);
  EXPECT_EQ(watch.update(used(10 * kGiB, 10 * kGiB), 0, 8 * kGiB), 2 * kGiB);
}

TEST(ForeignMemory, GrowthIsBelievedTheSecondTimeShrinkingAtOnce) {
  ForeignMemoryWatch watch;
  watch.update(used(kGiB, kGiB), 0, 0);
  EXPECT_EQ(watch.update(used(3 * kGiB, 3 * kGiB), 0, 0), std::nullopt);
  EXPECT_EQ(watch.update(used(3 * kGiB, 3 * kGiB), 0, 0), 3 * kGiB);
  EXPECT_EQ(watch.update(used(kGiB, kGiB), 0, 0), kGiB);
  EXPECT_EQ(watch.update(used(0, 0), 0, 0), 0);
}

TEST(ForeignMemory, TinyChangesAreNone) {
  ForeignMemoryWatch watch;
  watch.update(used(kGiB, kGiB), 0, 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(watch.update(used(kGiB + i * kMiB, kGiB + i * kMiB), 0, 0), std::nullopt);
}

TEST(ForeignMemory, WhatMovesWhileLookedAtIsNotBelievedForAWhile) {
  ForeignMemoryWatch watch;
  watch.update(used(kGiB, kGiB), 0, 0);
  std::optional<int64_t> figure;
  int samples = 0;
  while (!figure && samples < 100) {
    figure = watch.update(used(9 * kGiB, 7 * kGiB), 4 * kGiB, 0);
    ++samples;
  }
  EXPECT_GT(samples, ForeignMemoryWatch::kUnsteadyMax);
  EXPECT_EQ(figure, 3 * kGiB) << "the least, in the end";
}

TEST(Overhead, IsKnownOnceNothingMoves) {
  OverheadWatch watch;
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 1), std::nullopt) << "seen once";
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 2), std::nullopt) << "it reported meanwhile";
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 2), kGiB);
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 2), std::nullopt) << "unchanged";
  EXPECT_EQ(watch.update(3 * kGiB, kGiB, 2), std::nullopt) << "moving";
  EXPECT_EQ(watch.update(3 * kGiB, kGiB, 2), 2 * kGiB);
  watch.update(kGiB, 5 * kGiB, 3);
  EXPECT_EQ(watch.update(kGiB, 5 * kGiB, 3), 0) << "never negative";
}

TEST(HostRoom, IsToldAgainWhenItMattersOnly) {
  HostRoomWatch watch;
  EXPECT_TRUE(watch.update({80 * kGiB}, false));
  EXPECT_FALSE(watch.update({80 * kGiB - kMiB}, false));
  EXPECT_TRUE(watch.update({80 * kGiB - kMiB}, true)) << "the policy has reckoned on its own since";
  EXPECT_TRUE(watch.update({70 * kGiB}, false));
  EXPECT_TRUE(watch.update({0}, false));
  EXPECT_FALSE(watch.update({0}, false));
  EXPECT_FALSE(watch.update({kMiB}, false));
}

TEST(HostRoom, IsToldAgainWhenAnotherMayHaveMoreOrLessOfIt) {
  HostRoomWatch watch;
  policy::HostMemory room{80 * kGiB, 80 * kGiB, 10 * kGiB, 40 * kGiB, {{1, kGiB}, {2, kGiB}}};
  EXPECT_TRUE(watch.update(room, false));
  EXPECT_FALSE(watch.update(room, false));
  room.share = 20 * kGiB;
  EXPECT_TRUE(watch.update(room, false));
  room.uses[1].used = 2 * kGiB;
  EXPECT_TRUE(watch.update(room, false));
  room.uses[1].used += kMiB;
  EXPECT_FALSE(watch.update(room, false));
  room.uses[1].tenant = 3;
  EXPECT_TRUE(watch.update(room, false));
  room.uses.pop_back();
  EXPECT_TRUE(watch.update(room, false));
}

TEST(AvailableMemory, IsReadInBytes) {
  EXPECT_EQ(available_memory("MemTotal:  8 kB\nMemAvailable:    1024 kB\nBuffers: 3 kB\n"), kMiB);
  EXPECT_EQ(available_memory("MemTotal:  8 kB\n"), 0);
}

}  // namespace
}  // namespace nvshare::scheduler
