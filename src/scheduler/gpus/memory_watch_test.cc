#include "scheduler/gpus/memory_watch.h"

#include <gtest/gtest.h>

#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

using Told = ForeignMemoryWatch::Told;

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

TEST(ForeignMemory, StaysWithinWhatIsPossibleWhileOursMayBeFree) {
  ForeignMemoryWatch watch;
  const auto look = [&](int64_t in_use, int64_t ours, int64_t unlisted) {
    return watch.update(used(in_use, in_use), ours, 0, std::nullopt, unlisted);
  };
  EXPECT_EQ(look(9 * kGiB, 8 * kGiB, 0), kGiB);
  EXPECT_EQ(look(4 * kGiB, 8 * kGiB, 5 * kGiB), std::nullopt) << "0 or 1 GiB";
  EXPECT_EQ(look(4 * kGiB, 3 * kGiB, 0), std::nullopt) << "it was 1";
  EXPECT_EQ(look(4 * kGiB, 8 * kGiB, 4 * kGiB + kGiB / 2), kGiB / 2) << "no more than that can be others'";
  EXPECT_EQ(look(9 * kGiB, 7 * kGiB, kGiB), std::nullopt) << "growth is believed the second time";
  EXPECT_EQ(look(9 * kGiB, 7 * kGiB, kGiB), 2 * kGiB) << "as little as it can be";
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

// Where NVML does not list clients: what moved out and is not told yet would be taken off what others have.
TEST(ForeignMemory, WhatClientsHaveNotToldIsNotTakenOffIt) {
  ForeignMemoryWatch watch;
  const auto look = [&](int64_t in_use, int64_t ours, uint64_t moves) {
    return watch.update(used(in_use, in_use), ours, 0, Told{moves, 0, 0});
  };
  EXPECT_EQ(look(8 * kGiB, 5 * kGiB, 1), 3 * kGiB);
  EXPECT_EQ(look(7 * kGiB, 5 * kGiB, 1), std::nullopt) << "a client moves out";
  EXPECT_EQ(look(6 * kGiB, 4 * kGiB, 2), std::nullopt) << "and has told a part of it";
  EXPECT_EQ(look(6 * kGiB, 3 * kGiB, 3), std::nullopt) << "and the rest";
  EXPECT_EQ(look(6 * kGiB, 3 * kGiB, 3), std::nullopt) << "unchanged";
  EXPECT_EQ(look(5 * kGiB, 3 * kGiB, 3), std::nullopt) << "somebody gives a GiB back: who, is not known";
  EXPECT_EQ(look(5 * kGiB, 3 * kGiB, 3), 2 * kGiB) << "nothing moved since";
}

// One that is stopped in its eviction tells nothing for as long (simulation, seed 7200224289).
TEST(ForeignMemory, WhatAClientWasAskedToMoveOutMayBeGone) {
  ForeignMemoryWatch watch;
  const auto look = [&](int64_t in_use, int64_t leaving) { return watch.update(used(in_use, in_use), 5 * kGiB, 0, Told{1, leaving, 0}); };
  EXPECT_EQ(look(8 * kGiB, 0), 3 * kGiB);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(look(7 * kGiB, 2 * kGiB), std::nullopt);
  EXPECT_EQ(look(5 * kGiB, 2 * kGiB), std::nullopt);
  EXPECT_EQ(look(5 * kGiB, 2 * kGiB), 2 * kGiB) << "so much of the three is gone at least";
}

// A context was reckoned to take 128 MiB and took nothing, so that others' counted for less; it ends while another client moves out.
TEST(ForeignMemory, WhatAnEndedContextDidNotTakeIsOthersWhileNothingElseCanBeSeen) {
  ForeignMemoryWatch watch;
  EXPECT_EQ(watch.update(used(8 * kGiB, 8 * kGiB), 5 * kGiB + 128 * kMiB, 0, Told{1, 0, 128 * kMiB}), 3 * kGiB - 128 * kMiB);
  const GpuSample moved = used(7 * kGiB, 7 * kGiB);
  EXPECT_EQ(watch.update(moved, 5 * kGiB, 0, Told{1, 2 * kGiB, 0}), 3 * kGiB);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(watch.update(moved, 5 * kGiB, 0, Told{1, 2 * kGiB, 0}), std::nullopt);
  EXPECT_EQ(watch.update(moved, 4 * kGiB, 0, Told{2, 0, 0}), std::nullopt) << "it is told";
  EXPECT_EQ(watch.bytes(), 3 * kGiB);
}

TEST(ForeignMemory, UseAndReportThatMoveTogetherCountAsOneMove) {
  ForeignMemoryWatch watch;
  const auto look = [&](int64_t in_use, uint64_t moves) { return watch.update(used(in_use, in_use), 5 * kGiB, 0, Told{moves, 0, 0}); };
  EXPECT_EQ(look(8 * kGiB, 1), 3 * kGiB);
  EXPECT_EQ(look(7 * kGiB, 2), std::nullopt);
  EXPECT_EQ(look(7 * kGiB, 2), 2 * kGiB) << "nothing moved since";
}

TEST(ForeignMemory, LessCountsInTheEndWhileMemoryMovesOnAndOn) {
  ForeignMemoryWatch watch;
  watch.update(used(8 * kGiB, 8 * kGiB), 5 * kGiB, 0, Told{1, 0, 0});
  std::optional<int64_t> figure;
  uint64_t looks = 0;
  while (!figure && looks < 100) {
    ++looks;
    const int64_t moved_out = looks % 2 == 0 ? kGiB / 2 : 0;
    figure = watch.update(used(6 * kGiB - moved_out, 6 * kGiB - moved_out), 5 * kGiB, 0, Told{1 + looks, 0, 0});
  }
  EXPECT_GT(looks, uint64_t{ForeignMemoryWatch::kMovingMax});
  EXPECT_EQ(figure, kGiB) << "the largest of them";
}

TEST(Overhead, IsKnownOnceNothingMoves) {
  OverheadWatch watch;
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 1), std::nullopt) << "seen once";
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 2), std::nullopt) << "it moved meanwhile";
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 2), kGiB);
  EXPECT_EQ(watch.update(2 * kGiB, kGiB, 2), std::nullopt) << "unchanged";
  EXPECT_EQ(watch.update(3 * kGiB, kGiB, 2), std::nullopt) << "moving";
  EXPECT_EQ(watch.update(3 * kGiB, kGiB, 2), 2 * kGiB);
  watch.update(kGiB, 5 * kGiB, 3);
  EXPECT_EQ(watch.update(kGiB, 5 * kGiB, 3), 0) << "never negative";
}

