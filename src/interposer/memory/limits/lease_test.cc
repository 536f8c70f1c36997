// What a process may charge without asking: nothing goes below zero, and threads that race never both get the last bytes.
#include "interposer/memory/limits/lease.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace nvshare::interposer {
namespace {

TEST(Lease, WhatIsChargedComesOutOfWhatIsLeft) {
  Lease lease;
  EXPECT_FALSE(lease.charge(1)) << "there is nothing yet";
  lease.grow(100);
  EXPECT_FALSE(lease.charge(101));
  EXPECT_EQ(lease.left(), 100u) << "a refusal charges nothing";
  EXPECT_TRUE(lease.charge(100));
  EXPECT_EQ(lease.left(), 0u);
  EXPECT_FALSE(lease.charge(1));
  lease.refund(60);
  EXPECT_EQ(lease.charged(), 40u);
  EXPECT_EQ(lease.left(), 60u);
  EXPECT_EQ(lease.leased(), 100u);
}

TEST(Lease, NothingGoesBelowZero) {
  Lease lease;
  lease.grow(100);
  ASSERT_TRUE(lease.charge(30));
  lease.refund(70);  // more than was charged
  EXPECT_EQ(lease.charged(), 0u);
  EXPECT_EQ(lease.left(), 100u) << "no more than there was";
  lease.refund(1);
  EXPECT_EQ(lease.charged(), 0u);
  EXPECT_EQ(lease.left(), 100u);
  EXPECT_EQ(lease.give_back(1000), 100u);
  EXPECT_EQ(lease.left(), 0u);
  EXPECT_EQ(lease.leased(), 0u);
  EXPECT_EQ(lease.take(5), 5u) << "what cannot be refused makes it grow";
  EXPECT_EQ(lease.charged(), 5u);
  EXPECT_EQ(lease.leased(), 5u);
}

TEST(Lease, ThreadsThatRaceNeverHaveMoreThanThereIs) {
  constexpr uint64_t kLeased = 1000;
  Lease lease;
  lease.grow(kLeased);
  std::atomic<uint64_t> held{0}, most{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 20'000; ++i) {
        const uint64_t bytes = 1 + (i * 7 + thread * 131) % 600;
        if (!lease.charge(bytes)) continue;
        const uint64_t now = held.fetch_add(bytes) + bytes;
        for (uint64_t seen = most.load(); now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        held.fetch_sub(bytes);
        lease.refund(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), kLeased);
  EXPECT_GT(most.load(), 0u);
  EXPECT_EQ(lease.charged(), 0u);
  EXPECT_EQ(lease.left(), kLeased);
}

}  // namespace
}  // namespace nvshare::interposer
