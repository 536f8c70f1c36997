// A tenant that the administrator suspends: single steps. Random workloads suspend tenants in policy_property_test and gang_test.
#include <gtest/gtest.h>

#include <map>

#include "policy/policy.h"

namespace nvshare::policy {
namespace {

constexpr Bytes kGiBs = 1LL << 30;
constexpr Duration kSeconds = 1'000'000'000;

struct TenantSuspensions : ::testing::Test {
  TenantSuspensions() : state(make_state({})) {
    feed(GpuAppeared{0, 16 * kGiBs});
    feed(HostMemory{100 * kGiBs});
  }

  void feed(const Event& event) {
    drops.clear();
    evictions.clear();
    held.clear();
    for (const Action& action : step(*state, event, now)) {
      if (const auto* lock = std::get_if<SendLock>(&action)) grants[lock->client] = lock->grant;
      if (const auto* drop = std::get_if<SendDrop>(&action)) drops[drop->client] = drop->grant;
      if (const auto* evict = std::get_if<SendEvict>(&action)) evictions[evict->client] = evict->bytes;
      if (const auto* told = std::get_if<SendContention>(&action)) held[told->client] = told->held;
    }
    EXPECT_EQ(check_invariants(*state), std::nullopt);
  }
  void join(ClientId client, Bytes bytes, bool wants_lock) {
    feed(ClientJoined{client, 0, client, 0, {bytes, 0, 0}, true, false, wants_lock});
  }
  void load(ClientId client, Bytes bytes) { feed(SwapProgressed{client, false, true, false, grants[client], 0, 0, {bytes, bytes, 0}}); }
  ClientView view_of(ClientId client) {
    const GpuView gpu = view(*state, now)[0];
    for (const ClientView& one : gpu.clients) {
      if (one.client == client) return one;
    }
    return {};
  }

