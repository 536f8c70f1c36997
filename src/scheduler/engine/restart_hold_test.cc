#include "scheduler/engine/restart_hold.h"

#include <gtest/gtest.h>

namespace nvshare::scheduler {
namespace {

policy::MemoryChanged change(policy::ClientId client, int64_t allocated, int64_t wanted) {
  policy::MemoryChanged event;
  event.client = client;
  event.memory.allocated = allocated;
  event.wanted = wanted;
  return event;
}

struct Held : testing::Test {
  Held() { hold.begin(100); }
  RestartHold hold;
};

TEST_F(Held, HoldsFromItsBeginToItsEnd) {
  EXPECT_TRUE(hold.holds());
  EXPECT_EQ(hold.until(), 100);
  hold.end();
  EXPECT_FALSE(hold.holds());
  EXPECT_FALSE(hold.until());
}

TEST_F(Held, RequestsComeOutInTheirOrder) {
  for (const policy::ClientId client : {7, 3, 5}) hold.request_lock(client);
  EXPECT_EQ(hold.end().lock_requests, (std::vector<policy::ClientId>{7, 3, 5}));
  EXPECT_TRUE(hold.end().lock_requests.empty()) << "once";
}

TEST_F(Held, WhatAClientHasCountsAtOnceAndWhatItWantsWaits) {
  const policy::MemoryChanged now = hold.change_memory(change(1, 10, 5));
  EXPECT_EQ(now.memory.allocated, 10);
  EXPECT_EQ(now.wanted, 0);
  const RestartHold::Held held = hold.end();
  ASSERT_EQ(held.growths.size(), 1u);
  EXPECT_EQ(held.growths.at(1).wanted, 5);
}

TEST_F(Held, TheLastThatAClientWantsCounts) {
  hold.change_memory(change(1, 10, 5));
  hold.change_memory(change(1, 10, 6));
  hold.change_memory(change(2, 10, 7));
  hold.change_memory(change(2, 10, 0));  // gave up
  const RestartHold::Held held = hold.end();
  ASSERT_EQ(held.growths.size(), 1u);
  EXPECT_EQ(held.growths.at(1).wanted, 6);
}

TEST_F(Held, WhoLeavesWantsNothing) {
  for (const policy::ClientId client : {1, 2}) {
    hold.request_lock(client);
    hold.change_memory(change(client, 10, 5));
  }
  hold.client_left(1);
  const RestartHold::Held held = hold.end();
  EXPECT_EQ(held.lock_requests, (std::vector<policy::ClientId>{2}));
  EXPECT_FALSE(held.growths.contains(1));
  EXPECT_TRUE(held.growths.contains(2));
}

}  // namespace
}  // namespace nvshare::scheduler