// The scheduler's side of what the policy is told of the host's room.
class HostRoom : public testing::Test {
 protected:
  void use(policy::TenantId tenant, int64_t bytes) {
    sums_.change_tenant(tenant, [&](HostSums::OfTenant& of) {
      of.clients = 1;
      of.used = bytes;
    });
  }
  std::optional<policy::HostMemory> update() { return watch_.update(room_, sums_, sums_.take_changed(), now_); }
  void let_pass() { now_ += HostRoomWatch::kMoreAfter; }
  // As pairs, of what was told last.
  static std::map<policy::TenantId, int64_t> uses_of(const policy::HostMemory& room) {
    std::map<policy::TenantId, int64_t> uses;
    for (const auto& [tenant, used] : room.uses) uses[tenant] = used;
    return uses;
  }

  policy::HostMemory room_{80 * kGiB, 80 * kGiB, 10 * kGiB, 40 * kGiB};
  HostSums sums_;
  HostRoomWatch watch_;
  policy::Instant now_ = 0;
};

TEST_F(HostRoom, IsToldAgainWhenItMattersOnly) {
  room_ = {80 * kGiB};
  EXPECT_TRUE(update());
  room_ = {80 * kGiB - kMiB};
  EXPECT_FALSE(update());
  for (const int64_t bytes : {70 * kGiB, int64_t{0}}) {
    room_ = {bytes};
    EXPECT_TRUE(update());
    EXPECT_FALSE(watch_.due());
  }
  EXPECT_FALSE(update());
  room_ = {kMiB};
  EXPECT_FALSE(update());
}

TEST_F(HostRoom, IsToldAgainWhenAnotherMayHaveMoreOrLessOfIt) {
  use(1, kGiB);
  use(2, kGiB);
  const auto first = update();
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->changes);
  EXPECT_EQ(uses_of(*first), (std::map<policy::TenantId, int64_t>{{1, kGiB}, {2, kGiB}}));
  EXPECT_FALSE(update());
  room_.share = 20 * kGiB;
  const auto less = update();
  ASSERT_TRUE(less);
  EXPECT_TRUE(less->changes && less->uses.empty());
  use(2, 2 * kGiB);
  const auto more_used = update();
  ASSERT_TRUE(more_used);
  EXPECT_EQ(uses_of(*more_used), (std::map<policy::TenantId, int64_t>{{2, 2 * kGiB}}));
  use(2, 2 * kGiB + kMiB);
  EXPECT_FALSE(update());
  use(3, kGiB);
  const auto another = update();
  ASSERT_TRUE(another);
  EXPECT_EQ(uses_of(*another), (std::map<policy::TenantId, int64_t>{{2, 2 * kGiB + kMiB}, {3, kGiB}})) << "little is told with the next";
  use(1, 0);
  EXPECT_FALSE(update()) << "more room is not told at once";
  let_pass();
  const auto gone = update();
  ASSERT_TRUE(gone);
  EXPECT_EQ(uses_of(*gone), (std::map<policy::TenantId, int64_t>{{1, 0}}));
}

