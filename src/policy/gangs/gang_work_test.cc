// How much of the node a step looks at: a tenant on many GPUs, or with many clients, must not make everybody's events cost more.
#include <gtest/gtest.h>

#include "policy/parts.h"
#include "policy/policy.h"
#include "policy/state.h"

namespace nvshare::policy {
namespace {

constexpr Bytes kGiB = 1LL << 30;
constexpr Duration kSec = 1'000'000'000;

class GangWork : public ::testing::Test {
 protected:
  GangWork() {
    config_.switch_time_mode = SwitchTimeMode::kFixed;
    config_.switch_time_fixed = 2 * kSec;
    state_ = make_state(config_);
    for (GpuId gpu = 0; gpu < 10; ++gpu) feed(GpuAppeared{gpu, 1024 * kGiB});
  }

  // The GPUs that were looked at.
  std::vector<GpuId> feed(const Event& event) {
    step(*state_, event, ++now_);
    EXPECT_EQ(check_invariants(*state_), std::nullopt);
    std::vector<GpuId> looked_at;
    for (const Gpu* gpu : state_->settled) looked_at.push_back(gpu->id);
    return looked_at;
  }
  std::vector<GpuId> join(ClientId client, GpuId gpu, TenantId tenant) {
    return feed(ClientJoined{client, gpu, tenant, 0, {kGiB, 0, 0}, true, false, true});
  }
  std::vector<GpuId> update(ClientId client) { return feed(MemoryChanged{client, {kGiB, 0, 0}, 0, 0, 0, 0}); }
  uint32_t gang_gpus(ClientId client) {
    const std::optional<GpuView> on = view_of_client(*state_, client, now_);
    return on ? on->clients.front().gang_gpus : 0;
  }

