// Which clients keep an older lock holder from ever fitting: Pressed answers for each of many that wait what the rule says of one.
#include <gtest/gtest.h>

#include <random>

#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

// Without the contexts and immovable bytes of those that came after it the older one would fit; beside the comer's, and beside those that
// came before the comer, it does not.
bool crowds_out(const Config& config, const Gpu& gpu, const Client& comer) {
  const auto takes = [&](const Client& client) {
    return immovable(client) + (config.memory_reserve_percent ? 0 : overhead_of(config, client));
  };
  for (const auto& [grant, older] : gpu.holders) {
    const Bytes most = ceiling(config, gpu, *older);
    if (need(*older) <= most || older->joined.order > comer.joined.order) continue;
    Bytes beside_comer = most, alone = most;
    for (const auto& [id, other] : gpu.clients) {
      if (other.joined.order > comer.joined.order) beside_comer += takes(other);
      if (other.joined.order > older->joined.order) alone += takes(other);
    }
    if (need(*older) > beside_comer && need(*older) <= alone) return true;
  }
  return false;
}

TEST(Crowding, EachComerIsJudgedByTheRule) {
  std::mt19937_64 random(18);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  int crowding = 0, harmless = 0;
  for (int run = 0; run < 200; ++run) {
    Config config;
    if (between(0, 3) == 0) config.memory_reserve_percent = 5;
    const StatePointer state = make_state(config);
    const auto steps = between(5, 60);
    Instant now = 1;
    step(*state, GpuAppeared{0, between(3, 12) * 1024 * kMiB}, now);
    for (ClientId id = 1; id <= static_cast<ClientId>(steps); ++id) {
      now += kMillisecond;
      const Bytes allocated = between(0, 3000) * kMiB, resident = between(0, 1) * allocated / 4;
      const ClientId named = between(0, 1) == 0 ? id : 1000 - id;  // ids say nothing about who came first
      step(*state,
           ClientJoined{named, 0, named, 0, {allocated, resident, between(0, 1) * resident}, between(0, 4) > 0, false, between(0, 2) > 0},
           now);
      if (between(0, 1) == 0) step(*state, LockRequested{named}, now);
      Gpu& gpu = state->gpus.at(0);
      const Pressed pressed(config, gpu);
      for (const auto& [comer_id, comer] : gpu.clients) {
        const bool crowds = crowds_out(config, gpu, comer);
        ASSERT_EQ(pressed.crowded_by(comer), crowds) << "run " << run << ", client " << comer_id << " of " << gpu.clients.size();
        ++(crowds ? crowding : harmless);
      }
    }
  }
  EXPECT_GT(crowding, 1000);
  EXPECT_GT(harmless, 1000);
}

}  // namespace
}  // namespace nvshare::policy
