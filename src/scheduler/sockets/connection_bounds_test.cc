#include "scheduler/sockets/connection_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

Accountable of_tenant(const std::string& name, int process = 0) { return {"cgroup " + name, "", "process " + std::to_string(process)}; }

TEST(AccountableFor, ContainersAndPodsCountForThemselvesWhateverTheirUser) {
  const auto pod =
      accountable_for({}, "0::/kubepods.slice/kubepods-pod0b4ee8e4_1ea4_4dd2_b0b1_33b9b2ee0a0f.slice/cri-containerd-x.scope\n", 1000, 7, 9);
  EXPECT_EQ(pod.tenant, "cgroup /kubepods.slice/kubepods-pod0b4ee8e4_1ea4_4dd2_b0b1_33b9b2ee0a0f.slice");
  EXPECT_EQ(pod.user, "") << "pods of different owners run as the same number";
  EXPECT_EQ(pod.process, "process 7:9");
}

TEST(AccountableFor, WhatAUserMakesBelowItsOwnSliceCountsForTheUser) {
  for (const char* below : {"session-3.scope", "user@1000.service/app.slice/a.service", "user@1000.service/app.slice/b.scope",
                            "user@1000.service/user.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope"}) {
    const auto whose = accountable_for({}, std::string("0::/user.slice/user-1000.slice/") + below + "\n", 0, 7, 9);
    EXPECT_EQ(whose.user, "user 1000") << below << ": also what is setuid";
    EXPECT_EQ(whose.tenant, "") << below;
  }
}

TEST(AccountableFor, SystemUnitsCountAndSoDoTheirUsersButNotRoot) {
  const auto unit = accountable_for({}, "0::/system.slice/train.service\n", 1001, 7, 9);
  EXPECT_EQ(unit.tenant, "cgroup /system.slice/train.service");
  EXPECT_EQ(unit.user, "user 1001");
  EXPECT_EQ(accountable_for({}, "0::/system.slice/train.service/user-1002.slice\n", 0, 7, 9).user, "")
      << "the unit's own folder names nobody";
  const auto root = accountable_for({}, "0::/\n", 0, 7, 9);
  EXPECT_EQ(root.tenant + root.user, "");
  EXPECT_EQ(accountable_for({}, "", 1001, 0, 0).user, "user 1001");
  EXPECT_EQ(accountable_for({}, "", 1001, 0, 0).process, "") << "one that this PID namespace does not show";
}

TEST(ConnectionBounds, ATenantsConnectionsAreBoundedAndOthersAreNot) {
  ConnectionBounds bounds({3, 100, 2000});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(bounds.admit(id, of_tenant("a", static_cast<int>(id)), 0));
  const auto refused = bounds.admit(4, of_tenant("a"), 0);
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("up to 3, see NVSHARE_CONNECTIONS_PER_TENANT"), std::string::npos)
      << refused.error().text;
  EXPECT_TRUE(bounds.admit(4, of_tenant("b"), 0));
  bounds.left(2);
  EXPECT_TRUE(bounds.admit(5, of_tenant("a"), 0));
  EXPECT_EQ(bounds.count(), 4);
  EXPECT_EQ(bounds.refused(), 1u);
}

