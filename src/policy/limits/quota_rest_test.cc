// Limits rest in steps that bring nothing but news of memory: what such a step changes all the same is billed from then on.
#include <gtest/gtest.h>

#include <map>

#include "policy/parts.h"
#include "policy/policy.h"

namespace nvshare::policy {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Duration kMsec = 1'000'000;

// A runs with 4 GiB of 10, B waits with 2 that cannot move, because a dead client's 3 are still there.
class LimitsRest : public ::testing::Test {
 protected:
  LimitsRest() {
    Config config;
    config.scheduling_mode = mode_named("weighted");
    state_ = make_state(config);
    take(GpuAppeared{0, 10240 * kMiB});
    take(ComputeLimit{1, 60});
    take(ClientJoined{1, 0, 1, 0, {4096 * kMiB, 4096 * kMiB, 0}, true, false, false});
    take(LockRequested{1});
    take(MemoryHeld{9, 0, 3072 * kMiB});
    take(ClientJoined{2, 0, 2, 0, {2048 * kMiB, 2048 * kMiB, 0}, false, false, false});
    take(LockRequested{2});
  }

  void take(const Event& event) {
    for (const Action& action : step(*state_, event, now_)) {
      if (const auto* lock = std::get_if<SendLock>(&action)) locks_.insert_or_assign(lock->client, *lock);
    }
    EXPECT_EQ(check_invariants(*state_), std::nullopt);
  }

  void a_has(Bytes bytes) { take(MemoryChanged{1, {bytes, bytes, 0}, bytes, locks_.at(1).budget_sequence, 0, 0}); }

  Duration billed(TenantId tenant) { return view_of_tenant(*state_, 0, tenant, now_).tenants.at(0).used; }

  Instant now_ = 1'000'000 * kMsec;
  StatePointer state_;
  std::map<ClientId, SendLock> locks_;
};

TEST_F(LimitsRest, AClientThatNewsOfMemoryLetsInIsBilledFromThenOn) {
  ASSERT_FALSE(locks_.contains(2));
  now_ += 20 * kMsec;
  a_has(2048 * kMiB);
  ASSERT_TRUE(locks_.contains(2));
  EXPECT_EQ(billed(2), 0);
  EXPECT_EQ(billed(1), 20 * kMsec) << "it ran alone until then";
  now_ += 10 * kMsec;
  take(LockReleased{2, locks_.at(2).grant, {2048 * kMiB, 2048 * kMiB, 0}, true, 0, std::nullopt});
  EXPECT_EQ(billed(2), 5 * kMsec) << "half of the time in which both ran";
  EXPECT_EQ(billed(1), 25 * kMsec);
}

TEST_F(LimitsRest, NewsThatChangeNothingAreBilledWithTheNextStep) {
  for (int i = 0; i < 10; ++i) {
    now_ += kMsec;
    a_has(4096 * kMiB - i * kMiB);
  }
  EXPECT_EQ(billed(1), 0) << "nothing asked for it";
  take(LockRequested{1});
  EXPECT_EQ(billed(1), 10 * kMsec);
  for (int i = 0; i < 100; ++i) {
    now_ += kMsec;
    a_has(4096 * kMiB - i * kMiB);
  }
  EXPECT_GE(billed(1), 60 * kMsec) << "limits rest for 50 ms at most";
}

}  // namespace
}  // namespace nvshare::policy
