// For tests of single steps: a GPU, and what its clients are told.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <variant>

#include "policy/constants.h"
#include "policy/policy.h"

namespace nvshare::policy {

inline constexpr Bytes kGiB = 1LL << 30;
inline constexpr Duration kSec = 1'000'000'000;

struct Step : ::testing::Test {
  Step() : state(make_state(config)) { feed(GpuAppeared{0, 16 * kGiB}); }

  Actions feed(const Event& event) {
    Actions actions = step(*state, event, now);
    EXPECT_EQ(check_invariants(*state), std::nullopt);
    for (const Action& action : actions) {
      if (const auto* lock = std::get_if<SendLock>(&action)) grants[lock->client] = lock->grant;
    }
    return actions;
  }
  Actions join(ClientId client, Bytes allocated, bool wants_lock = false, Bytes resident = 0) {
    return feed(ClientJoined{client, 0, client, 0, {allocated, resident, 0}, true, false, wants_lock});
  }
  // The client has loaded what it was granted.
  void load(ClientId client, Bytes bytes) { feed(SwapProgressed{client, false, true, false, grants[client], 0, 0, {bytes, bytes, 0}}); }
  ClientView view_of(ClientId client) {
    const GpuView on = gpu();
    for (const ClientView& candidate : on.clients) {
      if (candidate.client == client) return candidate;
    }
    return {};
  }
  GpuView gpu() { return view(*state, now)[0]; }

  Config config;
  StatePointer state;
  Instant now = 100 * kSec;
  std::map<ClientId, GrantId> grants;  // the last of each
};

template <typename Wanted>
std::optional<Wanted> find(const Actions& actions, ClientId client) {
  for (const Action& action : actions) {
    if (const auto* wanted = std::get_if<Wanted>(&action); wanted && wanted->client == client) return *wanted;
  }
  return std::nullopt;
}

}  // namespace nvshare::policy