  Config config_;
  StatePointer state_;
  Instant now_ = 100 * kSec;
};

using Ids = std::vector<GpuId>;

TEST_F(GangWork, AGangIsFormedAnewWhenWhatItHasToFitBesideChanges) {
  join(1, 0, 100);
  join(2, 0, 100);
  join(3, 1, 100);
  join(4, 0, 200);
  join(5, 1, 200);
  EXPECT_EQ(gang_gpus(1), 2u);
  feed(ForeignMemory{0, 1021 * kGiB});  // nothing that its clients said
  EXPECT_EQ(gang_gpus(1), 0u) << "two of it fit together no more";
  EXPECT_EQ(gang_gpus(4), 2u);
  update(3);
  EXPECT_EQ(gang_gpus(1), 0u);
  feed(ForeignMemory{0, 0});
  EXPECT_EQ(gang_gpus(1), 2u);
}

TEST_F(GangWork, OnlyGangsOfWhichAClientHasChangedAreFormedAnew) {
  join(1, 0, 100);
  join(2, 1, 100);
  join(3, 0, 200);
  join(4, 1, 200);
  update(1);  // what the steps before have changed is looked at here
  const auto is_whole = [&](TenantId tenant) -> bool& { return state_->gangs.at({tenant, 0}).whole; };
  is_whole(100) = is_whole(200) = false;  // which nobody says: who forms it anew finds out
  step(*state_, MemoryChanged{1, {2 * kGiB, 0, 0}, 0, 0, 0, 0}, ++now_);
  EXPECT_TRUE(is_whole(100));
  EXPECT_FALSE(is_whole(200));
}

// Of hundreds that wait only the one that comes next is of interest to an event of another program.
TEST_F(GangWork, GangsThatWaitBehindOthersForMemoryAreNotLookedAt) {
  const auto looked_at = [&](GpuId gpu) { return state_->gpus.at(gpu).queue.looked_at.size(); };
  const auto join_both = [&](TenantId tenant, bool runs) {
    for (const GpuId gpu : {0U, 1U}) feed(ClientJoined{10 * tenant + gpu, gpu, tenant, 0, {900 * kGiB, 0, 0}, true, runs, !runs});
  };
  const auto runs = [&](TenantId tenant) { return state_->find(10 * tenant)->holds_lock() && state_->find(10 * tenant + 1)->holds_lock(); };
  const auto end_turn = [&](TenantId tenant) {
    for (const ClientId client : {10 * tenant, 10 * tenant + 1})
      feed(LockReleased{client, state_->find(client)->grant, {900 * kGiB, 0, 0}, true, 0, std::nullopt});
  };
  join_both(1, true);
  for (TenantId tenant = 2; tenant <= 30; ++tenant) join_both(tenant, false);
  join(1, 0, 1000);
  EXPECT_EQ(looked_at(0), 1U) << "of all that wait the one whose turn comes next";
  EXPECT_EQ(looked_at(1), 1U);
  feed(TenantPriority{20, 1});
  end_turn(1);
  EXPECT_TRUE(runs(20));
  feed(ClientLeft{30, true});
  feed(ClientLeft{31, true});
  end_turn(20);
  EXPECT_TRUE(runs(2)) << "the one that waited for longest";
  feed(ForeignMemory{0, 900 * kGiB});
  feed(ForeignMemory{0, 0});
  end_turn(2);
  EXPECT_TRUE(runs(4));
}

TEST_F(GangWork, AnEventConcernsTheGpusThatGangsTieToItsOwn) {
  join(1, 0, 100);
  EXPECT_EQ(join(2, 1, 100), (Ids{0, 1}));
  EXPECT_EQ(join(3, 2, 200), Ids{2});
  EXPECT_EQ(update(3), Ids{2}) << "no gang is there";
  EXPECT_EQ(update(1), (Ids{0, 1}));
  join(4, 1, 300);
  EXPECT_EQ(join(5, 3, 300), (Ids{0, 1, 3}));
  EXPECT_EQ(update(2), (Ids{0, 1, 3})) << "by way of both";
  EXPECT_EQ(update(3), Ids{2});
  EXPECT_EQ(feed(ClientLeft{5, true}), (Ids{0, 1, 3})) << "those that it tied together are looked at once more";
  EXPECT_EQ(update(2), (Ids{0, 1}));
  EXPECT_EQ(gang_gpus(2), 2U);
  EXPECT_EQ(feed(Tick{}).size(), 10U);
}

// Thousands of programs on two GPUs each tied all of them together where nobody wanted gangs.
TEST_F(GangWork, WithoutTurnsOfGangsNothingTiesGpusTogether) {
  const auto want_gangs = [&](bool wanted) {
    config_.gang_turns = wanted;
    EXPECT_EQ(feed(ConfigChanged{config_}).size(), 10U);
  };
  want_gangs(false);
  join(1, 0, 100);
  EXPECT_EQ(join(2, 1, 100), Ids{1});
  EXPECT_EQ(update(1), Ids{0});
  EXPECT_EQ(gang_gpus(1), 0U);
  want_gangs(true);
  EXPECT_EQ(gang_gpus(1), 2U);
  EXPECT_EQ(update(1), (Ids{0, 1}));
  want_gangs(false);
  EXPECT_EQ(gang_gpus(1), 0U);
  EXPECT_EQ(update(1), Ids{0});
  EXPECT_EQ(feed(ClientLeft{2, true}), Ids{1});
}

TEST_F(GangWork, ATenantWithManyClientsIsInNoGang) {
  for (ClientId client = 1; client <= kGangMost; ++client) join(client, client % 2, 100);
  EXPECT_EQ(gang_gpus(1), 2U);
  EXPECT_EQ(update(1), (Ids{0, 1}));
  EXPECT_EQ(join(kGangMost + 1, 2, 100), (Ids{0, 1, 2})) << "those of the gang that ends with it";
  EXPECT_EQ(gang_gpus(1), 0U);
  EXPECT_EQ(update(1), Ids{1});
  EXPECT_EQ(feed(ClientLeft{kGangMost + 1, true}), (Ids{0, 1, 2}));
  EXPECT_EQ(gang_gpus(1), 2U);
}

// One member that never drains, or never answers, keeps two GPUs: its gang comes last once that has gone on for long.
class GangOverstays : public GangWork, public ::testing::WithParamInterface<bool> {
 protected:
  // Until then the gang answers every request, or none.
  void go_on_for(Duration time, bool answers) {
    for (const Instant until = now_ + time; now_ < until;) {
      const std::optional<Instant> deadline = next_deadline(*state_);
      now_ = std::max(now_ + 1, std::min(deadline.value_or(until), until));
      for (const Action& action : step(*state_, Tick{}, now_)) {
        const auto* drop = std::get_if<SendDrop>(&action);
        if (drop == nullptr || drop->client > 2 || !answers) continue;
        if (drop->client == 1) feed(DrainFailed{1, drop->grant});
        if (drop->client == 2) feed(Drained{2, drop->grant, drop->attempt});
      }
      ASSERT_EQ(check_invariants(*state_), std::nullopt);
    }
  }
};

TEST_P(GangOverstays, ForLongAndComesLast) {
  for (const ClientId client : {1, 2})
    feed(ClientJoined{client, static_cast<GpuId>(client), 100, 0, {900 * kGiB, 900 * kGiB, 0}, true, true, false});
  feed(ClientJoined{3, 1, 200, 0, {900 * kGiB, 0, 0}, true, false, true});
  ASSERT_EQ(gang_gpus(1), 2U);
  go_on_for(kGangOverstayMost / 2, GetParam());
  EXPECT_GT(state_->find(1)->totals.drops, 0U);
  EXPECT_FALSE(state_->find(1)->drain.overstay.too_long) << "drains of gangs may fail for a while";
  go_on_for(kGangOverstayMost, GetParam());
  EXPECT_TRUE(state_->find(1)->drain.overstay.too_long);
}

INSTANTIATE_TEST_SUITE_P(AnswersOrNot, GangOverstays, ::testing::Bool());

}  // namespace
}  // namespace nvshare::policy
