// A member of a gang that gave its GPU up by itself keeps its place there while others of it go on. What that means for those that are on
// that GPU, and grow. Single events on virtual time.
#include <gtest/gtest.h>

#include <map>

#include "policy/policy.h"
#include "policy/state.h"

namespace nvshare::policy {
namespace {

constexpr Bytes kGiB = 1LL << 30;
constexpr Duration kMs = 1'000'000;
constexpr Duration kSec = 1000 * kMs;

// Clients that answer at once: they load when they have the budget, drain when asked, move out what they are asked for.
class GangPlaces : public ::testing::Test {
 protected:
  GangPlaces() {
    Config config;
    config.switch_time_mode = SwitchTimeMode::kFixed;
    config.switch_time_fixed = 2 * kSec;
    config.gang_turns = true;
    state_ = make_state(config);
    for (const GpuId gpu : {0, 1}) feed(GpuAppeared{gpu, 16 * kGiB});
  }

  struct One {
    Memory memory;
    Bytes budget = 0;
    GrantId grant = 0;
    bool loading = false;
    int turns = 0;
  };

  void join(ClientId client, GpuId gpu, TenantId tenant, Bytes bytes) {
    clients_[client].memory = {bytes, bytes, 0};
    feed(ClientJoined{client, gpu, tenant, 0, clients_[client].memory, true, false, true});
  }

  void feed(const Event& event) {
    const Actions actions = step(*state_, event, now_ += kMs);
    ASSERT_EQ(check_invariants(*state_), std::nullopt);
    for (const Action& action : actions) {
      if (const auto* lock = std::get_if<SendLock>(&action)) locked(*lock);
      if (const auto* drop = std::get_if<SendDrop>(&action)) dropped(*drop);
      if (const auto* evict = std::get_if<SendEvict>(&action)) evicted(*evict);
    }
  }

  void locked(const SendLock& lock) {
    One& one = clients_[lock.client];
    if (one.grant != lock.grant) {
      one.loading = true;
      ++one.turns;
    }
    one.grant = lock.grant;
    one.budget = lock.budget;
    load(lock.client);
  }

  void load(ClientId client) {
    One& one = clients_[client];
    if (!one.loading || !loads_ || one.budget < one.memory.allocated) return;
    one.loading = false;
    one.memory.resident = one.memory.allocated;
    feed(SwapProgressed{client, false, true, false, one.grant, 0, kMs, one.memory});
  }

  void dropped(const SendDrop& drop) {
    One& one = clients_[drop.client];
    if (drop.grant != one.grant) return;
    if (drop.together && !drained_[drop.client]) {
      drained_[drop.client] = true;
      return feed(Drained{drop.client, drop.grant, drop.attempt});
    }
    drained_[drop.client] = false;
    give_up(drop.client, false);
    feed(LockRequested{drop.client});
  }

  void give_up(ClientId client, bool early) {
    One& one = clients_[client];
    const GrantId grant = one.grant;
    one.grant = 0;
    one.loading = false;
    feed(LockReleased{client, grant, one.memory, early});
  }

  void evicted(const SendEvict& evict) {
    One& one = clients_[evict.client];
    one.memory.resident = std::max<Bytes>(one.memory.resident - evict.bytes, 0);
    feed(SwapProgressed{evict.client, true, true, false, evict.eviction, evict.bytes, kMs, one.memory});
  }

  void pass(Duration time) {
    for (const Instant until = now_ + time; now_ < until;) {
      now_ = std::clamp(next_deadline(*state_).value_or(until), now_, until);
      feed(Tick{});
    }
  }

  StatePointer state_;
  Instant now_ = 100 * kSec;
  bool loads_ = true;  // false: what is granted loads nothing yet
  std::map<ClientId, One> clients_;
  std::map<ClientId, bool> drained_;
};

// Two programs on two GPUs, seen on H100s: the first gave GPU 0 up and ran on on the other. The second had been granted GPU 0, for what it
// had, and allocated more before its load began. It fitted no longer beside the place that was kept, and nobody was asked to make room: it
// stood still for ever.
TEST_F(GangPlaces, WhatGrewWhileItLoadsDoesNotWaitForAKeptPlaceForEver) {
  join(1, 0, 100, 8 * kGiB);
  join(4, 1, 100, 4 * kGiB);
  join(2, 0, 200, 5 * kGiB);
  join(3, 1, 200, 4 * kGiB);
  pass(100 * kMs);
  for (const ClientId client : {1, 2, 3, 4}) ASSERT_NE(clients_[client].grant, 0U) << client << ": all of them fit";
  give_up(1, true);
  give_up(2, true);
  ASSERT_TRUE(state_->find(1)->place.kept);
  loads_ = false;
  feed(LockRequested{2});
  ASSERT_TRUE(state_->find(2)->stays());
  loads_ = true;
  One& grown = clients_[2];
  grown.memory.allocated = 10 * kGiB;
  feed(MemoryChanged{2, grown.memory, grown.budget, state_->find(2)->budget.sequence, 0, 1});
  pass(10 * kSec);
  EXPECT_EQ(grown.memory.resident, 10 * kGiB) << "it stands still with " << (grown.budget >> 20) << " MiB";
}

}  // namespace
}  // namespace nvshare::policy
