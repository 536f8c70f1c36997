// The client's turn core, event by event: pauses and idleness. turn_test.cc has turns and drains.
#include <gtest/gtest.h>

#include "interposer/turn/test_turn.h"
#include "interposer/turn/turn.h"

namespace nvshare::interposer::turn {
namespace {

using protocol::ReleaseReason;
using testing::kMs;
using testing::TestTurn;

constexpr Phase L = Phase::kLoading, R = Phase::kRunning, D = Phase::kDraining, P = Phase::kPaused;

// ---- pauses ----

TEST(TurnPauses, AnIdleClientPausesAndGoesOnWithoutAsking) {
  TestTurn turn;
  turn.bring_to(P);
  ASSERT_EQ(turn.sent<protocol::LockPaused>().size(), 1U);
  EXPECT_FALSE(turn.gate_open);
  turn.take(Wished{turn.now, true});
  EXPECT_TRUE(turn.gate_open);
  EXPECT_EQ(turn.sent<protocol::LockResumed>().size(), 1U);
  EXPECT_TRUE(turn.sent<protocol::LockReleased>().empty());
}

// How fast it was beside others is worked out from these.
TEST(TurnPauses, ItSaysWhatItSubmittedSinceTheTurnBeganOrTheLastPauseEnded) {
  TestTurn turn;
  turn.limited(200);
  turn.seen.submissions = 100;
  turn.bring_to(R);
  turn.seen.submissions = 130;
  turn.go_idle();
  turn.take(WorkDrained{turn.drains.back()});
  ASSERT_EQ(turn->phase, P);
  EXPECT_EQ(turn.sent<protocol::LockPaused>().back().submissions, 30U);
  turn.take(Wished{turn.now, true});
  turn.seen.submissions = 135;
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().back().submissions, 5U);
}

// Nor may it say so of a turn that was taken from it, whose end it did not see coming.
TEST(TurnPauses, WhatItTakesToGiveTheGpuWorkIsNotUsed) {
  constexpr int64_t kUs = 1'000;
  struct Row {
    int64_t call, launch;
    bool pauses;
    int64_t less;
  };
  for (const Row& row : {Row{20 * kUs, 15 * kUs, true, 35 * kUs}, Row{20 * kUs, 15 * kUs, false, 0}, Row{-kMs, 15 * kUs, true, 15 * kUs},
                         Row{kMs, kMs, true, 100 * kUs}}) {
    TestTurn turn;
    turn.limited(200);
    turn.bring_to(R);
    turn.seen.submissions = 30;
    turn.seen.first_use = turn.now + kMs;
    turn.seen.first_submitted = turn.seen.first_use + row.call;
    turn.seen.launch_ns = row.launch;
    turn.take(IdleLook{});
    turn.now += 4 * kMs;
    if (row.pauses) {
      turn.go_idle();
      turn.take(WorkDrained{turn.drains.back()});
      ASSERT_EQ(turn.sent<protocol::LockPaused>().size(), 1U);
      EXPECT_EQ(turn.sent<protocol::LockPaused>().back().used_ns, static_cast<uint64_t>(3 * kMs - row.less));
    } else {
      turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
      turn.take(WorkDrained{turn.drains.back()});
      turn.take(MemoryLeft{});
      EXPECT_EQ(turn.sent<protocol::LockReleased>().back().used_ns, static_cast<uint64_t>(3 * kMs));
    }
  }
}

TEST(TurnPauses, ABurstThatWasNoLongerThanThatUsedNothing) {
  TestTurn turn;
  turn.limited(200);
  turn.bring_to(R);
  turn.seen.first_use = turn.now;
  turn.seen.first_submitted = turn.now + 30'000;
  turn.seen.launch_ns = 20'000;
  turn.now += 40'000;
  turn.go_idle();
  turn.take(WorkDrained{turn.drains.back()});
  EXPECT_EQ(turn.sent<protocol::LockPaused>().back().used_ns, 0U);
  turn.take(Wished{turn.now, true});
  EXPECT_EQ(turn.seen.first_submitted, 0) << "the next burst's is another";
}

// It wakes from the same wait before the swap engine does.
TEST(TurnPauses, TheProgramsOwnWaitTellsWhenTheWorkEnded) {
  for (const bool submits_more : {false, true}) {
    TestTurn turn;
    turn.limited(200);
    turn.bring_to(R);
    const Instant begun = turn.now;
    turn.seen.submissions = 30;
    turn.take(IdleLook{});
    turn.now = begun + 3 * kMs;
    turn.take(IdleLook{});
    turn.seen.waited_at = begun + 5 * kMs;
    turn.seen.waited_after = 70;
    turn.seen.entries = submits_more ? 71 : 70;
    turn.seen.submissions = submits_more ? 31 : 30;
    turn.now = begun + 5 * kMs + 60'000;
    turn.take(WorkEnded{begun + 3 * kMs});
    turn.go_idle();
    turn.take(WorkDrained{turn.drains.back()});
    ASSERT_EQ(turn.sent<protocol::LockPaused>().size(), 1U);
    EXPECT_EQ(turn.sent<protocol::LockPaused>().back().used_ns == 5'000'000, !submits_more);
  }
}

// The swap engine looked late, and had nothing to wait for any more.
TEST(TurnPauses, TheProgramsOwnWaitTellsWhenTheWorkEndedBeforeALateLook) {
  TestTurn turn;
  turn.limited(200);
  turn.bring_to(R);
  const Instant begun = turn.now;
  turn.seen.submissions = 30;
  turn.take(IdleLook{});
  turn.seen.waited_at = begun + 600'000;
  turn.seen.waited_after = turn.seen.entries = 70;
  turn.now = begun + kMs;
  turn.take(IdleLook{});
  turn.now += 10'000;
  turn.take(WorkEnded{begun + kMs});
  turn.go_idle();
  turn.take(WorkDrained{turn.drains.back()});
  EXPECT_EQ(turn.sent<protocol::LockPaused>().back().used_ns, 600'000U);
}

// Other streams' work went on.
TEST(TurnPauses, TheProgramsOwnWaitTellsNothingOfWorkThatWentOn) {
  TestTurn turn;
  turn.limited(200);
  turn.bring_to(R);
  const Instant begun = turn.now;
  turn.seen.submissions = 30;
  turn.take(IdleLook{});
  turn.seen.waited_at = begun + 600'000;
  turn.seen.waited_after = turn.seen.entries = 70;
  turn.now = begun + kMs;
  turn.take(IdleLook{});
  turn.now += 2 * kMs;
  turn.take(WorkEnded{begun + kMs});
  turn.go_idle();
  turn.take(WorkDrained{turn.drains.back()});
  EXPECT_EQ(turn.sent<protocol::LockPaused>().back().used_ns, 3'000'000U);
}

TEST(TurnPauses, WithOtherGpusItDoesNotSayWhatItSubmitted) {
  TestTurn turn;
  turn.bring_to(R);
  turn.seen.submissions = 30;
  turn.seen.other_gpus = true;
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().back().submissions, 0U);
}

TEST(TurnPauses, NotWithAThreadThatCameMeanwhile) {
  TestTurn turn;
  turn.limited(200);
  turn.bring_to(R);
  turn.go_idle();
  ASSERT_EQ(turn->phase, D);
  turn.seen.waiting = true;
  EXPECT_FALSE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  EXPECT_EQ(turn->phase, R);
  EXPECT_TRUE(turn.messages.empty()) << "it has not paused, so it says nothing";
}

TEST(TurnPauses, ADropEndsOneAndAThreadThatComesThenDoesNot) {
  TestTurn turn;
  turn.bring_to(P);
  turn.messages.clear();
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  turn.take(Wished{turn.now, false});
  EXPECT_FALSE(turn.gate_open);
  turn.take(WorkDrained{turn.drains.back()});
  turn.seen.waiting = true;
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
  EXPECT_TRUE(turn.sent<protocol::LockResumed>().empty());
  turn.take(ReportsSent{});
  EXPECT_EQ(turn.sent<protocol::ReqLock>().size(), 1U);
}

TEST(TurnPauses, ADropThatCrossesTheResumeIsAnsweredByADrain) {
  TestTurn turn;
  turn.bring_to(P);
  turn.take(Wished{turn.now, false});
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  EXPECT_EQ(turn->phase, D);
  EXPECT_FALSE(turn->drain.of_pause);
}

TEST(TurnPauses, ADropTogetherOfAPauseThatIsKeptSaysThatItGoesOn) {
  TestTurn turn;
  turn.bring_to(P);
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 1, {}});
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(protocol::KeepLock{TestTurn::grant(2)});
  EXPECT_EQ(turn->phase, R);
  EXPECT_EQ(turn.sent<protocol::LockResumed>().size(), 1U) << "so that it is billed";
}

