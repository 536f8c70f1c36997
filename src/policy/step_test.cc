// Single steps: what one event does, looked at directly.
#include <limits>

#include "policy/state.h"
#include "policy/testing/test_step.h"

namespace nvshare::policy {
namespace {

TEST_F(Step, SafeLimitIsWhatTheMissionSays) {
  join(1, 0);
  join(2, 0);
  EXPECT_EQ(gpu().safe_limit, 16 * kGiB - 500 * kMiB - 2 * 300 * kMiB);
  feed(ClientOverhead{1, 525 * kMiB});
  feed(ForeignMemory{0, kGiB});
  EXPECT_EQ(gpu().safe_limit, 15 * kGiB - 500 * kMiB - 825 * kMiB);
  feed(ClientLeft{2, true});
  EXPECT_EQ(gpu().safe_limit, 15 * kGiB - 500 * kMiB - 525 * kMiB);
}

// Its program allocated between its request and the grant; what it then has to load does not fit beside a holder whose turn began later.
// Nobody waits, so nothing else would ever end its loading.
TEST_F(Step, WhoCannotLoadBesideAHolderComesToATurn) {
  config.memory_reserve_percent = 0;
  feed(ConfigChanged{config});
  join(1, kGiB, true);
  load(1, kGiB);
  now += kSec;
  join(2, 8 * kGiB, true);
  load(2, 8 * kGiB);
  now += kSec;
  ASSERT_EQ(view_of(1).state, ClientState::kRunning);
  const Bytes budget = view_of(1).budget;
  const Actions actions = feed(MemoryChanged{1, {10 * kGiB, kGiB, 0}, budget, 0, 0, 0});
  ASSERT_TRUE(find<SendDrop>(actions, 1) || find<SendDrop>(actions, 2));
  EXPECT_FALSE(find<SendDrop>(actions, 2)) << "its turn began later";
  feed(LockReleased{1, grants[1], {10 * kGiB, kGiB, 0}, false});
  feed(LockRequested{1});
  EXPECT_EQ(view_of(1).state, ClientState::kWaiting);
  ASSERT_TRUE(next_deadline(*state));
}

// A step that is about nothing else ends early (step.cc, MemoryNews), unless something follows from it.
struct NewsOfWaiters : Step {
  NewsOfWaiters() {
    join(1, 12 * kGiB, true);
    load(1, 12 * kGiB);
    for (const ClientId id : {2, 3}) join(id, 12 * kGiB, true);
    deadline = next_deadline(*state);
  }
  Actions needs(ClientId client, Bytes bytes) { return feed(MemoryChanged{client, {bytes, 0, 0}, 0, 0, 0, 0}); }

