// The client's turn core, event by event: a table of phases and events, then the crossings that docs/adr/0018 names.
#include "interposer/turn/turn.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "interposer/turn/test_turn.h"

namespace nvshare::interposer::turn {
namespace {

using protocol::ReleaseReason;
using testing::kMs;
using testing::TestTurn;

// ---- the table ----

struct Row {
  const char* event;
  decltype(Event::what) what;
  Phase from_out, from_loading, from_running, from_draining, from_paused;
};

constexpr Phase O = Phase::kOut, L = Phase::kLoading, R = Phase::kRunning, D = Phase::kDraining, P = Phase::kPaused;

std::vector<Row> rows() {
  const protocol::Grant now = TestTurn::grant(2);
  return {
      //                                                    out loading running draining paused
      {"a later grant", protocol::LockOk{TestTurn::grant(3), 100, 2}, L, L, R, D, P},
      {"the same grant", protocol::LockOk{now, 100, 2}, O, L, R, D, P},
      {"an earlier grant", protocol::LockOk{TestTurn::grant(1), 100, 2}, O, L, R, D, P},
      {"DropLock", protocol::DropLock{now, 1, 0, {}}, O, L, D, D, D},
      {"DropLock, together", protocol::DropLock{now, 1, 1, {}}, O, L, D, D, D},
      {"DropLock of another grant", protocol::DropLock{TestTurn::grant(1), 1, 0, {}}, O, L, R, D, P},
      {"KeepLock", protocol::KeepLock{now}, O, L, R, D, P},
      {"Disconnected", Disconnected{}, O, L, R, R, R},
      {"Wished", Wished{0, false}, O, L, R, D, R},
      {"the context goes", ContextChanged{false}, O, L, R, D, D},
      {"LoadEnded", LoadEnded{}, O, R, R, D, P},
      {"LoadStopped", LoadStopped{}, O, O, R, D, P},
      {"WorkDrained", WorkDrained{1}, O, L, R, D, P},
      {"WorkDrained of another drain", WorkDrained{77}, O, L, R, D, P},
      {"MemoryLeft, too early", MemoryLeft{}, O, L, R, D, P},
      {"IdleLook", IdleLook{}, O, L, R, D, P},
      {"Tick", Tick{}, O, L, R, D, P},
      {"ProgramEnds", ProgramEnds{}, O, L, R, D, P},
      {"ReportsSent", ReportsSent{}, O, L, R, D, P},
      {"Prefetch", protocol::Prefetch{1, 100}, O, L, R, D, P},
      {"PrefetchEnded of another", PrefetchEnded{77}, O, L, R, D, P},
      {"MemAvailable", protocol::MemAvailable{0, 0, {}, 100, 3}, O, L, R, D, P},
  };
}

TEST(TurnTable, EachEventInEachPhase) {
  for (const Row& row : rows()) {
    const std::pair<Phase, Phase> cases[] = {
        {O, row.from_out}, {L, row.from_loading}, {R, row.from_running}, {D, row.from_draining}, {P, row.from_paused}};
    for (const auto& [from, to] : cases) {
      SCOPED_TRACE(std::string(row.event) + " in phase " + std::to_string(static_cast<int>(from)));
      TestTurn turn;
      turn.bring_to(from);
      ASSERT_EQ(static_cast<int>(turn->phase), static_cast<int>(from));
      turn.take(row.what);
      EXPECT_EQ(static_cast<int>(turn->phase), static_cast<int>(to));
      // The gate follows: it is open exactly while the program may run, as far as it has a context here.
      EXPECT_EQ(turn.gate_open, may_run(turn.state()) || (turn->phase == O && !turn->context));
    }
  }
}

// ---- a turn ----

TEST(Turn, GoesFromAWishToItsRelease) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Wished{turn.now, false});
  EXPECT_EQ(turn.sent<protocol::ReqLock>().size(), 1U);
  turn.take(protocol::LockOk{TestTurn::grant(3), 1000, 1});
  EXPECT_EQ(turn.budget, 1000U);
  EXPECT_EQ(turn.loads, std::vector<uint64_t>{3});
  turn.now += 5 * kMs;
  EXPECT_TRUE(turn.take(LoadEnded{}).agreed);
  EXPECT_TRUE(turn.gate_open);
  turn.seen.first_use = turn.now + 1 * kMs;
  turn.now += 50 * kMs;
  turn.take(protocol::DropLock{TestTurn::grant(3), 4, 0, {}});
  EXPECT_FALSE(turn.gate_open);
  EXPECT_EQ(turn.drains.size(), 1U);
  turn.now += 2 * kMs;
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains[0]}).agreed);
  turn.take(MemoryLeft{});
  const auto released = turn.sent<protocol::LockReleased>();
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].grant.grant, 3U);
  EXPECT_EQ(released[0].used_ns, static_cast<uint64_t>(51 * kMs)) << "from the first use";
  EXPECT_EQ(turn.budget, 0U);
}