TEST(TurnPauses, ADropBeforeThePauseBeginsTakesTheLock) {
  TestTurn turn;
  turn.limited(200);
  turn.bring_to(R);
  turn.go_idle();
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
  EXPECT_TRUE(turn.sent<protocol::LockPaused>().empty());
}

TEST(TurnPauses, WithoutASchedulerThereAreNone) {
  TestTurn turn;
  turn.bring_to(P);
  turn.take(Disconnected{});
  EXPECT_TRUE(turn.gate_open);
  EXPECT_TRUE(had_lock(turn.state()));
  turn.go_idle();
  EXPECT_EQ(turn->phase, R) << "nobody would give the lock back";
}

// ---- idleness ----

TEST(TurnIdleness, WithMemoryToMoveTheGpuIsGivenUpAndThePauseIsReported) {
  TestTurn turn;
  turn.contend(1, 1, 30 * kMs);
  turn.bring_to(R);
  turn.seen.submissions = 5;
  turn.take(IdleLook{});
  turn.now += 10 * kMs;
  turn.go_idle();
  ASSERT_EQ(turn->phase, D);
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(MemoryLeft{});
  const auto released = turn.sent<protocol::LockReleased>();
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].reason, static_cast<uint8_t>(ReleaseReason::kEarly));
  EXPECT_EQ(released[0].idle_us, 30'000U);
  EXPECT_TRUE(turn.sent<protocol::LockPaused>().empty());
}

