// Which clients may move out where host memory is short, step by step.
#include "policy/testing/test_step.h"

namespace nvshare::policy {
namespace {

// Else there seems to be room for a neighbour's memory that is not there, and its movement ends halfway.
TEST_F(Step, HostMemoryHasNoMoreRoomThanWhatCameInHasLeft) {
  feed(HostMemory{kGiB});
  join(1, 10 * kGiB, true, 10 * kGiB);
  load(1, 10 * kGiB);
  join(2, 10 * kGiB, true);
  feed(SwapProgressed{1, false, true, false, grants[1], 8 * kGiB, 1, {10 * kGiB, 10 * kGiB, 0}});
  const Actions actions = feed(LockReleased{1, grants[1], {10 * kGiB, 10 * kGiB, 0}, false});
  EXPECT_FALSE(find<SendEvict>(actions, 1));
  EXPECT_FALSE(find<SendLock>(actions, 2));
}

// It is not told of it once more.
TEST_F(Step, HostMemoryHasAsMuchMoreRoomAsAMovementIsSaidToHaveLeft) {
  feed(HostMemory{kGiB});
  join(1, 10 * kGiB, true, 10 * kGiB);
  load(1, 10 * kGiB);
  join(2, 10 * kGiB, true);
  SwapProgressed moved{1, false, true, false, grants[1], 8 * kGiB, 1, {10 * kGiB, 10 * kGiB, 0}};
  moved.host_more = -8 * kGiB;
  feed(moved);
  const Actions actions = feed(LockReleased{1, grants[1], {10 * kGiB, 10 * kGiB, 0}, false});
  EXPECT_TRUE(find<SendEvict>(actions, 1));
  EXPECT_TRUE(find<SendLock>(actions, 2));
}

// A movement was given up halfway. What the first loads leaves room for what the other has to move out.
TEST_F(Step, TwoOfWhichNeitherIsWholeTradePlacesWhereHostMemoryIsShort) {
  feed(HostMemory{46 * kMiB});
  join(1, 10 * kGiB, true, 5 * kGiB);
  join(2, 10 * kGiB, false, 7 * kGiB);
  feed(LockReleased{1, grants[1], {10 * kGiB, 5 * kGiB, 0}, false});
  const Actions actions = feed(LockRequested{2});
  feed(LockRequested{1});
  EXPECT_EQ(view_of(1).state, ClientState::kWaiting);
  ASSERT_EQ(view_of(2).state, ClientState::kLoading) << "it lacks less";
  const auto lock = find<SendLock>(actions, 2);
  ASSERT_TRUE(lock);
  EXPECT_EQ(lock->budget, gpu().safe_limit - 5 * kGiB);
  EXPECT_FALSE(find<SendEvict>(actions, 1)) << "there is no room for a piece";
  const Bytes loaded = lock->budget;
  const Actions more = feed(SwapProgressed{2, false, false, false, grants[2], loaded - 7 * kGiB, 1, {10 * kGiB, loaded, 0}});
  const auto evict = find<SendEvict>(more, 1);
  ASSERT_TRUE(evict);
  EXPECT_EQ(evict->bytes, 10 * kGiB - loaded);
  feed(SwapProgressed{1, true, true, false, evict->eviction, evict->bytes, 1, {10 * kGiB, 5 * kGiB - evict->bytes, 0}});
  EXPECT_EQ(view_of(2).budget, 10 * kGiB);
  load(2, 10 * kGiB);
  EXPECT_EQ(view_of(2).state, ClientState::kRunning);
}

TEST_F(Step, WhoIsWholeDoesNotMoveWhereHostMemoryIsShort) {
  feed(HostMemory{46 * kMiB});
  join(1, 10 * kGiB, false, 10 * kGiB);
  join(2, 10 * kGiB, true, 4 * kGiB);
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting);
  feed(LockRequested{1});
  EXPECT_EQ(view_of(1).state, ClientState::kRunning);
}

// Once waited for a retry of an eviction that could not come: host memory had no room left to try it.
TEST_F(Step, GrowthIsRefusedWhenAFailedEvictionCannotBeTriedAgain) {
  feed(HostMemory{4 * kGiB});
  join(1, 8 * kGiB, false, 8 * kGiB);
  const auto lock = find<SendLock>(join(2, 6 * kGiB, true), 2);
  ASSERT_TRUE(lock);
  load(2, 6 * kGiB);
  const auto evict = find<SendEvict>(feed(MemoryChanged{2, {6 * kGiB, 6 * kGiB, 0}, lock->budget, 0, 4 * kGiB, 1}), 1);
  ASSERT_TRUE(evict);
  feed(SwapProgressed{1, true, true, true, evict->eviction, 0, kSec, {8 * kGiB, 8 * kGiB, 0}});
  feed(HostMemory{0});
  std::optional<SendMemory> answer;
  for (int i = 0; i < 20 && !answer && next_deadline(*state); ++i) {
    now = *next_deadline(*state);
    answer = find<SendMemory>(feed(Tick{}), 2);
  }
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->granted);
}

