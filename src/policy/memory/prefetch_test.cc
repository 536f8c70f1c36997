// Memory that moves beside who runs (prefetch.cc): step by step, and what it is worth over whole rotations.
#include <gtest/gtest.h>

#include "policy/testing/test_world.h"

namespace nvshare::policy {
namespace {

using testing::World;
constexpr Bytes kGiB = 1LL << 30;
constexpr Bytes kMiB = 1LL << 20;
constexpr Duration kSec = 1'000'000'000;
constexpr Bytes kBatch = 256 * kMiB;

template <typename Wanted>
std::optional<Wanted> find(const Actions& actions, ClientId client) {
  for (const Action& action : actions) {
    if (const auto* wanted = std::get_if<Wanted>(&action); wanted && wanted->client == client) return *wanted;
  }
  return std::nullopt;
}

// On a GPU of 40 GiB client 1 runs with 24 GiB; 3 has nothing to do, and 14 GiB there; 2 begins to wait for its turn, and has nothing
// there.
struct Beside : ::testing::Test {
  Beside() {
    config.prefetch = true;
    config.memory_reserve_percent = 0;
    state = make_state(config);
    feed(GpuAppeared{0, 40 * kGiB});
  }
  Actions feed(const Event& event) {
    Actions actions = step(*state, event, now);
    EXPECT_EQ(check_invariants(*state), std::nullopt);
    for (const Action& action : actions) {
      if (const auto* lock = std::get_if<SendLock>(&action)) last_lock = *lock;
    }
    return actions;
  }
  Actions join(ClientId client, Bytes allocated, Bytes resident, bool wants_lock, bool prefetches = true) {
    ClientJoined joined{client, 0, client, 0, {allocated, resident, 0}, true, false, wants_lock};
    joined.prefetches = prefetches;
    now += kSec / 1000;
    return feed(joined);
  }
  Actions bring_in(ClientId client, PrefetchId id, Bytes resident, Bytes copied, bool failed = false) {
    return feed(SwapProgressed{client, false, true, failed, id, copied, kSec / 100, {24 * kGiB, resident, 0}, 0, true});
  }
  Actions later(Duration time) {
    now += time;
    return feed(Tick{});
  }
  Actions second_waits(bool prefetches = true) {
    join(1, 24 * kGiB, 24 * kGiB, true);
    join(3, 24 * kGiB, 14 * kGiB, false);
    return join(2, 24 * kGiB, 0, true, prefetches);
  }
  ClientView view_of(ClientId client) {
    const std::vector<GpuView> gpus = view(*state, now);
    for (const ClientView& candidate : gpus[0].clients) {
      if (candidate.client == client) return candidate;
    }
    return {};
  }

