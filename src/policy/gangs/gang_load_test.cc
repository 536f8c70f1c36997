// Gangs of which one member loads or grows while another could run.
#include "policy/memory/room.h"
#include "policy/state.h"
#include "policy/testing/test_step.h"

namespace nvshare::policy {
namespace {

// What has loaded is billed while others of its gang load. Dropped in the middle of that for its limit, the gang would never run.
struct GangThatLoads : Step {
  GangThatLoads() {
    feed(GpuAppeared{1, 16 * kGiB});
    feed(ComputeLimit{7, 20});
  }
  void begins() {
    feed(ClientJoined{1, 0, 7, 0, {4 * kGiB, 0, 0}, true, false, true});
    feed(ClientJoined{2, 1, 7, 0, {0, 0, 0}, true, false, true});
  }
  bool drops_within(Duration time) {
    bool drops = false;
    for (const Instant end = now + time; now < end && !drops; now += kSec / 100) {
      const Actions actions = feed(Tick{});
      drops = find<SendDrop>(actions, 1) || find<SendDrop>(actions, 2);
    }
    return drops;
  }
};

TEST_F(GangThatLoads, MayUseThatBeforeItsLimitEndsItsTurn) {
  begins();
  EXPECT_FALSE(drops_within(5 * kSec)) << "on one GPU it loads";
  load(1, 4 * kGiB);
  EXPECT_TRUE(drops_within(kSec));
}

// Else nearly all that its limit leaves it would go into loading, on the GPUs where its members wait for that.
TEST_F(GangThatLoads, HasATurnThatIsWorthItWhereItWouldHaveToLoadAgain) {
  feed(ClientJoined{3, 0, 8, 0, {14 * kGiB, 0, 0}, true, false, false});
  begins();
  EXPECT_FALSE(drops_within(5 * kSec));
  load(1, 4 * kGiB);
  EXPECT_FALSE(drops_within(20 * kSec)) << "five times what 4 GiB take";
  EXPECT_TRUE(drops_within(3 * kSec));
}

// One that had nothing to do before the others had loaded gives its GPU up. It gets it back when they run: its work needs all of them.
TEST_F(Step, AMemberThatWasIdleWhileItsGangLoadedReturnsWhateverItsLimit) {
  feed(GpuAppeared{1, 16 * kGiB});
  feed(ComputeLimit{7, 20});
  feed(ClientJoined{1, 0, 7, 0, {4 * kGiB, 0, 0}, true, false, true});
  feed(ClientJoined{2, 1, 7, 0, {0, 0, 0}, true, false, true});
  const auto pass = [&](Duration time) {
    for (const Instant end = now + time; now < end; now += kSec / 100) feed(Tick{});
  };
  pass(2 * kSec);
  feed(LockReleased{2, grants[2], {0, 0, 0}, true});
  pass(kSec / 2);
  EXPECT_TRUE(find<SendLock>(feed(LockRequested{2}), 2));
}

// Two processes of one tenant, each on both GPUs, each of which grew on another: each waited for what the other's budget had beyond its
// need, and nobody told it that somebody waits for memory, as all are of one gang (simulation, seed 1570007191).
TEST_F(Step, AMemberGivesUpWhatItDoesNotNeedForOneThatGrowsBesideIt) {
  feed(GpuAppeared{1, 16 * kGiB});
  const auto come = [&](ClientId client, GpuId gpu_id, Bytes bytes) {
    feed(ClientJoined{client, gpu_id, 7, 0, {bytes, 0, 0}, true, false, true});
  };
  come(1, 0, 7 * kGiB);
  come(2, 1, kGiB);
  come(3, 0, 4 * kGiB);
  load(1, 7 * kGiB);
  load(2, kGiB);
  load(3, 4 * kGiB);
  ASSERT_GT(view_of(1).budget, 7 * kGiB + 100 * kMiB);
  const Bytes wanted = gpu().safe_limit - 11 * kGiB - 50 * kMiB;
  const Client& grows = *state->find(3);
  const Actions actions = feed(MemoryChanged{3, {4 * kGiB, 4 * kGiB, 0}, grows.budget.bytes, grows.budget.sequence, wanted, 1});
  EXPECT_FALSE(find<SendMemory>(actions, 3));
  const auto told = find<SendContention>(actions, 1);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->memory_waiters, 1U);
  EXPECT_EQ(told->waiters, 0U) << "its turn does not end for it";
  EXPECT_FALSE(find<SendContention>(actions, 2)) << "on another GPU";
  EXPECT_FALSE(find<SendContention>(actions, 3));
  const Actions then = feed(MemoryChanged{1, {7 * kGiB, 7 * kGiB, 0}, 7 * kGiB, state->find(1)->budget.sequence, 0, 0});
  ASSERT_TRUE(find<SendMemory>(then, 3));
  EXPECT_TRUE(find<SendMemory>(then, 3)->granted);
  const auto over = find<SendContention>(then, 1);
  ASSERT_TRUE(over);
  EXPECT_EQ(over->memory_waiters, 0U);
}

// Process 2 of tenant 7 is on both GPUs (clients 2 and 3), and grows on the second, where another loads what leaves it no room.
struct GangThatGrows : Step {
  GangThatGrows() { feed(GpuAppeared{1, 16 * kGiB}); }

