// Memory that clients left behind, without an engine: what the policy is to hear of it.
#include "scheduler/clients/departures.h"

#include <gtest/gtest.h>

#include <set>
#include <variant>

#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

class DeparturesTest : public testing::Test {
 protected:
  // Of process 100 + id, on GPU 0.
  static LeftClient left(policy::ClientId id, bool waits_for_end) {
    LeftClient client;
    client.pid = 100 + static_cast<pid_t>(id);
    client.start_time = 1;
    client.since = now_;
    client.allocated = kGiB;
    client.waits_for_end = waits_for_end;
    return client;
  }
  static DepartedClient watched(policy::ClientId id) { return {100 + static_cast<pid_t>(id), 0, now_, kGiB, kGiB, now_, now_}; }
  static std::set<policy::ClientId> freed(const std::vector<policy::Event>& events) {
    std::set<policy::ClientId> ids;
    for (const policy::Event& event : events) {
      if (const auto* memory = std::get_if<policy::ClientMemoryFreed>(&event)) ids.insert(memory->client);
    }
    return ids;
  }
  std::vector<policy::Event> sampled(int64_t used, const std::vector<ProcessMemory>& processes) {
    GpuSample sample;
    sample.taken_at = now_ + kSecond;
    sample.used_before = sample.used_after = used;
    sample.processes = processes;
    return departures_.sampled(0, sample, 0, sees_pids_, Clients(), config_, now_ + kSecond);
  }

  static constexpr policy::Duration kSecond = 1'000'000'000;
  static constexpr policy::Instant now_ = 1000 * kSecond;
  policy::Config config_;
  KnownClients known_{""};
  std::set<pid_t> alive_;
  bool sees_pids_ = true;
  Departures departures_{known_, [this](pid_t pid, uint64_t) { return alive_.contains(pid); }};
};

TEST_F(DeparturesTest, WhatAProcessLeftIsItsOwnWhenItComesBack) {
  departures_.add(1, left(1, true));
  departures_.watch(1, watched(1));
  departures_.add(2, left(2, true));
  Peer peer;
  peer.pid = 101;
  peer.start_time = 1;
  std::vector<policy::ClientId> replaced;
  EXPECT_FALSE(departures_.take(peer, 1, "GPU-1", &replaced)) << "that was on another GPU";
  const auto last = departures_.take(peer, 0, "GPU-0", &replaced);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->allocated, kGiB);
  EXPECT_EQ(replaced, std::vector<policy::ClientId>{1});
  EXPECT_FALSE(departures_.watches(0));
  EXPECT_FALSE(departures_.is_empty()) << "the other's end is awaited";
  EXPECT_FALSE(departures_.take(peer, 0, "GPU-0", &replaced)) << "once";
}

// In another PID namespace NVML names all processes by other numbers: what it lists may be what the departed has (simulation, seed
// 7200667475).
TEST_F(DeparturesTest, WhatNvmlListsByOtherNumbersMayBeTheDepartedsOwn) {
  sees_pids_ = false;
  departures_.watch(1, watched(1));
  EXPECT_TRUE(freed(sampled(kGiB, {{7, kGiB}})).empty());
  EXPECT_EQ(freed(sampled(0, {})), std::set<policy::ClientId>{1});
}

TEST_F(DeparturesTest, WhereNvmlWatchesMemoryIsFreeWhenItShowsItFree) {
  departures_.watch(1, watched(1));
  EXPECT_TRUE(freed(sampled(2 * kGiB, {{101, 2 * kGiB}})).empty()) << "it is listed";
  EXPECT_TRUE(freed(sampled(kGiB, {})).empty()) << "it is no longer listed, and its memory is still there";
  EXPECT_EQ(freed(sampled(0, {})), std::set<policy::ClientId>{1});
  EXPECT_TRUE(departures_.is_empty());
}

TEST_F(DeparturesTest, ElsewhereMemoryIsFreeSomeTimeAfterTheProcessHasEnded) {
  alive_ = {101};
  departures_.add(1, left(1, true));
  departures_.add(2, left(2, true));
  EXPECT_TRUE(departures_.look_up(config_, now_).empty()) << "the driver may not be done";
  const policy::Instant due = now_ + config_.departed_grace;
  EXPECT_EQ(departures_.next_deadline(config_), due);
  EXPECT_TRUE(departures_.deadline_reached(config_, due - 1).empty());
  EXPECT_EQ(freed(departures_.deadline_reached(config_, due)), std::set<policy::ClientId>{2});
  alive_.clear();
  EXPECT_EQ(freed(departures_.look_up(config_, due)), std::set<policy::ClientId>{1});
  EXPECT_TRUE(departures_.is_empty());
}

}  // namespace
}  // namespace nvshare::scheduler