// What moves does so in pieces. Host memory that takes all but the end of the last one left two programs on the GPU of which neither was
// whole, for ever: one loading, the other not to be moved any further.
TEST_F(Step, NothingBeginsToMoveThatHostMemoryCannotTakeInWholePieces) {
  join(1, 9 * kGiB, false, 7 * kGiB);
  join(2, 9 * kGiB);
  const Bytes shortfall = 16 * kGiB - gpu().safe_limit;
  feed(HostMemory{shortfall + 10 * kMiB});
  EXPECT_FALSE(find<SendLock>(feed(LockRequested{2}), 2));
  EXPECT_NE(view_of(2).waiting_for.find("host memory"), std::string::npos) << view_of(2).waiting_for;
  EXPECT_NE(view_of(2).waiting_for.find("54 MiB are missing"), std::string::npos) << view_of(2).waiting_for;
  EXPECT_TRUE(find<SendLock>(feed(LockRequested{1}), 1)) << "there is room for the rest of it";
  feed(LockReleased{1, grants[1], {9 * kGiB, 7 * kGiB, 0}, true});
  const Actions actions = feed(HostMemory{shortfall + 64 * kMiB});
  EXPECT_TRUE(find<SendLock>(actions, 2));
  ASSERT_TRUE(find<SendEvict>(actions, 1));
  EXPECT_EQ(find<SendEvict>(actions, 1)->bytes, shortfall);
}

// A client that has the lock and grows may try it: pieces may be smaller than the largest.
TEST_F(Step, GrowthIsNotRefusedForTheSizeOfAPiece) {
  join(1, 6 * kGiB, false, 6 * kGiB);
  const auto lock = find<SendLock>(join(2, 8 * kGiB, true), 2);
  ASSERT_TRUE(lock);
  load(2, 8 * kGiB);
  const Bytes wanted = gpu().safe_limit - 14 * kGiB + 2 * kMiB;  // 2 MiB more than there are
  feed(HostMemory{10 * kMiB});
  const Actions actions = feed(MemoryChanged{2, {8 * kGiB, 8 * kGiB, 0}, lock->budget, 0, wanted, 1});
  EXPECT_FALSE(find<SendMemory>(actions, 2));
  ASSERT_TRUE(find<SendEvict>(actions, 1));
  EXPECT_GE(find<SendEvict>(actions, 1)->bytes, 2 * kMiB);
}

// Unless all that there is moves: then there is no piece that goes beyond it.
TEST_F(Step, AllOfItMayMoveWhereHostMemoryJustTakesIt) {
  join(1, 7 * kGiB, false, 7 * kGiB);
  join(2, 15 * kGiB - 100 * kMiB);
  feed(HostMemory{7 * kGiB});
  EXPECT_TRUE(find<SendLock>(feed(LockRequested{2}), 2));
}

TEST_F(Step, EvictionsOfTwoGpusShareTheHostMemory) {
  feed(GpuAppeared{1, 16 * kGiB});
  feed(HostMemory{12 * kGiB});
  for (const GpuId gpu_id : {0U, 1U}) {
    feed(ClientJoined{10 + gpu_id, gpu_id, 1, 0, {12 * kGiB, 12 * kGiB, 0}, true, false, false});
    feed(ClientJoined{20 + gpu_id, gpu_id, 1, 0, {12 * kGiB, 0, 0}, true, false, false});
  }
  EXPECT_TRUE(find<SendEvict>(feed(LockRequested{20}), 10));
  EXPECT_FALSE(find<SendEvict>(feed(LockRequested{21}), 11));
  EXPECT_TRUE(find<SendEvict>(feed(HostMemory{24 * kGiB}), 11));
}