  void come(ClientId client, GpuId gpu_id, TenantId tenant, ProcessId process, Bytes bytes) {
    feed(ClientJoined{.client = client,
                      .gpu = gpu_id,
                      .tenant = tenant,
                      .priority = 0,
                      .memory = {bytes, 0, 0},
                      .swappable = true,
                      .has_lock = false,
                      .wants_lock = true,
                      .process = process});
    now += kSec / 1000;
  }
  // It is dropped for what it asks for.
  void comes_in_vain() {
    come(2, 0, 7, 2, 0);
    come(3, 1, 7, 2, 0);
    ASSERT_TRUE(has_turn());
    for (const ClientId client : {2, 3}) feed(SwapProgressed{client, false, true, false, grants[client], 0, 0, {0, 0, 0}});
    const Actions actions = grow(3, 6 * kGiB);
    for (const ClientId client : {2, 3}) {
      const auto drop = find<SendDrop>(actions, client);
      ASSERT_TRUE(drop);
      feed(Drained{client, drop->grant, drop->attempt});
    }
    leave();
  }
  void leave() {
    for (const ClientId client : {2, 3}) feed(LockReleased{client, grants[client], {0, 0, 0}, false});
  }
  void ask() {
    for (const ClientId client : {2, 3}) feed(LockRequested{client});
  }
  bool has_turn() const { return state->find(2)->holds_lock() && state->find(3)->holds_lock(); }
  bool is_out() const { return !state->find(2)->holds_lock() && !state->find(3)->holds_lock(); }
  Actions grow(ClientId client, Bytes wanted) {
    const Client& grows = *state->find(client);
    return feed(MemoryChanged{client, {0, 0, 0}, grows.budget.bytes, grows.budget.sequence, wanted, ++request});
  }
  bool grows_to(Bytes wanted) {
    const auto answer = find<SendMemory>(grow(3, wanted), 3);
    return answer && answer->granted;
  }

  uint64_t request = 0;
};

// All of the tenant are one gang while it has nothing, but not with what it asks for (simulation, seed 2300055443).
TEST_F(GangThatGrows, WaitsForMemoryBesideOneOfItsTenant) {
  come(1, 1, 7, 1, 10 * kGiB);
  comes_in_vain();
  EXPECT_FALSE(state->find(3)->sent.rules->gang_runs) << "it may allocate without the lock";
  ask();
  EXPECT_TRUE(is_out()) << "it would ask for the same, and be dropped for it";
  feed(ClientLeft{1, true});
  EXPECT_TRUE(has_turn());
  EXPECT_TRUE(grows_to(6 * kGiB));
}

TEST_F(GangThatGrows, WaitsForMemoryBesideANeighbour) {
  come(1, 1, 8, 1, 10 * kGiB);
  comes_in_vain();
  ask();
  EXPECT_TRUE(is_out()) << "it would ask for the same, and be dropped for it";
  EXPECT_EQ(state->find(3)->wait.reason, WaitReason::kTurn);
  feed(ClientLeft{1, true});
  EXPECT_TRUE(has_turn());
  EXPECT_TRUE(grows_to(6 * kGiB));
}

// A program of the tenant that is on one GPU only: another of them makes all of them a gang.
TEST_F(GangThatGrows, OnOneGpuWaitsBesideOneOfItsTenantToo) {
  come(1, 1, 7, 1, 10 * kGiB);
  come(4, 0, 7, 1, 0);
  come(3, 1, 7, 3, 0);
  ASSERT_TRUE(state->find(3)->holds_lock());
  feed(SwapProgressed{3, false, true, false, grants[3], 0, 0, {0, 0, 0}});
  ASSERT_TRUE(find<SendDrop>(grow(3, 6 * kGiB), 3));
  feed(LockReleased{3, grants[3], {0, 0, 0}, false});
  EXPECT_FALSE(state->find(3)->sent.rules->gang_runs);
  feed(LockRequested{3});
  EXPECT_FALSE(state->find(3)->holds_lock());
}

TEST_F(GangThatGrows, NeedsOnceWhatItHasAllocatedSince) {
  come(1, 1, 8, 1, 10 * kGiB);
  comes_in_vain();
  feed(MemoryChanged{3, {4 * kGiB, 0, 0}, 0, 0, 0, request});
  EXPECT_EQ(need(*state->find(3)), 6 * kGiB);
  feed(MemoryChanged{3, {7 * kGiB, 0, 0}, 0, 0, 0, request});
  EXPECT_EQ(need(*state->find(3)), 7 * kGiB);
}

// It was told that there is no memory, say.
TEST_F(GangThatGrows, NeedsItNoMoreOnceATurnEndedWithoutIt) {
  come(1, 1, 8, 1, 10 * kGiB);
  comes_in_vain();
  ask();
  feed(ClientLeft{1, true});
  ASSERT_TRUE(has_turn());
  leave();
  EXPECT_EQ(need(*state->find(3)), 0);
}

// Else nobody could ever refuse it.
TEST_F(GangThatGrows, DoesNotWaitForWhatTheGpuCannotHaveAnyMore) {
  come(1, 1, 8, 1, 10 * kGiB);
  comes_in_vain();
  feed(ForeignMemory{1, 12 * kGiB});
  ask();
  feed(ClientLeft{1, true});
  ASSERT_TRUE(has_turn());
  const auto answer = find<SendMemory>(grow(3, 6 * kGiB), 3);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->granted);
}

}  // namespace
}  // namespace nvshare::policy
