// Gangs under compute limits of which a member cannot end its work: in the middle of a capture, say, which waits for another GPU.
#include "policy/state.h"
#include "policy/testing/test_step.h"

namespace nvshare::policy {
namespace {

// Client 1 of tenant 7 has a turn on GPU 0 and drains only once client 2 has had one on GPU 1. Both are one process, or two.
class GangThatIsStuck : public Step, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr Duration kDrain = 5 * kSec;  // what the library waits for work to end

  GangThatIsStuck() {
    feed(GpuAppeared{1, 16 * kGiB});
    feed(ComputeLimit{7, 20});
  }

  void come(ClientId client, GpuId gpu_id, bool wants) {
    feed(ClientJoined{.client = client,
                      .gpu = gpu_id,
                      .tenant = 7,
                      .priority = 0,
                      .memory = {kGiB, 0, 0},
                      .swappable = true,
                      .has_lock = false,
                      .wants_lock = wants,
                      .process = GetParam() ? client : 1});
    if (wants) load(client, kGiB);
  }

  // Until `client` hears that of a kind, at most for so long.
  template <typename Wanted>
  std::optional<Wanted> wait_for(ClientId client, Duration time) {
    for (const Instant end = now + time; now < end; now += kSec / 100) {
      if (const auto found = find<Wanted>(feed(Tick{}), client)) return found;
    }
    return std::nullopt;
  }
};

// Else it waits for ever: client 1 is billed for what only client 2 can end (simulation, seeds 2620001856 and 212960085).
TEST_P(GangThatIsStuck, HasTheOtherGpuWhateverItsLimit) {
  come(1, 0, true);
  come(2, 1, false);
  ASSERT_TRUE(wait_for<SendDrop>(1, 10 * kSec));
  EXPECT_FALSE(find<SendLock>(feed(LockRequested{2}), 2));
  EXPECT_FALSE(wait_for<SendLock>(2, kDrain)) << "nobody knows yet that it is stuck";
  EXPECT_TRUE(find<SendLock>(feed(DrainFailed{1, grants[1]}), 2));
}

// Here the tenant owes on both GPUs.
TEST_P(GangThatIsStuck, MayUseItUntilItIsAskedAgain) {
  come(1, 0, true);
  come(2, 1, true);
  const auto drop = wait_for<SendDrop>(2, 10 * kSec);
  ASSERT_TRUE(drop);
  feed(LockReleased{2, drop->grant, {kGiB, kGiB, 0}, true});  // it had nothing to do
  feed(LockRequested{2});
  EXPECT_FALSE(wait_for<SendLock>(2, kDrain));
  Actions actions = feed(DrainFailed{1, grants[1]});
  ASSERT_TRUE(find<SendLock>(actions, 2));
  load(2, kGiB);
  const Instant began = now;
  EXPECT_TRUE(wait_for<SendDrop>(2, kSec * 60));
  EXPECT_GE(now - began, kDrain);
}

INSTANTIATE_TEST_SUITE_P(OneProcessOrTwo, GangThatIsStuck, ::testing::Bool());

}  // namespace
}  // namespace nvshare::policy