  std::optional<Instant> deadline;
};

TEST_F(NewsOfWaiters, WhoStillWaitsBehindOthersIsTheOnlyOneConcerned) {
  ASSERT_TRUE(deadline);
  now += kSec;
  EXPECT_TRUE(needs(3, 11 * kGiB).empty());
  EXPECT_EQ(view_of(3).memory.allocated, 11 * kGiB);
  EXPECT_EQ(next_deadline(*state), deadline);
}

TEST_F(NewsOfWaiters, WhoFitsByNowIsAdmitted) {
  now += kSec;
  EXPECT_TRUE(find<SendLock>(needs(3, kGiB), 3));
}

TEST_F(NewsOfWaiters, WhoseTurnItIsNextMayWaitForLessNow) {
  now += kSec;
  EXPECT_TRUE(find<SendLock>(needs(2, kGiB), 2));
}

TEST_F(NewsOfWaiters, WhatIsDueByThenIsDone) {
  now = *deadline;
  EXPECT_TRUE(find<SendDrop>(needs(3, 11 * kGiB), 1));
}

// The same where all clients share as measured.
struct NewsOfMeasured : Step {
  void join_measured(ClientId client, Bytes allocated) {
    join(client, allocated);
    feed(ClientShares{client, 0, true});
    feed(LockRequested{client});
    if (grants.contains(client)) load(client, allocated);
  }
  // Says something of its memory each 10 ms for two seconds, with ticks between. Returns how many of 200 steps ended early.
  uint64_t tell(ClientId client, Bytes bytes) {
    const uint64_t before = state->early_ends.count;
    for (int i = 0; i < 200; ++i) {
      now += 10'000'000;
      if (const auto deadline = next_deadline(*state); deadline && *deadline <= now) feed(Tick{});
      feed(MemoryChanged{client, {bytes + i % 2, 0, 0}, 0, 0, 0, 0});
    }
    return state->early_ends.count - before;
  }
};

TEST_F(NewsOfMeasured, EndsEarlyWhereThereAreTooManyToMeasure) {
  for (ClientId id = 1; id <= 20; ++id) join_measured(id, 9 * kGiB);
  now += kSec;
  EXPECT_GT(tell(20, 9 * kGiB), 180) << "all but those at which something is due";
}

TEST_F(NewsOfMeasured, EndsEarlyButForMomentsInWhichBurstsArePutApart) {
  for (const ClientId id : {1, 2, 3}) join_measured(id, 12 * kGiB);
  now += kSec;
  const uint64_t early = tell(3, 12 * kGiB);
  EXPECT_GT(early, 100);
  EXPECT_LT(early, 200);
}

TEST_F(NewsOfMeasured, EndsNoStepOfATrial) {
  for (const ClientId id : {1, 2}) join_measured(id, kGiB);
  join(3, 12 * kGiB);
  feed(ClientShares{3, 0, true});
  while (state->gpus.at(0).share_trial.phase == ShareTrial::Phase::kNone) {
    ASSERT_LT(now, 110 * kSec);
    now += kSec / 100;
    feed(Tick{});
  }
  const uint64_t before = state->early_ends.count;
  feed(MemoryChanged{3, {11 * kGiB, 0, 0}, 0, 0, 0, 0});
  EXPECT_EQ(state->early_ends.count, before);
}

TEST_F(Step, ReservePercentReplacesTheComputedReserve) {
  config.memory_reserve_percent = 10;
  feed(ConfigChanged{config});
  join(1, 0);
  feed(ForeignMemory{0, kGiB});
  EXPECT_EQ(gpu().safe_limit, 16 * kGiB / 100 * 90 - kGiB);
}

TEST_F(Step, AClientAloneIsGrantedAtOnceWithSlack) {
  const auto ceiling = find<SendCeiling>(join(1, 12 * kGiB), 1);
  ASSERT_TRUE(ceiling);
  EXPECT_EQ(ceiling->ceiling, gpu().safe_limit);
  const auto lock = find<SendLock>(feed(LockRequested{1}), 1);
  ASSERT_TRUE(lock);
  EXPECT_EQ(lock->budget, 12 * kGiB + 256 * kMiB);
  EXPECT_EQ(view_of(1).state, ClientState::kLoading);
  feed(SwapProgressed{1, false, true, false, lock->grant, 12 * kGiB, kSec, {12 * kGiB, 12 * kGiB, 0}});
  EXPECT_EQ(view_of(1).state, ClientState::kRunning);
  EXPECT_FALSE(next_deadline(*state));
}

// One that comes or goes changes what all others may have. They hear of it a few at a time, but whoever says something at once.
TEST_F(Step, ManyClientsHearOfANewCeilingOneAfterTheOther) {
  constexpr ClientId kMany = 300;
  feed(GpuAppeared{0, 1024 * kGiB});
  std::map<ClientId, Bytes> told;
  size_t most = 0;
  const auto count = [&](const Actions& actions) {
    size_t here = 0;
    for (const Action& action : actions) {
      const auto* ceiling = std::get_if<SendCeiling>(&action);
      if (ceiling == nullptr) continue;
      told[ceiling->client] = ceiling->ceiling;
      ++here;
    }
    most = std::max(most, here);
  };
  for (ClientId id = 1; id <= kMany; ++id) count(join(id, kMiB));
  EXPECT_EQ(told.size(), kMany) << "a newcomer hears of its own at once";
  for (ClientId id = 1; id < 20; ++id) count(feed(ClientLeft{id, true}));
  const auto is_told = [&](ClientId id) {  // up to what is not worth a message
    EXPECT_GT(told[id] - gpu().safe_limit, -64 * kMiB) << id;
    EXPECT_LT(told[id] - gpu().safe_limit, told[id] / 64) << id;
  };
  count(feed(MemoryChanged{200, {2 * kMiB, 0, 0}, 0, 0, 0, 0}));
  is_told(200);
  const Instant since = now;
  for (auto next = next_deadline(*state); next; next = next_deadline(*state)) {
    ASSERT_LE(*next, since + 2 * kSec);
    now = *next;
    count(feed(Tick{}));
  }
  for (ClientId id = 20; id <= kMany; ++id) is_told(id);
  EXPECT_LE(most, 65u);
}

// Where many come and go all the time, each that does would else be a message to all others.
TEST_F(Step, ManyClientsDoNotHearOfEachThatComesAndGoes) {
  constexpr ClientId kMany = 300;
  feed(GpuAppeared{0, 1024 * kGiB});
  const auto told_by = [&](Actions actions) {
    size_t told = 0;
    for (;;) {
      for (const Action& action : actions) told += std::holds_alternative<SendCeiling>(action);
      const auto next = next_deadline(*state);
      if (!next) return told;
      now = *next;
      actions = feed(Tick{});
    }
  };
  for (ClientId id = 1; id <= kMany; ++id) join(id, kMiB);
  EXPECT_GT(told_by(feed(ClientLeft{1, true})), 0U) << "the latest that came hears that it may have more";
  told_by(join(kMany + 1, kMiB));  // some know a ceiling that is nearly too high by now
  told_by(feed(ClientLeft{kMany + 1, true}));
  for (ClientId id = kMany + 2; id <= kMany + 10; ++id) {
    EXPECT_EQ(told_by(join(id, kMiB)), 1U) << "its own, " << id;
    EXPECT_EQ(told_by(feed(ClientLeft{id, true})), 0U) << id;
  }
  EXPECT_EQ(told_by(feed(ForeignMemory{0, 512 * kGiB})), kMany - 1) << "it fell by half";
}

// How many they are changes nothing for it.
TEST_F(Step, AHolderHearsOfTheFirstThatWaitsForMemoryAndOfTheLast) {
  join(1, 12 * kGiB, true);
  load(1, 12 * kGiB);
  for (ClientId id = 2; id <= 5; ++id) {
    join(id, 12 * kGiB);
    const auto told = find<SendContention>(feed(LockRequested{id}), 1);
    EXPECT_EQ(told.has_value(), id == 2) << id;
  }
  for (ClientId id = 5; id >= 2; --id) {
    const auto told = find<SendContention>(feed(ClientLeft{id, true}), 1);
    ASSERT_EQ(told.has_value(), id == 2) << id;
    if (told) {
      EXPECT_EQ(told->memory_waiters, 0U);
    }
  }
}

// Memory is resident once it is mapped; the copies may take longer than a short turn, and the turn must not be over before they are done.
TEST_F(Step, ATurnBeginsWhenTheLoadIsFinishedNotWhenAllIsMapped) {
  const auto lock = find<SendLock>(join(1, 12 * kGiB, true), 1);
  ASSERT_TRUE(lock);
  feed(SwapProgressed{1, false, false, false, lock->grant, 8 * kGiB, kSec, {12 * kGiB, 12 * kGiB, 0}});
  EXPECT_EQ(view_of(1).state, ClientState::kLoading);
  feed(MemoryChanged{1, {12 * kGiB, 12 * kGiB, 0}, lock->budget, lock->budget_sequence, 0, 0});
  EXPECT_EQ(view_of(1).state, ClientState::kLoading);
  feed(SwapProgressed{1, false, true, false, lock->grant, 12 * kGiB, kSec, {12 * kGiB, 12 * kGiB, 0}});
  EXPECT_EQ(view_of(1).state, ClientState::kRunning);
}

TEST_F(Step, ATenantThatWaitsIsToldWhoHasTheGpuUntilWhen) {
  join(1, 12 * kGiB, true);
  load(1, 12 * kGiB);
  EXPECT_FALSE(turn_wait_of(*state, 1)) << "it has the GPU";
  EXPECT_FALSE(turn_wait_of(*state, 2)) << "nobody knows it";
  join(2, 12 * kGiB);
  EXPECT_FALSE(turn_wait_of(*state, 2)) << "it wants nothing";
  now += kSec;
  feed(LockRequested{2});
  const auto wait = turn_wait_of(*state, 2);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->client, 2U);
  EXPECT_EQ(wait->since, now);
  EXPECT_EQ(wait->holders, 1U);
  EXPECT_EQ(wait->holder, 1U);
  EXPECT_EQ(wait->state, ClientState::kRunning);
  EXPECT_EQ(wait->held_since, now - kSec);
  EXPECT_EQ(wait->ends, next_deadline(*state)) << "the switch that is planned";
  feed(ClientJoined{3, 0, 2, 0, {kGiB, 0, 0}, true, false, true});
  EXPECT_FALSE(turn_wait_of(*state, 2)) << "another of its clients has a turn";
}

TEST_F(Step, AWaiterHasADeadlineAndABoundAndTheHolderHearsOfIt) {
  join(1, 12 * kGiB, true);
  load(1, 12 * kGiB);
  join(2, 12 * kGiB);
  const auto contention = find<SendContention>(feed(LockRequested{2}), 1);
  ASSERT_TRUE(contention);
  EXPECT_EQ(contention->waiters, 1U);
  EXPECT_EQ(contention->memory_waiters, 1U);
  EXPECT_GT(contention->swap_cost, kSec);
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting);
  EXPECT_FALSE(view_of(2).waiting_for.empty());
  const auto bound = waiting_bound(*state, 2);
  const auto deadline = next_deadline(*state);
  ASSERT_TRUE(bound && deadline);
  EXPECT_LE(*deadline, now + *bound);
  EXPECT_FALSE(waiting_bound(*state, 1));
  EXPECT_FALSE(waiting_bound(*state, 77));