  Config config;
  StatePointer state;
  Instant now = 100 * kSec;
  SendLock last_lock{};
};

TEST_F(Beside, ABatchComesInAndAnotherLeavesForTheNext) {
  const Actions actions = second_waits();
  const auto in = find<SendPrefetch>(actions, 2);
  const auto out = find<SendEvict>(actions, 3);
  ASSERT_TRUE(in && out);
  EXPECT_EQ(in->budget, kBatch);
  EXPECT_EQ(out->bytes, kBatch);
  EXPECT_EQ(view_of(2).budget, kBatch) << "what it was promised counts";
  EXPECT_FALSE(find<SendPrefetch>(later(kSec), 2)) << "one at a time";
}

TEST_F(Beside, TheNextBatchWaitsForTheFirstAndForItsPace) {
  const auto first = find<SendPrefetch>(second_waits(), 2);
  ASSERT_TRUE(first);
  EXPECT_FALSE(find<SendPrefetch>(bring_in(2, first->prefetch, kBatch, kBatch), 2)) << "3 still moves out, and there is a pause";
  feed(SwapProgressed{3, true, true, false, 1, kBatch, kSec / 100, {24 * kGiB, 14 * kGiB - kBatch, 0}});
  const auto second = find<SendPrefetch>(later(2 * kSec), 2);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->budget, 2 * kBatch);
  EXPECT_EQ(view_of(2).prefetched_total, kBatch);
}

TEST_F(Beside, NothingComesInWithoutTheSetting) {
  config.prefetch = false;
  feed(ConfigChanged{config});
  EXPECT_FALSE(find<SendPrefetch>(second_waits(), 2));
  EXPECT_FALSE(find<SendPrefetch>(later(kSec), 2));
  config.prefetch = true;
  EXPECT_TRUE(find<SendPrefetch>(feed(ConfigChanged{config}), 2));
}

TEST_F(Beside, NothingComesInForAClientThatCannot) {
  const Actions actions = second_waits(false);
  EXPECT_FALSE(find<SendPrefetch>(actions, 2));
  EXPECT_FALSE(find<SendEvict>(actions, 3));
}

TEST_F(Beside, AGrantTakesThePromiseOver) {
  const auto in = find<SendPrefetch>(second_waits(), 2);
  ASSERT_TRUE(in);
  feed(LockReleased{1, last_lock.grant, {24 * kGiB, 24 * kGiB, 0}, true});
  EXPECT_EQ(last_lock.client, 2U);
  EXPECT_GE(last_lock.budget, in->budget);
  bring_in(2, in->prefetch, 64 * kMiB, 64 * kMiB, true);
  EXPECT_GE(view_of(2).budget, in->budget) << "its end is no news any more";
  EXPECT_EQ(view_of(2).state, ClientState::kLoading);
}

TEST_F(Beside, WhatAClientWasPromisedCountsWhenItDies) {
  ASSERT_TRUE(find<SendPrefetch>(second_waits(), 2));
  feed(ClientLeft{2, false});
  EXPECT_EQ(view(*state, now)[0].departed, kBatch);
}

TEST_F(Beside, AFailureIsTheLastBeforeItsNextTurn) {
  const auto in = find<SendPrefetch>(second_waits(), 2);
  ASSERT_TRUE(in);
  bring_in(2, in->prefetch, 0, 0, true);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(find<SendPrefetch>(later(kSec / 4), 2));
}

TEST_F(Beside, AGrowingNeighbourGetsItsRoomBackAndWhatCameInWasInVain) {
  const auto in = find<SendPrefetch>(second_waits(), 2);
  ASSERT_TRUE(in);
  bring_in(2, in->prefetch, kBatch, kBatch);
  feed(SwapProgressed{3, true, true, false, 1, kBatch, kSec / 100, {24 * kGiB, 0, 0}});  // and all else of 3
  const Actions grows =
      feed(MemoryChanged{1, {24 * kGiB, 24 * kGiB, 0}, last_lock.budget, last_lock.budget_sequence, 16 * kGiB - 32 * kMiB, 1});
  const auto out = find<SendEvict>(grows, 2);
  ASSERT_TRUE(out);
  feed(SwapProgressed{2, true, true, false, out->eviction, 0, kSec / 100, {24 * kGiB, 0, 0}});
  EXPECT_EQ(view_of(2).prefetched_in_vain_total, kBatch);
  EXPECT_EQ(view_of(1).budget, 40 * kGiB - 32 * kMiB);
}

// Nothing is moved out of it before it has answered, and nobody counts on that memory once it is late.
TEST_F(Beside, AClientThatDoesNotAnswerKeepsItsPromiseAndIsLeftAlone) {
  const auto in = find<SendPrefetch>(second_waits(), 2);
  ASSERT_TRUE(in);
  feed(SwapProgressed{3, true, true, false, 1, kBatch, kSec / 100, {24 * kGiB, 0, 0}});
  const MemoryChanged grows{1, {24 * kGiB, 24 * kGiB, 0}, last_lock.budget, last_lock.budget_sequence, 16 * kGiB - 32 * kMiB, 1};
  EXPECT_FALSE(find<SendEvict>(feed(grows), 2));
  later(config.unanswered_grace);
  EXPECT_EQ(view_of(2).budget, kBatch);
  EXPECT_LT(view_of(1).budget, 39 * kGiB);
  const Actions answers = bring_in(2, in->prefetch, kBatch, kBatch);
  const Actions then = later(kSec);
  EXPECT_TRUE(find<SendEvict>(answers, 2) || find<SendEvict>(then, 2));
}

// Work over the time that it took, three programs of 24.7 GiB on 40 GiB with turns of 10 s.
double steady_share(bool prefetch) {
  Config config;
  config.prefetch = prefetch;
  World world(config, 1);
  world.bandwidth = 47 * kGiB;
  world.latency_max = kSec / 10'000;
  world.add_gpu(0, 40 * kGiB);
  for (int i = 0; i < 3; ++i) {
    testing::Player& player = world.add_player(0, {testing::run_for(200 * kSec), testing::leave_now()}, 24'700 * kMiB);
    player.prefetches = true;
    player.host = player.memory.allocated;  // all of it has been used before
  }
  const Instant begin = world.now();
  world.run_until(begin + 2000 * kSec);
  EXPECT_FALSE(world.broken()) << world.describe();
  EXPECT_TRUE(world.all_finished()) << world.describe();
  Instant end = begin;
  for (ClientId id = 1; id <= 3; ++id) end = std::max(end, world.player(id).finished_at.value_or(begin));
  return 600.0 * kSec / static_cast<double>(end - begin);
}

TEST(Prefetch, HandOversCostLess) {
  const double without = steady_share(false), with = steady_share(true);
  RecordProperty("without", std::to_string(without));
  RecordProperty("with", std::to_string(with));
  EXPECT_GE(with, 0.975) << "without: " << without;
  EXPECT_GE(1 - without, 1.4 * (1 - with)) << "of the time that is lost; with: " << with;
}

}  // namespace
}  // namespace nvshare::policy