TEST(Turn, AsksOnceAndAfterItsNews) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Wished{turn.now, true});
  EXPECT_TRUE(turn.sent<protocol::ReqLock>().empty()) << "the scheduler hears of the memory first";
  EXPECT_EQ(turn.wakes, 1);
  turn.take(ReportsSent{});
  turn.take(ReportsSent{});
  turn.take(Wished{turn.now, false});
  EXPECT_EQ(turn.sent<protocol::ReqLock>().size(), 1U);
}

TEST(Turn, AThreadThatCameDuringTheReleaseAsksAnew) {
  TestTurn turn;
  turn.bring_to(D);
  turn.take(WorkDrained{turn.drains.back()});
  turn.seen.waiting = true;  // it has not said so yet, and needs not
  turn.take(MemoryLeft{});
  EXPECT_TRUE(turn.wish_known);
  turn.take(ReportsSent{});
  EXPECT_EQ(turn.sent<protocol::ReqLock>().size(), 1U);
}

TEST(Turn, WithoutAContextTheGateIsNotClosedForThisGpu) {
  TestTurn turn;
  turn.bring_to(D);
  turn.take(ContextChanged{false});
  turn.take(WorkDrained{turn.drains.back()});
  turn.seen.waiting = true;  // for another GPU
  turn.take(MemoryLeft{});
  EXPECT_TRUE(turn.gate_open);
  turn.take(ReportsSent{});
  EXPECT_TRUE(turn.sent<protocol::ReqLock>().empty());
}

// The program asked, destroyed its context, and makes another while the grant that it no longer needs brings memory in.
TEST(Turn, AContextThatComesDuringALoadFindsTheGateClosed) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Wished{turn.now, false});
  turn.take(ContextChanged{false});
  turn.take(protocol::LockOk{TestTurn::grant(3), 1000, 1});
  EXPECT_TRUE(turn.gate_open);
  turn.take(ContextChanged{true});
  EXPECT_FALSE(turn.gate_open);
  EXPECT_TRUE(turn.take(LoadEnded{}).agreed);
  EXPECT_TRUE(turn.gate_open);
}

// ---- crossings ----

TEST(TurnCrossings, ADropWhileLoadingCancelsTheLoad) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Wished{turn.now, false});
  turn.take(protocol::LockOk{TestTurn::grant(3), 1000, 1});
  turn.take(protocol::DropLock{TestTurn::grant(3), 1, 0, {}});
  EXPECT_FALSE(turn.take(LoadEnded{}).agreed) << "the load had ended as the drop came";
  EXPECT_FALSE(turn.gate_open);
  turn.take(LoadStopped{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
  turn.take(ReportsSent{});
  EXPECT_EQ(turn.sent<protocol::ReqLock>().size(), 2U) << "the wish is older than the drop, and stays";
}

TEST(TurnCrossings, ADropThatAReleaseHasCrossedIsAnsweredByIt) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  EXPECT_TRUE(turn.messages.empty());
  EXPECT_TRUE(turn.drains.empty());
}