  now = *deadline;
  const Actions due = feed(Tick{});
  ASSERT_TRUE(find<SendDrop>(due, 1));
  EXPECT_EQ(view_of(1).state, ClientState::kDropping);
}

TEST_F(Step, ANewTurnStartsWhileTheLastOneMovesOutAndItsBudgetFollows) {
  const auto first = find<SendLock>(join(1, 12 * kGiB, true), 1);
  load(1, 12 * kGiB);
  join(2, 12 * kGiB, true);
  const Actions released = feed(LockReleased{1, first->grant, {12 * kGiB, 12 * kGiB, 0}, true});
  const auto lock = find<SendLock>(released, 2);
  const auto evict = find<SendEvict>(released, 1);
  ASSERT_TRUE(lock && evict);
  const Bytes limit = gpu().safe_limit;
  EXPECT_EQ(lock->budget, limit - 12 * kGiB);
  EXPECT_EQ(evict->bytes, 24 * kGiB - limit);
  const auto raised =
      find<SendLock>(feed(SwapProgressed{1, true, false, false, evict->eviction, kGiB, kSec, {12 * kGiB, 11 * kGiB, 0}}), 2);
  ASSERT_TRUE(raised);
  EXPECT_EQ(raised->grant, lock->grant);
  EXPECT_EQ(raised->budget, limit - 11 * kGiB);
  EXPECT_GT(raised->budget_sequence, lock->budget_sequence);
}