TEST(ConnectionBounds, AProcessIsBoundedInATenantOfMany) {
  ConnectionBounds bounds({100'000, 100'000, 200'000});
  uint64_t id = 0;
  while (bounds.admit(++id, of_tenant("a", 1), 0)) ASSERT_LE(id, 10'000u);
  EXPECT_EQ(static_cast<int64_t>(id), bounds::kConnectionsPerProcess + 1);
  EXPECT_TRUE(bounds.admit(id, of_tenant("a", 2), 0));
}

// An attacker's processes, one connection each: each takes two descriptors.
TEST(ConnectionBounds, HostileTenantsLeaveRoomForThoseThatHaveFew) {
  ConnectionBounds bounds({10'000, 10'000, 8000});
  uint64_t id = 0;
  for (int process = 0; bounds.admit(++id, of_tenant("greedy", process), 0); ++process) ASSERT_LE(id, 10'000u);
  EXPECT_EQ(bounds.count(), 3000) << "a quarter is left";
  EXPECT_EQ(bounds.descriptors(), 6000);
  for (int i = 0; i < bounds::kConnectionsWhenCrowded; ++i) ASSERT_TRUE(bounds.admit(++id, of_tenant("modest", 10'000 + i), 0));
  EXPECT_FALSE(bounds.admit(++id, of_tenant("modest"), 0));
  EXPECT_TRUE(bounds.admit(++id, of_tenant("other", 20'000), 0));
}

// As many as take two, whoever they are of; of what nobody sees each connection is one.
TEST(ConnectionBounds, ProcessesWithOneConnectionEachFillHalfOfTheDescriptors) {
  for (const bool seen : {true, false}) {
    ConnectionBounds bounds({10'000, 10'000, 401});
    uint64_t id = 0;
    const auto whose = [&] { return Accountable{"", "", seen ? "process " + std::to_string(id) : ""}; };
    while (bounds.admit(++id, whose(), 0)) ASSERT_LE(id, 1000u);
    EXPECT_EQ(bounds.count(), 200);
    EXPECT_EQ(bounds.descriptors(), 400);
    const auto refused = bounds.admit(id, whose(), 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(std::string(refused.error().text),
              "the scheduler has 200 connections of 200 processes, as many as its limit of open files allows (LimitNOFILE)");
    if (seen) {
      EXPECT_TRUE(bounds.admit(id, {"", "", "process 7"}, 0)) << "one that is there takes only a socket more";
    }
  }
}

// What is counted is what is taken, and never more than may be, however processes come and go.
TEST(ConnectionBounds, ConnectionsOfOneProcessTakeOneDescriptorMoreTogether) {
  constexpr int64_t kMost = 300;
  ConnectionBounds bounds({10'000, 10'000, kMost});
  std::mt19937 random(7);
  std::map<uint64_t, int> connections;  // and the process of each
  uint64_t next = 0;
  int64_t most = 0, refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    const bool grows = step / 2000 % 2 == 0;
    if (random() % 10 < (grows ? 9 : 2)) {
      const int process = static_cast<int>(random() % 150);
      if (bounds.admit(++next, {"", "", "process " + std::to_string(process)}, 0)) {
        connections.emplace(next, process);
      } else {
        ++refused;
      }
    } else if (!connections.empty()) {
      const auto gone = std::next(connections.begin(), static_cast<long>(random() % connections.size()));
      bounds.left(gone->first);
      connections.erase(gone);
    }
    std::set<int> processes;
    for (const auto& [id, process] : connections) processes.insert(process);
    ASSERT_EQ(bounds.descriptors(), static_cast<int64_t>(connections.size() + processes.size()));
    most = std::max(most, bounds.descriptors());
  }
  EXPECT_EQ(most, kMost) << "all of them are used";
  EXPECT_GT(refused, 100);
}

TEST(ConnectionBounds, ReadingPausesBeyondTheRateAndGoesOn) {
  ConnectionBounds bounds({10, 10, 100});
  ASSERT_TRUE(bounds.admit(1, of_tenant("a", 1), 0));
  int64_t read = 0;
  policy::Instant now = 0;
  for (; now < 10 * kSecond; now += 100'000) {
    for (int i = 0; i < 100; ++i) {  // as fast as a million a second
      if (bounds.wait(1, now) > 0) break;
      bounds.charge(1, 1);
      ++read;
    }
  }
  EXPECT_NEAR(static_cast<double>(read), bounds::kMessageBurst + 10 * bounds::kMessagesPerSecond, 200);
  EXPECT_GT(bounds.reads_paused(), 0u);
  const policy::Duration wait = bounds.wait(1, now);
  EXPECT_EQ(bounds.wait(1, now + wait), 0) << "not longer than it says";
}

TEST(ConnectionBounds, AnHonestProgramIsNeverPaused) {
  ConnectionBounds bounds({10, 10, 100});
  ASSERT_TRUE(bounds.admit(1, of_tenant("a", 1), 0));
  // A request and its answer every 60 us, without end.
  for (policy::Instant now = 0; now < 20 * kSecond; now += 60'000) {
    ASSERT_EQ(bounds.wait(1, now), 0) << now;
    bounds.charge(1, 1);
  }
}

TEST(ConnectionBounds, ATenantWithManyConnectionsHasNoMoreForEach) {
  ConnectionBounds bounds({1000, 10, 2000});
  for (uint64_t id = 1; id <= 500; ++id) ASSERT_TRUE(bounds.admit(id, of_tenant("a", static_cast<int>(id)), 0));
  int64_t read = 0;
  for (policy::Instant now = 0; now < kSecond; now += 1'000'000) {
    for (uint64_t id = 1; id <= 500; ++id) {
      if (bounds.wait(id, now) > 0) continue;
      bounds.charge(id, 1);
      ++read;
    }
  }
  EXPECT_NEAR(static_cast<double>(read), bounds::kTenantMessageBurst + bounds::kTenantMessagesPerSecond, 500);
  ASSERT_TRUE(bounds.admit(501, of_tenant("b"), kSecond));
  EXPECT_EQ(bounds.wait(501, kSecond), 0) << "another tenant";
}

TEST(ConnectionBounds, AProcessThatConnectsAgainAndAgainIsTurnedAway) {
  ConnectionBounds bounds({10, 10, 100});
  int64_t let_in = 0;
  for (policy::Instant now = 0; now < 10 * kSecond; now += 50'000) let_in += bounds.may_connect(7, now) ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(let_in), bounds::kConnectBurst + 10 * bounds::kConnectsPerSecond, 10);
  EXPECT_GT(bounds.refused(), 0u);
  EXPECT_TRUE(bounds.may_connect(8, 10 * kSecond)) << "another process";
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(bounds.may_connect(0, 10 * kSecond)) << "it could be anybody's";
}

TEST(ConnectionBounds, ComingBackGainsNothing) {
  ConnectionBounds bounds({10, 10, 100});
  policy::Instant now = 0;
  int64_t read = 0;
  for (uint64_t id = 1; id <= 100; ++id, now += 1000) {
    ASSERT_TRUE(bounds.admit(id, of_tenant("a", 1), now));
    for (int i = 0; i < 10'000 && bounds.wait(id, now) == 0; ++i, ++read) bounds.charge(id, 1);
    bounds.left(id);
  }
  EXPECT_LE(read, bounds::kTenantMessageBurst + 100);
}

TEST(ConnectionBounds, ACostlyMessageCountsAsMany) {
  EXPECT_EQ(cost_of(0), 1);
  EXPECT_EQ(cost_of(100 * bounds::kMessageTimeNs), 101);
  ConnectionBounds bounds({10, 10, 100});
  ASSERT_TRUE(bounds.admit(1, of_tenant("a", 1), 0));
  int read = 0;
  for (; bounds.wait(1, 0) == 0; ++read) bounds.charge(1, cost_of(1'000'000));
  EXPECT_LE(read, bounds::kMessageBurst / 100 + 1);
}

// docs/security.md is written by hand, the values are not.
TEST(Bounds, TheDocumentShowsEachWithItsValue) {
  std::ifstream stream(SECURITY_DOCUMENT);
  std::ostringstream text;
  text << stream.rdbuf();
  for (const bounds::Bound& bound : bounds::kTable) {
    const std::string row = std::string("| ") + bound.name + " | " + std::to_string(bound.value) + " | " +
                            (bound.setting != nullptr ? std::string("`") + bound.setting + "`" : "") + " | " + bound.why + " |";
    EXPECT_NE(text.str().find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace nvshare::scheduler