TEST(TurnCrossings, ADropDuringAnEarlyReleaseIsAnsweredByIt) {
  TestTurn turn;
  turn.bring_to(D, ReleaseReason::kEarly);
  turn.take(protocol::DropLock{TestTurn::grant(2), 1, 0, {}});
  EXPECT_EQ(turn.drains.size(), 1U) << "one drain";
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains[0]}).agreed);
  turn.take(MemoryLeft{});
  const auto released = turn.sent<protocol::LockReleased>();
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].reason, static_cast<uint8_t>(ReleaseReason::kDropped));
}

TEST(TurnCrossings, ADropTogetherBetweenTheEndOfTheDrainAndTheReleaseIsAnsweredByIt) {
  TestTurn turn;
  turn.bring_to(D);
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains[0]}).agreed);
  turn.take(protocol::DropLock{TestTurn::grant(2), 2, 1, {}});
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn->phase, O);
  EXPECT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
}

TEST(TurnCrossings, TheSchedulersEndGivesAnUnfinishedDrainUp) {
  TestTurn turn;
  turn.bring_to(D);
  const uint64_t drain = turn.drains.back();
  turn.take(Disconnected{});
  EXPECT_EQ(turn->phase, R);
  EXPECT_FALSE(turn.take(WorkDrained{drain}).agreed) << "the swap engine hears of it too late";
  EXPECT_EQ(turn->phase, R);
  turn.take(Connected{9, false});
  turn.take(protocol::LockOk{{9, 1}, 50, 1});
  EXPECT_EQ(turn->phase, R);
  turn.take(protocol::DropLock{{9, 1}, 1, 0, {}});
  EXPECT_FALSE(turn.take(WorkDrained{drain}).agreed) << "of the former drain";
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  turn.take(MemoryLeft{});
  const auto released = turn.sent<protocol::LockReleased>();
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].grant.epoch, 9U);
}

TEST(TurnCrossings, TheSchedulersEndLeavesAFinishedDrainToTheSwapEngine) {
  TestTurn turn;
  turn.bring_to(D);
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  turn.take(Disconnected{});
  EXPECT_EQ(turn->phase, D);
  EXPECT_TRUE(in_between(turn.state())) << "no scheduler is told before it is settled";
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn->phase, O);
  EXPECT_TRUE(turn.messages.empty());
  turn.take(Wished{turn.now, false});
  turn.take(ReportsSent{});
  EXPECT_TRUE(turn.messages.empty());
  turn.take(Connected{9, false});
  turn.take(ReportsSent{});
  EXPECT_EQ(turn.sent<protocol::ReqLock>().size(), 1U);
}

TEST(TurnCrossings, TheSchedulersEndCancelsALoad) {
  TestTurn turn;
  turn.bring_to(L);
  turn.take(Disconnected{});
  EXPECT_FALSE(turn.take(LoadEnded{}).agreed);
  turn.take(LoadStopped{});
  EXPECT_EQ(turn->phase, O);
  EXPECT_FALSE(had_lock(turn.state()));
}

// It waits for a turn, its scheduler is gone, and none listens.
void lose_scheduler(TestTurn& turn) {
  turn.bring_to(O);
  turn.take(Wished{turn.now, false});
  turn.take(Disconnected{});
  turn.now += 20 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{.begins = false, .nobody_listens = true});
}

TEST(TurnAlone, GoesOnIfNothingIsToComeInUntilTheNextScheduler) {
  TestTurn turn;
  lose_scheduler(turn);
  EXPECT_TRUE(turn.take(GoesOnAlone{70}).agreed);
  EXPECT_EQ(turn->phase, R);
  EXPECT_TRUE(turn.gate_open);
  EXPECT_EQ(turn.budget, 70U);
  EXPECT_TRUE(had_lock(turn.state())) << "the next scheduler is to count it";
  turn.take(Registering{true});
  turn.take(Connected{9, false, true});
  turn.take(protocol::LockOk{{9, 1}, 90, 1});
  EXPECT_EQ(turn->phase, R);
  turn.take(protocol::DropLock{{9, 1}, 1, 0, {}});
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn->phase, O);
}