// While a third one moves out, which may take seconds where host memory has to be made for it, the first GiB goes to whom it suffices.
TEST_F(Step, WhoLacksLittleDoesNotWaitForALargeLoad) {
  config.memory_reserve_percent = 0;
  feed(ConfigChanged{config});
  join(1, 14 * kGiB, false, 14 * kGiB);
  const Actions begin = join(2, 10 * kGiB, true);
  const auto evict = find<SendEvict>(begin, 1);
  ASSERT_TRUE(evict);
  join(3, kGiB, true);
  ASSERT_EQ(view_of(2).state, ClientState::kLoading);
  ASSERT_EQ(view_of(3).state, ClientState::kLoading);
  ASSERT_LT(view_of(3).budget, kGiB);
  now += kSec;
  feed(SwapProgressed{1, true, false, false, evict->eviction, kGiB, kSec, {14 * kGiB, 13 * kGiB, 0}});
  EXPECT_EQ(view_of(3).budget, kGiB);
  EXPECT_LT(view_of(2).budget, 10 * kGiB);
}

TEST_F(Step, ADeadHoldersLockIsFreeInTheSameStep) {
  join(1, 12 * kGiB, true);
  load(1, 12 * kGiB);
  join(2, 2 * kGiB);
  join(3, 12 * kGiB, true);
  EXPECT_EQ(view_of(3).state, ClientState::kWaiting);
  const Actions actions = feed(ClientLeft{1, true});
  EXPECT_TRUE(find<SendLock>(actions, 3));
  EXPECT_EQ(gpu().departed, 0);
}

