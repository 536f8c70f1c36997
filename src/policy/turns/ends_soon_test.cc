// A client that was asked to drop says that its work is about to end (EndsSoon): the next turn begins then, and no memory moves for that.
#include <gtest/gtest.h>

#include "policy/testing/test_step.h"

namespace nvshare::policy {
namespace {

constexpr Duration kMs = 1'000'000;
constexpr uint64_t kMpsServer = 7;

struct EndingTurns : Step {
  // Two with half of the GPU's time each; the first has its turn.
  void two_take_turns(uint64_t group, Bytes bytes = kGiB) {
    for (ClientId client = 1; client <= 2; ++client) {
      feed(ComputeLimit{client, 50});
      feed(ClientJoined{client, 0, client, 0, {bytes, client == 1 ? bytes : 0, 0}, true, false, false});
      feed(ClientShares{client, group});
    }
    feed(LockRequested{1});
    load(1, bytes);
    feed(LockRequested{2});
    ASSERT_EQ(view_of(2).state, ClientState::kWaiting);
  }
  SendDrop first_is_asked() {
    for (int i = 0; i < 100'000; ++i) {
      now += 10 * kMs;
      if (const auto drop = find<SendDrop>(feed(Tick{}), 1)) return *drop;
    }
    ADD_FAILURE() << "it was not asked to drop";
    return {};
  }
};

TEST_F(EndingTurns, WhoSaysThatItsWorkEndsHoldsUpNobodysTurn) {
  two_take_turns(kMpsServer);
  const SendDrop drop = first_is_asked();
  EXPECT_TRUE(drop.tells_end);
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting);
  EXPECT_TRUE(find<SendLock>(feed(EndsSoon{1, drop.grant, drop.attempt}), 2));
  EXPECT_EQ(view_of(1).state, ClientState::kDropping);  // as ever, until it has left
  now += kMs;
  feed(LockReleased{1, drop.grant, {kGiB, kGiB, 0}, false});
  load(2, kGiB);
  EXPECT_EQ(view_of(1).state, ClientState::kIdle);
  EXPECT_EQ(view_of(2).state, ClientState::kRunning);
}

TEST_F(EndingTurns, WhatEndsSoonAnswersIsTheLastRequest) {
  two_take_turns(kMpsServer);
  const SendDrop drop = first_is_asked();
  EXPECT_FALSE(find<SendLock>(feed(EndsSoon{1, drop.grant, drop.attempt + 1}), 2));
  EXPECT_FALSE(find<SendLock>(feed(EndsSoon{1, drop.grant + 1, drop.attempt}), 2));
  EXPECT_FALSE(find<SendLock>(feed(EndsSoon{2, drop.grant, drop.attempt}), 2));
  EXPECT_TRUE(find<SendLock>(feed(EndsSoon{1, drop.grant, drop.attempt}), 2));
}

TEST_F(EndingTurns, WhoWasNotAskedEndsNoTurn) {
  two_take_turns(kMpsServer);
  feed(EndsSoon{1, grants[1], 0});
  feed(EndsSoon{1, grants[1], 1});
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting);
  const SendDrop drop = first_is_asked();
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting) << "what it said before it was asked counts for nothing";
  EXPECT_TRUE(find<SendLock>(feed(EndsSoon{1, drop.grant, drop.attempt}), 2));
}

// Without MPS the driver switches between the two, which lasts longer than what is won. It is told all the same: the scheduler is awake
// then.
TEST_F(EndingTurns, OnlyUnderMps) {
  two_take_turns(0);
  const SendDrop drop = first_is_asked();
  EXPECT_TRUE(drop.tells_end);
  EXPECT_FALSE(find<SendLock>(feed(EndsSoon{1, drop.grant, drop.attempt}), 2));
  EXPECT_TRUE(find<SendLock>(feed(LockReleased{1, drop.grant, {kGiB, kGiB, 0}, false}), 2));
}

TEST_F(EndingTurns, IsNotAskedForWhereMemoryMoves) {
  join(1, 10 * kGiB, true, 10 * kGiB);
  load(1, 10 * kGiB);
  join(2, 10 * kGiB, true);
  EXPECT_FALSE(first_is_asked().tells_end);
}

TEST_F(EndingTurns, MemoryWaitsUntilTheWorkHasEnded) {
  two_take_turns(kMpsServer, 10 * kGiB);
  const SendDrop drop = first_is_asked();
  EXPECT_FALSE(find<SendLock>(feed(EndsSoon{1, drop.grant, drop.attempt}), 2));
  EXPECT_FALSE(find<SendEvict>(feed(Tick{}), 1));
  EXPECT_TRUE(find<SendEvict>(feed(LockReleased{1, drop.grant, {10 * kGiB, 10 * kGiB, 0}, false}), 1));
}

}  // namespace
}  // namespace nvshare::policy