// Once one figure held for all, as if the tenant that uses most within its share would move, which may have nothing on the GPU: two
// programs of which neither was whole stood still, though the other's tenant may have what is kept (simulation, seed 1530249580).
TEST_F(Step, WhatIsKeptOfHostMemoryIsForWhoseTenantUsesLittle) {
  join(1, 9 * kGiB, false, 9 * kGiB);
  join(2, 0);
  const Bytes shortfall = 200 * kMiB;
  feed(MemoryChanged{2, {gpu().safe_limit - 9 * kGiB + shortfall, 0, 0}, 0, 0, 0, 0});
  const auto kept = [](Bytes used) { return HostMemory{2 * kGiB, 2 * kGiB, 2 * kGiB, 4 * kGiB, {{1, used}, {3, 4 * kGiB - kMiB}}}; };
  feed(kept(4 * kGiB));
  EXPECT_FALSE(find<SendLock>(feed(LockRequested{2}), 2)) << "it would have to move who uses its share";
  EXPECT_NE(view_of(2).waiting_for.find("more than the 0 MiB left; 264 MiB are missing"), std::string::npos) << view_of(2).waiting_for;
  EXPECT_FALSE(find<SendLock>(feed(kept(4 * kGiB - 100 * kMiB)), 2)) << "that is not enough";
  const auto changed = [](TenantId tenant) { return HostMemory{2 * kGiB, 2 * kGiB, 2 * kGiB, 4 * kGiB, {{tenant, 3 * kGiB}}, true}; };
  EXPECT_FALSE(find<SendLock>(feed(changed(3)), 2)) << "another uses less";
  const Actions actions = feed(changed(1));
  EXPECT_TRUE(find<SendLock>(actions, 2));
  const auto evict = find<SendEvict>(actions, 1);
  ASSERT_TRUE(evict);
  EXPECT_EQ(evict->bytes, shortfall);
}

TEST_F(Step, AHalfOfWhatIsKeptOfHostMemoryIsForTheNext) {
  join(1, 9 * kGiB, false, 9 * kGiB);
  join(2, 0);
  feed(MemoryChanged{2, {gpu().safe_limit - 9 * kGiB + 200 * kMiB, 0, 0}, 0, 0, 0, 0});
  const auto free = [](Bytes bytes) { return HostMemory{bytes, bytes, 2 * kGiB, 4 * kGiB, {{1, 2 * kGiB}}}; };
  feed(free(kGiB + 263 * kMiB));
  EXPECT_FALSE(find<SendLock>(feed(LockRequested{2}), 2));
  EXPECT_TRUE(find<SendLock>(feed(free(kGiB + 264 * kMiB)), 2));
}

// The client that uses its share moves first, as it gets nothing once what is kept was begun; the other begins when that has moved.
TEST_F(Step, WhatIsKeptOfHostMemoryIsBegunLast) {
  join(1, 4 * kGiB, false, 4 * kGiB);
  join(2, 8 * kGiB, false, 8 * kGiB);
  join(3, 0);
  const Bytes shortfall = 500 * kMiB;
  feed(MemoryChanged{3, {gpu().safe_limit - 12 * kGiB + shortfall, 0, 0}, 0, 0, 0, 0});
  feed(HostMemory{2 * kGiB + 200 * kMiB, 2 * kGiB + 200 * kMiB, 2 * kGiB, 4 * kGiB, {{2, 5 * kGiB}}});
  const Actions actions = feed(LockRequested{3});
  EXPECT_TRUE(find<SendLock>(actions, 3));
  EXPECT_FALSE(find<SendEvict>(actions, 1));
  const auto first = find<SendEvict>(actions, 2);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->bytes, 200 * kMiB);
  const auto second =
      find<SendEvict>(feed(SwapProgressed{2, true, true, false, first->eviction, 200 * kMiB, 1, {8 * kGiB, 8 * kGiB - 200 * kMiB, 0}}), 1);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->bytes, 300 * kMiB);
}

}  // namespace
}  // namespace nvshare::policy