TEST_F(Step, DeadMemoryCountsUntilItIsReportedFreeOrItsGraceIsOver) {
  for (const bool reported : {true, false}) {
    const ClientId dead = reported ? 1 : 3, next = dead + 1;
    join(dead, 12 * kGiB, true);
    load(dead, 12 * kGiB);
    join(next, 12 * kGiB, true);
    EXPECT_FALSE(find<SendLock>(feed(ClientLeft{dead, false}), next));
    EXPECT_GE(gpu().departed, 12 * kGiB);
    EXPECT_TRUE(waiting_bound(*state, next));
    if (!reported) now = next_deadline(*state).value_or(0);
    const Actions freed = reported ? feed(ClientMemoryFreed{dead}) : feed(Tick{});
    EXPECT_TRUE(find<SendLock>(freed, next)) << reported;
    EXPECT_EQ(gpu().departed, 0);
    feed(ClientLeft{next, true});
  }
}

TEST_F(Step, MemoryHeldByAnEarlierSchedulersClientCountsUntilItIsFreeOrBack) {
  join(1, 12 * kGiB, false);
  feed(MemoryHeld{7, 0, 10 * kGiB});
  feed(MemoryHeld{7, 0, 8 * kGiB});
  feed(MemoryHeld{8, 55, 8 * kGiB});  // a GPU that nobody knows
  feed(MemoryHeld{1, 0, 8 * kGiB});   // it is there
  EXPECT_EQ(gpu().departed, 8 * kGiB + Config().overhead_default) << "the last figure, and its context";
  EXPECT_FALSE(find<SendLock>(feed(LockRequested{1}), 1));
  EXPECT_TRUE(find<SendLock>(feed(ClientMemoryFreed{7}), 1));
  EXPECT_EQ(gpu().departed, 0);

  feed(MemoryHeld{7, 0, kGiB});
  ClientJoined back{7, 0, 7, 0, {kGiB, kGiB, 0}, true, false, false};
  back.replaces = {7};
  feed(back);
  EXPECT_EQ(gpu().departed, 0);
}

TEST_F(Step, StaleGrantsAreIgnored) {
  const auto lock = find<SendLock>(join(1, kGiB, true), 1);
  load(1, kGiB);
  feed(LockReleased{1, lock->grant + 5, {kGiB, kGiB, 0}, false});
  feed(DrainFailed{1, lock->grant + 5});
  EXPECT_EQ(view_of(1).state, ClientState::kRunning);
  EXPECT_EQ(view_of(1).failed_drains, 0U);
  feed(LockReleased{1, lock->grant, {kGiB, kGiB, 0}, true});
  EXPECT_EQ(view_of(1).state, ClientState::kIdle);
  feed(LockReleased{99, 1, {}, true});  // of a client that left
}