TEST(TurnAlone, WaitsIf) {
  const auto waits = [](const char* why, auto&& prepare) {
    TestTurn turn;
    prepare(turn);
    EXPECT_FALSE(turn.take(GoesOnAlone{70}).agreed) << why;
    EXPECT_EQ(turn->phase, O) << why;
    EXPECT_FALSE(turn.gate_open) << why;
  };
  waits("held", [](TestTurn& turn) {
    turn.hold();
    lose_scheduler(turn);
  });
  waits("the scheduler did not tell whether it was", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn->tells_if_held = false;
  });
  waits("it has not looked for a scheduler", [](TestTurn& turn) {
    turn.bring_to(O);
    turn.take(Wished{turn.now, false});
    turn.take(Disconnected{});
  });
  waits("one refuses it", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn.take(Registering{true});
    turn.take(Registering{false});
  });
  waits("the last one refused it, and is gone, too", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn.take(Registering{true});
    turn.take(Registering{.begins = false, .refused = true});
    turn.now += 20 * kMs;
    turn.take(Registering{true});
    turn.take(Registering{.begins = false, .nobody_listens = true});
  });
  waits("one breaks off", [](TestTurn& turn) {
    lose_scheduler(turn);
    for (int i = 0; i < 10; ++i) {
      turn.now += kMs;
      turn.take(Registering{true});
      turn.take(Registering{false, true});
    }
  });
  waits("it is about to be counted", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn.take(Registering{true});
  });
  waits("it was stopped since", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn.now += 5000 * kMs;
  });
  waits("no thread wants the GPU", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn->wish.wanted = false;
  });
  waits("memory still comes in", [](TestTurn& turn) {
    lose_scheduler(turn);
    turn->prefetch = 1;
  });
}

TEST(TurnAlone, TheNextSchedulerSaysAnewWhetherItIsHeld) {
  TestTurn turn;
  turn.hold();
  lose_scheduler(turn);
  turn.take(Registering{true});
  turn.take(Connected{9, true, true});
  turn.take(protocol::Contention{});
  turn.take(Disconnected{});
  turn.now += 20 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{.begins = false, .nobody_listens = true});
  EXPECT_TRUE(turn.take(GoesOnAlone{70}).agreed);
}

// Killed between the registration and its word that the client is held, which it need not be.
TEST(TurnAlone, WaitsWhereTheSchedulerWasGoneBeforeItSaidWhetherItIsHeld) {
  TestTurn turn;
  lose_scheduler(turn);
  turn.take(Registering{true});
  turn.take(Connected{9, true, true});
  turn.take(Disconnected{});
  turn.now += 20 * kMs;
  turn.take(Registering{true});
  turn.take(Registering{.begins = false, .nobody_listens = true});
  EXPECT_FALSE(turn.take(GoesOnAlone{70}).agreed);
  EXPECT_FALSE(turn.gate_open);
}

TEST(TurnCrossings, AGrantOfTheFormerSchedulerBeginsNoTurn) {
  TestTurn turn;
  turn.bring_to(O);
  turn.take(Disconnected{});
  turn.take(Connected{9, true});
  turn.take(protocol::LockOk{TestTurn::grant(5), 10, 1});
  EXPECT_EQ(turn->phase, O);
  turn.take(protocol::LockOk{{9, 1}, 10, 1});
  EXPECT_EQ(turn->phase, L);
}

// ---- together ----

TEST(TurnGangs, DrainsThenWaitsForTheWordThenLeaves) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 1, {}});
  EXPECT_TRUE(drains_together(turn.state(), turn.drains.back()));
  EXPECT_FALSE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  ASSERT_EQ(turn.sent<protocol::Drained>().size(), 1U);
  EXPECT_EQ(turn.sent<protocol::Drained>()[0].attempt, 5U);
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn->phase, D) << "not before the others have drained";
  turn.take(protocol::DropLock{TestTurn::grant(2), 6, 0, {}});
  EXPECT_EQ(turn.drains.size(), 2U);
  EXPECT_TRUE(turn.take(WorkDrained{turn.drains.back()}).agreed);
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
}

TEST(TurnGangs, KeepLockEndsTheWait) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 1, {}});
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(protocol::KeepLock{TestTurn::grant(2)});
  EXPECT_EQ(turn->phase, R);
  EXPECT_TRUE(turn.gate_open);
}