// A server between two requests: its last wait for the GPU returned long before somebody else wanted its memory.
TEST(TurnIdleness, AProgramThatHasDoneNothingForLongGivesTheGpuUpAtOnce) {
  for (const bool came_since : {false, true}) {
    TestTurn turn;
    turn.bring_to(R);
    turn.seen.waited_at = turn.now + kMs;
    turn.seen.waited_after = 9;
    turn.seen.entries = came_since ? 10 : 9;
    turn.now += 2000 * kMs;
    turn.seen.submissions = 9;
    turn.take(IdleLook{});
    turn.contend(1, 1, 400 * kMs);
    turn.take(turn.contention());
    turn.take(IdleLook{});  // first use of the turn
    const Instant asked = turn.now;
    turn.go_idle();
    ASSERT_EQ(turn->phase, D);
    EXPECT_EQ(turn.now - asked, came_since ? 400 * kMs : 0) << "a thread came since: " << came_since;
    turn.take(WorkDrained{turn.drains.back()});
    turn.take(MemoryLeft{});
    EXPECT_EQ(turn.sent<protocol::LockReleased>().back().idle_us, came_since ? 400'000U : 1'999'000U);
  }
}

// On a busy machine even a wait for nothing takes a while. What it may take follows from what the switch costs.
TEST(TurnIdleness, AWaitForNothingThatTookAWhileIsNoWork) {
  for (const int64_t cost : {2 * kMs, 400 * kMs}) {
    TestTurn turn;
    turn.bring_to(R);
    turn.seen.waited_at = turn.now + kMs;
    turn.seen.waited_after = turn.seen.entries = 9;
    turn.now += 2000 * kMs;
    turn.contend(1, 1, cost);
    turn.take(turn.contention());
    turn.take(IdleLook{});
    const Instant asked = turn.now;
    turn.now += kMs;
    turn.take(WorkEnded{asked});
    turn.take(IdleLook{});
    EXPECT_EQ(turn->phase, cost == 400 * kMs ? D : R) << cost;
  }
}

// It waited for one stream, and others' work ended only now.
TEST(TurnIdleness, AProgramWhoseOtherWorkGoesOnHasNotBeenIdle) {
  TestTurn turn;
  turn.bring_to(R);
  turn.seen.waited_at = turn.now + kMs;
  turn.seen.waited_after = turn.seen.entries = 9;
  turn.now += 2000 * kMs;
  turn.contend(1, 1, 400 * kMs);
  turn.take(turn.contention());
  turn.take(IdleLook{});
  const Instant asked = turn.now;
  turn.now += 5 * kMs;
  turn.take(WorkEnded{asked});
  turn.take(IdleLook{});
  EXPECT_EQ(turn->phase, R);
}

// Work on another GPU of the process may wait for what that thread is about to submit, and the drain waits for that work.
TEST(TurnIdleness, AThreadThatComesBeforeTheWorkHasEndedKeepsTheGpu) {
  TestTurn turn;
  turn.bring_to(D, ReleaseReason::kEarly);
  EXPECT_FALSE(turn.wish_known) << "so that it says that it comes";
  turn.take(Wished{turn.now, false});
  EXPECT_EQ(turn->phase, R);
  EXPECT_TRUE(turn.gate_open);
  EXPECT_FALSE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  EXPECT_TRUE(turn.sent<protocol::LockReleased>().empty());
  turn.go_idle();
  EXPECT_EQ(turn->phase, D) << "idle again";
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  turn.take(Wished{turn.now, false});
  EXPECT_EQ(turn->phase, D) << "too late: the memory leaves";
}

TEST(TurnIdleness, AThreadThatComesEndsNoDrainThatTheSchedulerAskedFor) {
  TestTurn turn;
  turn.bring_to(D, ReleaseReason::kEarly);
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  turn.take(Wished{turn.now, false});
  EXPECT_EQ(turn->phase, D);
}

// Thirty-two threads that woke with the gate had ten seconds of work in flight before the thread that reads ran again.
TEST(TurnIdleness, WhoWaitsIsPresumedUntilTheSchedulerSaysSo) {
  const auto granted = [](TestTurn& turn) {
    turn.bring_to(L);
    EXPECT_TRUE(turn.watched);
    turn.now += 10'000 * kMs;  // memory comes in
    EXPECT_EQ(next_deadline(turn.state()), kNever);
    turn.wakes = 0;
    turn.take(LoadEnded{});
    EXPECT_TRUE(turn.watched);
    EXPECT_FALSE(turn.watched_closely);
    EXPECT_EQ(turn.idle_watches, 0);
  };
  TestTurn alone;
  granted(alone);
  EXPECT_GT(alone.wakes, 0) << "the link's thread looks in time";
  EXPECT_EQ(next_deadline(alone.state()), alone.now + kPresumed_ns);
  alone.now += kPresumed_ns;
  alone.take(Tick{});
  EXPECT_FALSE(alone.watched);
  EXPECT_EQ(next_deadline(alone.state()), kNever);

  TestTurn with_others;
  granted(with_others);
  with_others.contend(1, 1, 0);
  with_others.take(with_others.contention());
  with_others.now += kPresumed_ns;
  with_others.take(Tick{});
  EXPECT_TRUE(with_others.watched);
  EXPECT_EQ(next_deadline(with_others.state()), kNever);

  TestTurn none_waits;
  granted(none_waits);
  none_waits.take(none_waits.contention());
  EXPECT_FALSE(none_waits.watched);
}

TEST(TurnIdleness, IsLookedForFromTheMomentThatThereIsAReason) {
  TestTurn turn;
  turn.bring_to(R);
  EXPECT_EQ(turn.idle_watches, 0);
  EXPECT_FALSE(turn.take(IdleLook{}).look.wanted);
  turn.contend(1, 0, 0);
  turn.take(turn.contention());
  EXPECT_EQ(turn.idle_watches, 0) << "a waiter that needs none of its memory";
  EXPECT_TRUE(turn.watched);
  EXPECT_EQ(turn.rooms, 0);
  turn.contend(1, 1, 0);
  turn.take(turn.contention());
  EXPECT_EQ(turn.idle_watches, 1);
  EXPECT_EQ(turn.rooms, 1);
  turn.take(turn.contention());
  EXPECT_EQ(turn.idle_watches, 1) << "nothing has changed";
  turn.contend(0, 0, 0);
  turn.take(turn.contention());
  EXPECT_FALSE(turn.watched);
  EXPECT_FALSE(turn.take(IdleLook{}).look.wanted);
}

// Others were heard of while memory came in: looks begin with the turn.
TEST(TurnIdleness, IsLookedForAfterALoadToo) {
  TestTurn turn;
  turn.bring_to(L);
  turn.contend(1, 1, 0);
  turn.take(turn.contention());
  EXPECT_EQ(turn.idle_watches, 0);
  turn.take(LoadEnded{});
  EXPECT_EQ(turn.idle_watches, 1);
}

}  // namespace
}  // namespace nvshare::interposer::turn