TEST_F(Step, AClientThatComesBackWithTheLockKeepsItUnderANewGrant) {
  const auto lock = find<SendLock>(feed(ClientJoined{1, 0, 1, 0, {4 * kGiB, 4 * kGiB, 0}, true, true, false}), 1);
  ASSERT_TRUE(lock);
  EXPECT_GE(lock->budget, 4 * kGiB);
  EXPECT_EQ(view_of(1).state, ClientState::kRunning);
  feed(LockReleased{1, lock->grant, {4 * kGiB, 4 * kGiB, 0}, true});
  EXPECT_EQ(view_of(1).state, ClientState::kIdle);
}

TEST_F(Step, ABudgetIsLoweredOnlyByWhoHasSeenTheLastOne) {
  const auto lock = find<SendLock>(join(1, 2 * kGiB, true), 1);
  load(1, 2 * kGiB);
  const Bytes budget = view_of(1).budget;
  EXPECT_EQ(budget, lock->budget);
  feed(MemoryChanged{1, {kGiB, kGiB, 0}, kGiB, lock->budget_sequence - 1, 0, 0});
  EXPECT_EQ(view_of(1).budget, budget);
  feed(MemoryChanged{1, {kGiB, kGiB, 0}, kGiB, lock->budget_sequence, 0, 0});
  EXPECT_EQ(view_of(1).budget, kGiB);
}

TEST_F(Step, GrowthThatFitsIsGrantedInTheSameStepAndGrowthThatNeverFitsRefused) {
  const auto lock = find<SendLock>(join(1, 0, true), 1);
  const auto granted = find<SendMemory>(feed(MemoryChanged{1, {0, 0, 0}, lock->budget, lock->budget_sequence, 10 * kGiB, 7}), 1);
  ASSERT_TRUE(granted);
  EXPECT_TRUE(granted->granted);
  EXPECT_EQ(granted->request, 7U);
  EXPECT_GE(granted->budget, 10 * kGiB);
  load(1, 10 * kGiB);
  const Actions actions = feed(MemoryChanged{1, {10 * kGiB, 10 * kGiB, 0}, granted->budget, granted->budget_sequence, 6 * kGiB, 8});
  const auto refused = find<SendMemory>(actions, 1);
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->granted);
  EXPECT_TRUE(find<Note>(actions, 1));
  EXPECT_EQ(view_of(1).state, ClientState::kRunning);
}

TEST_F(Step, MemoryOfABackendThatCannotSwapIsNeverAskedFor) {
  feed(ClientJoined{1, 0, 1, 0, {8 * kGiB, 8 * kGiB, 0}, false, false, false});
  join(2, 12 * kGiB);
  const Actions actions = feed(LockRequested{2});
  EXPECT_FALSE(find<SendEvict>(actions, 1));
  EXPECT_FALSE(find<SendLock>(actions, 2));
  EXPECT_NE(view_of(2).waiting_for.find("this GPU does not have"), std::string::npos);
  EXPECT_FALSE(waiting_bound(*state, 2));
  feed(ClientLeft{1, true});
  EXPECT_EQ(view_of(2).state, ClientState::kLoading);
}

TEST_F(Step, AVirtualAllocationOfAWaiterCountsBeforeItsTurn) {
  join(1, 8 * kGiB, true);
  load(1, 8 * kGiB);
  join(2, 12 * kGiB, true);
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting);
  feed(MemoryChanged{2, {4 * kGiB, 0, 0}, 0, 0, 0, 0});  // freed without having run
  EXPECT_EQ(view_of(2).state, ClientState::kLoading);
}

// A gang's member gives its drain up, and is asked again before that is known: its new drain is nobody's, so it is told to go on.
TEST_F(Step, WhoGivesADrainUpIsToldToGoOn) {
  feed(GpuAppeared{1, 16 * kGiB});
  for (const ClientId client : {1, 2}) {
    feed(ClientJoined{client, static_cast<GpuId>(client - 1), 7, 0, {12 * kGiB, 0, 0}, true, false, true});
  }
  for (const ClientId client : {1, 2}) load(client, 12 * kGiB);
  now += 400 * kSec;
  const Actions asked = join(3, 12 * kGiB, true);
  ASSERT_TRUE(find<SendDrop>(asked, 1) && find<SendDrop>(asked, 1)->together);
  ASSERT_TRUE(find<SendDrop>(asked, 2));
  const Actions told = feed(DrainFailed{1, grants[1]});
  EXPECT_TRUE(find<SendKeep>(told, 1));
  EXPECT_TRUE(find<SendKeep>(told, 2));
}