// With thousands that give memory back, the policy would look at all that waits for it with each.
TEST_F(HostRoom, MoreIsToldALittleLaterAndLessAtOnce) {
  ASSERT_TRUE(update());
  now_ += HostRoomWatch::kMoreAfter - 1;
  room_.free = room_.available = 90 * kGiB;
  EXPECT_FALSE(update());
  ASSERT_TRUE(watch_.due());
  EXPECT_EQ(*watch_.due(), now_ + 1);
  now_ += 1;
  const auto more = update();
  ASSERT_TRUE(more);
  EXPECT_EQ(more->free, 90 * kGiB);
  EXPECT_FALSE(watch_.due());
  room_.free = room_.available = 95 * kGiB;
  EXPECT_FALSE(update());
  room_.free = room_.available = 70 * kGiB;
  EXPECT_TRUE(update()) << "a movement could begin that cannot end";
  EXPECT_FALSE(watch_.due());
  room_.free = room_.available = 75 * kGiB;
  EXPECT_FALSE(update());
  room_.free = room_.available = 70 * kGiB;
  EXPECT_FALSE(update());
  EXPECT_FALSE(watch_.due()) << "it is as it was told";
}

// Such a deadline came again and again, and time stood still.
TEST_F(HostRoom, NothingIsDueOnceItIsTold) {
  for (const int64_t kept : {int64_t{0}, 10 * kGiB}) {
    room_ = {70 * kGiB, 70 * kGiB, 10 * kGiB, 40 * kGiB};
    update();
    room_.free = room_.available = 80 * kGiB;
    EXPECT_FALSE(update());
    EXPECT_TRUE(watch_.due());
    room_.kept = kept;
    let_pass();
    EXPECT_TRUE(update());
    EXPECT_FALSE(watch_.due());
  }
}

TEST_F(HostRoom, WhatThePolicyReckonsWithIsNotToldOnceMore) {
  use(1, kGiB);
  ASSERT_TRUE(update());
  watch_.reckoned(1, 8 * kGiB);
  use(1, 9 * kGiB);
  room_.free = room_.available = 72 * kGiB;
  EXPECT_FALSE(update());
  watch_.reckoned(1, 8 * kGiB);
  const auto mistaken = (let_pass(), update());
  ASSERT_TRUE(mistaken) << "it reckoned with more than there was";
  EXPECT_EQ(uses_of(*mistaken), (std::map<policy::TenantId, int64_t>{{1, 9 * kGiB}}));
  EXPECT_EQ(mistaken->free, 72 * kGiB);
  watch_.unsure_of(2);
  const auto unsure = update();
  ASSERT_TRUE(unsure);
  EXPECT_EQ(uses_of(*unsure), (std::map<policy::TenantId, int64_t>{{2, 0}}));
}

TEST_F(HostRoom, WhoUsesWhatIsToldOnceSomeIsKept) {
  use(1, kGiB);
  room_.kept = 0;
  const auto none_kept = update();
  ASSERT_TRUE(none_kept);
  EXPECT_TRUE(none_kept->uses.empty());
  use(2, kGiB);
  EXPECT_FALSE(update());
  room_.kept = 10 * kGiB;
  const auto kept = update();
  ASSERT_TRUE(kept);
  EXPECT_FALSE(kept->changes);
  EXPECT_EQ(uses_of(*kept), (std::map<policy::TenantId, int64_t>{{1, kGiB}, {2, kGiB}}));
}

TEST(AvailableMemory, IsReadInBytes) {
  EXPECT_EQ(available_memory("MemTotal:  8 kB\nMemAvailable:    1024 kB\nBuffers: 3 kB\n"), kMiB);
  EXPECT_EQ(available_memory("MemTotal:  8 kB\n"), 0);
}

}  // namespace
}  // namespace nvshare::scheduler