TEST(TurnGangs, WithoutASchedulerADrainedOneGoesOn) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 1, {}});
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(Disconnected{});
  EXPECT_EQ(turn->phase, R);
}

TEST(TurnGangs, AProcessOnSeveralGpusOpensItsGateByTheClock) {
  TestTurn turn;
  turn.bring_to(R);
  turn.now = 1'000'000 * kMs;  // a multiple of 32 ms
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 1, {}});
  turn.seen.other_gpus = turn.seen.waiting = true;
  turn.now += 5 * kMs;
  turn.take(Tick{});
  EXPECT_EQ(next_deadline(turn.state()), 1'000'032 * kMs);
  turn.now = 1'000'032 * kMs;
  turn.take(Tick{});
  EXPECT_TRUE(turn.gate_open);
  EXPECT_EQ(next_deadline(turn.state()), 1'000'036 * kMs);
  turn.now = 1'000'036 * kMs;
  turn.take(Tick{});
  EXPECT_FALSE(turn.gate_open);
  EXPECT_EQ(turn->drain.started, 1'000'000 * kMs) << "its patience runs from the drop";
  EXPECT_TRUE(turn.sent<protocol::LockReleased>().empty());
  // The scheduler's word while it is open for a moment: it stays open.
  turn.limited(0);
  turn.take(turn.contention());
  turn.now = 1'000'064 * kMs;
  turn.take(Tick{});
  ASSERT_TRUE(turn.gate_open);
  EXPECT_FALSE(turn.take(IdleLook{}).look.wanted) << "the lock is on its way out in any case";
  const int watches = turn.idle_watches;
  turn.take(protocol::KeepLock{TestTurn::grant(2)});
  EXPECT_EQ(turn.idle_watches, watches + 1);
  EXPECT_TRUE(turn.take(IdleLook{}).look.wanted);
  turn.now = 1'000'070 * kMs;
  turn.take(Tick{});
  EXPECT_TRUE(turn.gate_open);
}

TEST(TurnGangs, ThreadsThatWaitToAllocateLookAgainWhenTheOthersHaveLeft) {
  TestTurn turn;
  turn.bring_to(O);
  protocol::Contention message{};
  message.gang_runs = 1;
  turn.take(message);
  EXPECT_TRUE(turn->gang_runs);
  EXPECT_EQ(turn.gate_wakes, 0);
  turn.take(Disconnected{});
  EXPECT_FALSE(turn->gang_runs);
  EXPECT_EQ(turn.gate_wakes, 1);
}

// ---- drains that do not end ----

// ---- the end of the work, told ahead ----

protocol::DropLock drop_that_asks(uint64_t grant, uint8_t together = 0) { return {TestTurn::grant(grant), 1, together, {}, 1, {}}; }

TEST(TurnEnds, IsToldOnceAndTheLockGoesWhenTheWorkHasEnded) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(drop_that_asks(2));
  EXPECT_TRUE(may_tell_end(turn.state()));
  turn.take(WorkEndsSoon{turn.now + kHandOver_ns});
  ASSERT_EQ(turn.sent<protocol::EndsSoon>().size(), 1U);
  EXPECT_EQ(turn.sent<protocol::EndsSoon>()[0].attempt, 1U);
  EXPECT_EQ(turn.sent<protocol::EndsSoon>()[0].grant.grant, 2U);
  turn.take(WorkEndsSoon{turn.now + kHandOver_ns});
  EXPECT_EQ(turn.sent<protocol::EndsSoon>().size(), 1U);
  EXPECT_EQ(turn->phase, D);
  EXPECT_TRUE(turn.sent<protocol::LockReleased>().empty());
  turn.now += kHandOver_ns;
  turn.take(WorkDrained{turn.drains.back()});
  turn.take(MemoryLeft{});
  EXPECT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
}