// Two processes of one tenant that do not fit together, each on both GPUs: each would else have one GPU, and wait for the other's.
TEST_F(Step, ProcessesOfATenantThatDoesNotFitTogetherHaveTheirGpusTogether) {
  feed(GpuAppeared{1, 16 * kGiB});
  const auto come = [&](ClientId client, GpuId gpu_id, ProcessId process) {
    ClientJoined joined{client, gpu_id, 7, 0, {10 * kGiB, 0, 0}, true, false, false};
    joined.process = process;
    feed(joined);
  };
  for (const GpuId gpu_id : {0U, 1U}) {
    come(10 + gpu_id, gpu_id, 1);
    come(20 + gpu_id, gpu_id, 2);
  }
  ASSERT_TRUE(find<SendLock>(feed(LockRequested{10}), 10));
  EXPECT_FALSE(find<SendLock>(feed(LockRequested{21}), 21)) << "on a GPU that the first process may need";
  EXPECT_TRUE(find<SendLock>(feed(LockRequested{11}), 11));
  EXPECT_EQ(view(*state, now)[1].clients.at(0).gang_gpus, 2U);
}

// The clients that get the lock before they allocate: members of a gang that runs, and nobody once it has left.
TEST_F(Step, MembersHearWhetherTheirGangRuns) {
  feed(GpuAppeared{1, 16 * kGiB});
  feed(ClientJoined{1, 0, 7, 0, {4 * kGiB, 0, 0}, true, false, true});
  feed(ClientJoined{2, 1, 7, 0, {4 * kGiB, 0, 0}, true, false, false});
  const Actions idles = feed(LockReleased{1, grants[1], {4 * kGiB, 0, 0}, true});
  ASSERT_TRUE(find<SendContention>(idles, 2));
  EXPECT_FALSE(find<SendContention>(idles, 2)->gang_runs);
  const Actions runs = feed(LockRequested{1});
  ASSERT_TRUE(find<SendContention>(runs, 2));
  EXPECT_TRUE(find<SendContention>(runs, 2)->gang_runs);
  const Actions both = feed(LockRequested{2});
  ASSERT_TRUE(find<SendContention>(both, 1));
  EXPECT_TRUE(find<SendContention>(both, 1)->gang_runs);
}

// Whoever says that it has the lock already, and nobody else knows of it, is dropped before all others and gets no more memory than it has.
TEST_F(Step, ALockThatOnlyTheClientSpeaksOfTakesNothingFromOthers) {
  join(1, 12 * kGiB, true);
  load(1, 12 * kGiB);
  for (ClientId liar = 100; liar < 300; ++liar) {
    const Actions actions = feed(ClientJoined{liar, 0, liar, 5, {12 * kGiB, 0, 0}, true, true, false, true, false, false});
    EXPECT_TRUE(find<SendDrop>(actions, liar)) << "there is no room for both";
    EXPECT_LT(view_of(liar).budget, 4 * kGiB) << "what is free, as nobody waits for it";
    for (int i = 0; i < 5; ++i) {
      now += 100 * kSec / 1000;
      EXPECT_FALSE(find<SendDrop>(feed(Tick{}), 1));
    }
    feed(ClientLeft{liar, true});
    ASSERT_EQ(view_of(1).state, ClientState::kRunning);
  }
}