  StatePointer state;
  Instant now = 100 * kSeconds;
  std::map<ClientId, GrantId> grants, drops;  // the last of each; of the last step
  std::map<ClientId, Bytes> evictions;
  std::map<ClientId, bool> held;  // who was told in the last step whether it waits without a scheduler
};

// And one whose tenant, or GPU, has a limit: whoever ends the scheduler is not rid of it.
TEST_F(TenantSuspensions, ItsClientsAreToldThatTheyWaitWithoutAScheduler) {
  using Told = std::map<ClientId, bool>;
  join(1, kGiBs, true);
  join(2, kGiBs, true);
  feed(TenantSuspended{1, true});
  EXPECT_EQ(held, (Told{{1, true}}));
  feed(ComputeLimit{2, 30});
  EXPECT_EQ(held, (Told{{1, true}, {2, true}}));
  feed(TenantSuspended{1, false});
  EXPECT_EQ(held, Told{});
  feed(ComputeLimit{2, 100});
  EXPECT_EQ(held, (Told{{1, false}, {2, false}}));
}

// Of a tenant on several GPUs only those would go on whose memory is there, and keep their GPUs busy until the others come.
TEST_F(TenantSuspensions, MembersOfAGangAreToldThatTheyWaitWithoutAScheduler) {
  using Told = std::map<ClientId, bool>;
  feed(GpuAppeared{1, 16 * kGiBs});
  const auto join_tenant = [&](ClientId client, GpuId gpu) { feed(ClientJoined{client, gpu, 7, 0, {kGiBs, 0, 0}, true, false, true}); };
  join_tenant(1, 0);
  EXPECT_EQ(held, (Told{{1, false}})) << "on one GPU: each is told once, whatever it is";
  join_tenant(2, 1);
  EXPECT_EQ(held, (Told{{1, true}, {2, true}}));
  feed(ClientLeft{2, true, false});
  EXPECT_EQ(held, (Told{{1, false}}));
}

TEST_F(TenantSuspensions, ItsTurnEndsItsMemoryGivesWayAndItGoesOnWhenResumed) {
  join(1, 12 * kGiBs, true);
  load(1, 12 * kGiBs);
  join(2, 12 * kGiBs, true);
  ASSERT_EQ(view_of(1).state, ClientState::kRunning);
  feed(TenantSuspended{1, true});
  ASSERT_EQ(drops[1], grants[1]) << "before its turn's time is over";
  feed(LockReleased{1, grants[1], {12 * kGiBs, 12 * kGiBs, 0}, false});
  EXPECT_GT(evictions[1], 0);
  feed(LockRequested{1});
  EXPECT_EQ(view_of(1).state, ClientState::kIdle);
  EXPECT_NE(view_of(1).waiting_for.find("paused"), std::string::npos);
  EXPECT_EQ(view_of(2).state, ClientState::kLoading);

  now += 3600 * kSeconds;
  feed(SwapProgressed{1, true, true, false, 1, 12 * kGiBs, kSeconds, {12 * kGiBs, 0, 0}});
  load(2, 12 * kGiBs);
  feed(LockReleased{2, grants[2], {12 * kGiBs, 12 * kGiBs, 0}, true});
  const GrantId before = grants[1];
  now += 3600 * kSeconds;
  feed(Tick{});
  EXPECT_EQ(grants[1], before) << "the GPU is free, and it stays suspended";
  EXPECT_EQ(view_of(1).time_waiting, 0);

  feed(TenantSuspended{1, false});
  EXPECT_GT(grants[1], before);
  EXPECT_EQ(view_of(1).waiting_for.find("paused"), std::string::npos);
}

TEST_F(TenantSuspensions, AClientThatWaitsOrComesLaterIsHeldToo) {
  join(1, 12 * kGiBs, true);
  load(1, 12 * kGiBs);
  join(2, 12 * kGiBs, true);
  ASSERT_EQ(view_of(2).state, ClientState::kWaiting);
  feed(TenantSuspended{2, true});
  EXPECT_EQ(view_of(2).state, ClientState::kIdle);
  now += 3600 * kSeconds;
  feed(Tick{});
  EXPECT_TRUE(drops.empty()) << "nobody waits for its neighbour's memory";
  feed(TenantSuspended{3, true});
  join(3, kGiBs, true);
  EXPECT_EQ(grants.count(3), 0u);
  feed(TenantSuspended{3, false});
  EXPECT_EQ(grants.count(3), 1u);
  feed(TenantSuspended{2, false});
  EXPECT_EQ(view_of(2).state, ClientState::kWaiting);
}

TEST_F(TenantSuspensions, ItsMemoryMovesOutAsFarAsHostMemoryHasRoom) {
  for (const ClientId client : {1, 2}) {
    join(client, 6 * kGiBs, true);
    load(client, 6 * kGiBs);
    feed(LockReleased{client, grants[client], {6 * kGiBs, 6 * kGiBs, kGiBs}, true});
    now += kSeconds;
  }
  feed(HostMemory{2 * kGiBs});
  feed(TenantSuspended{2, true});  // although nobody wants the room, and the other has not run for longer
  EXPECT_EQ(evictions.count(1), 0u);
  EXPECT_EQ(evictions[2], 2 * kGiBs);
  feed(SwapProgressed{2, true, true, false, 1, 2 * kGiBs, kSeconds, {6 * kGiBs, 4 * kGiBs, kGiBs}});
  EXPECT_TRUE(evictions.empty());
  feed(HostMemory{100 * kGiBs});
  EXPECT_EQ(evictions[2], 3 * kGiBs) << "but not what cannot be swapped";
}

TEST_F(TenantSuspensions, AClientThatDiesLeavesNothingThatHoldsOthersUp) {
  join(1, 12 * kGiBs, true);
  load(1, 12 * kGiBs);
  join(2, 12 * kGiBs, true);
  feed(TenantSuspended{1, true});
  feed(ClientLeft{1, true});
  EXPECT_EQ(view_of(2).state, ClientState::kLoading);
  join(1, kGiBs, true);  // its next program
  EXPECT_TRUE(view_of(1).held);
  feed(ClientLeft{1, true});
  feed(TenantSuspended{1, false});
  join(1, kGiBs, true);
  EXPECT_FALSE(view_of(1).held);
  EXPECT_NE(view_of(1).state, ClientState::kIdle);
}

TEST_F(TenantSuspensions, AProgramThatDoesNotDrainIsAskedAgain) {
  join(1, kGiBs, true);
  load(1, kGiBs);
  feed(TenantSuspended{1, true});
  ASSERT_EQ(drops.count(1), 1u);
  feed(DrainFailed{1, grants[1]});
  const auto again = next_deadline(*state);
  ASSERT_TRUE(again);
  now = *again;
  feed(Tick{});
  EXPECT_EQ(drops.count(1), 1u);
}

TEST_F(TenantSuspensions, ATenantThatIsResumedAtOnceKeepsItsTurnOrGetsTheNext) {
  join(1, kGiBs, true);
  load(1, kGiBs);
  feed(TenantSuspended{1, true});
  feed(TenantSuspended{1, false});
  feed(LockReleased{1, grants[1], {kGiBs, kGiBs, 0}, false});
  const GrantId before = grants[1];
  feed(LockRequested{1});
  EXPECT_GT(grants[1], before);
}

}  // namespace
}  // namespace nvshare::policy