TEST(TurnEnds, IsNotToldOf) {
  const auto told = [](TestTurn& turn) {
    turn.take(WorkEndsSoon{turn.now + kHandOver_ns});
    return !turn.sent<protocol::EndsSoon>().empty();
  };
  for (const Phase phase : {O, L, R, P}) {
    TestTurn turn;
    turn.bring_to(phase);
    EXPECT_FALSE(told(turn)) << static_cast<int>(phase);
  }
  TestTurn by_choice;
  by_choice.bring_to(D, ReleaseReason::kEarly);
  EXPECT_FALSE(told(by_choice));
  TestTurn unasked;
  unasked.bring_to(D);
  EXPECT_FALSE(told(unasked));
  TestTurn together;
  together.bring_to(R);
  together.take(drop_that_asks(2, 1));
  EXPECT_FALSE(told(together));
  TestTurn several;
  several.bring_to(R);
  several.take(drop_that_asks(2));
  several.seen.other_gpus = true;
  EXPECT_FALSE(told(several));
  TestTurn done;
  done.bring_to(R);
  done.take(drop_that_asks(2));
  done.take(WorkDrained{done.drains.back()});
  EXPECT_FALSE(told(done));
}

// Where the work lasted longer than was told, as that of a thread that nobody asked, others ran beside it.
TEST(TurnEnds, IsNotToldForAWhileAfterItWasWrong) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(drop_that_asks(2));
  turn.take(WorkEndsSoon{turn.now + kHandOver_ns});
  turn.now += kHandOver_ns + 3 * kMs;
  int untold = 0;
  for (uint64_t grant = 3; grant < 30; ++grant) {
    turn.take(WorkDrained{turn.drains.back()});
    turn.take(MemoryLeft{});
    turn.take(Wished{turn.now, false});
    turn.take(protocol::LockOk{TestTurn::grant(grant), 1000, grant});
    turn.take(LoadEnded{});
    turn.take(drop_that_asks(grant));
    if (may_tell_end(turn.state())) break;
    ++untold;
  }
  EXPECT_EQ(untold, 15);
}

TEST(TurnPatience, ADrainThatHoldsAThreadUpIsGivenUpAndTheSchedulerIsTold) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 0, {}});
  EXPECT_EQ(next_deadline(turn.state()), turn.now + 200 * kMs);
  turn.seen.waiting = true;
  turn.now += 200 * kMs;
  turn.take(Tick{});
  EXPECT_TRUE(turn.gate_open);
  ASSERT_EQ(turn.sent<protocol::LockReleased>().size(), 1U);
  EXPECT_EQ(turn.sent<protocol::LockReleased>()[0].reason, static_cast<uint8_t>(ReleaseReason::kNotDrained));
  EXPECT_FALSE(turn.take(WorkDrained{turn.drains.back()}).agreed);
}

TEST(TurnPatience, ADrainThatHoldsNobodyUpHasTwoSeconds) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 0, {}});
  const Instant began = turn.now;
  while (!turn.gate_open) {
    turn.now = next_deadline(turn.state());
    turn.take(Tick{});
  }
  EXPECT_EQ(turn.now - began, 2000 * kMs);
}

TEST(TurnPatience, AThreadThatWaitsForMemoryIsHeldUpLikeOneAtTheGate) {
  TestTurn turn;
  turn.bring_to(R);
  turn.take(GrowthWanted{100});
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 0, {}});
  turn.now += 200 * kMs;
  turn.take(Tick{});
  EXPECT_TRUE(turn.gate_open);
}

TEST(TurnPatience, UnderALimitOneSecond) {
  TestTurn turn;
  turn.limited(0);
  turn.bring_to(R);
  turn.take(protocol::DropLock{TestTurn::grant(2), 5, 0, {}});
  EXPECT_EQ(next_deadline(turn.state()), turn.now + 1000 * kMs);
}

TEST(TurnPatience, AFinishedDrainIsNotGivenUp) {
  TestTurn turn;
  turn.bring_to(D);
  turn.take(WorkDrained{turn.drains.back()});
  turn.seen.waiting = true;
  turn.now += 10'000 * kMs;
  turn.take(Tick{});
  EXPECT_EQ(turn->phase, D);
  EXPECT_EQ(next_deadline(turn.state()), turn.now + 10 * kMs);
}

}  // namespace
}  // namespace nvshare::interposer::turn