TEST_F(Step, ALockThatOnlyTheClientSpeaksOfKeepsNobodyWaiting) {
  feed(ClientJoined{100, 0, 100, 0, {12 * kGiB, 2 * kGiB, 0}, true, true, false, true, false, false});
  EXPECT_EQ(view_of(100).state, ClientState::kLoading) << "nobody else is there";
  const Actions actions = join(1, 12 * kGiB, true);
  EXPECT_TRUE(find<SendDrop>(actions, 100)) << "its turn is over as soon as somebody waits";
  now += kSec / 100;
  const Actions left = feed(ClientLeft{100, true});
  ASSERT_TRUE(find<SendLock>(left, 1));
  // It comes again and again.
  for (ClientId again = 101; again < 200; ++again) {
    feed(ClientJoined{again, 0, again, 0, {12 * kGiB, 0, 0}, true, true, false, true, false, false});
    now += kSec / 10;
    EXPECT_FALSE(find<SendDrop>(feed(Tick{}), 1));
    EXPECT_GE(view_of(1).budget, 12 * kGiB);
    feed(ClientLeft{again, true});
  }
}

// Figures without a bound, as a liar may send them: no sum of them overflows, and what is shown and believed of the link stays possible.
TEST_F(Step, WhatAClientClaimsToHoldIsNoBudgetOnceItNoLongerClaimsIt) {
  join(2, 12 * kGiB, true);
  load(2, 12 * kGiB);
  feed(ClientLeft{2, false, true});
  join(1, 0, true);
  feed(MemoryChanged{1, {12 * kGiB, 12 * kGiB, 0}, 0, 0, 0, 0});
  const Actions actions = feed(MemoryChanged{1, {0, 0, 0}, 0, 0, kMiB, 1});
  const auto memory = find<SendMemory>(actions, 1);
  ASSERT_TRUE(memory && memory->granted);
  EXPECT_LT(memory->budget, kGiB);
}

TEST_F(Step, FiguresWithoutABoundDoNotOverflow) {
  constexpr Bytes kHuge = std::numeric_limits<Bytes>::max();
  join(1, kGiB, true);
  feed(HostMemory{kHuge});
  for (ClientId liar = 100; liar < 140; ++liar) {
    feed(ClientJoined{liar, 0, liar, 0, {kHuge, kHuge, kHuge}, true, false, true});
    feed(MemoryChanged{liar, {kHuge, kHuge, kHuge}, kHuge, 0, kHuge, 1});
  }
  for (uint64_t id = 0; id < 200; ++id) {
    feed(SwapProgressed{100, (id & 1) != 0, true, false, id, kHuge, id % 3 == 0 ? 1 : kHuge, {kHuge, 0, 0}});
    now += kSec;
  }
  const ClientView liar = view_of(100);
  EXPECT_GT(liar.swapped_out_total, 0);
  EXPECT_GT(liar.swapped_in_total, 0);
  EXPECT_EQ(gpu().bandwidth_in, 0) << "nobody asked for these movements";
  EXPECT_EQ(gpu().bandwidth_out, 0);
}

TEST_F(Step, ALiarMovesTheSpeedOfTheLinkOnlyAsFarAsItIsBelieved) {
  constexpr Duration kTook = kSec;
  const auto turn = [&](ClientId client, Bytes bytes, Duration takes, Duration says) {
    const auto lock = find<SendLock>(join(client, bytes, true), client);
    ASSERT_TRUE(lock);
    feed(SwapProgressed{client, false, true, false, lock->grant + 1, bytes, 1, {bytes, bytes, 0}});  // of another grant
    now += takes;
    feed(SwapProgressed{client, false, true, false, lock->grant, bytes, says, {bytes, bytes, 0}});
  };
  turn(1, 2 * kGiB, kTook, 1000 * kSec);
  EXPECT_EQ(gpu().bandwidth_in, 2.0 * kGiB) << "it cannot have taken longer than since the lock was granted";
  turn(2, 2 * kGiB, kTook, kTook);
  EXPECT_EQ(gpu().bandwidth_in, 2.0 * kGiB);
  turn(3, 2 * kGiB, kTook, 1);
  EXPECT_EQ(gpu().bandwidth_in, 2.0 * kGiB) << "one of three tenants says that it was faster than any link";
  feed(ClientLeft{3, true});
  feed(ClientLeft{2, true});
  turn(4, 2 * kGiB, 4 * kTook, 4 * kTook);
  EXPECT_EQ(gpu().bandwidth_in, 0.5 * kGiB) << "of two the slower one, which has to be slow";
}

}  // namespace
}  // namespace nvshare::policy
