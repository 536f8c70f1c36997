#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace nvshare {
namespace {

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Shared {
  Mutex mutex;
  Condition changed;
  int count GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, OneThreadAtATimeHasIt) {
  Shared shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 10'000; ++j) {
        Lock lock(shared.mutex);
        ++shared.count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Lock lock(shared.mutex);
  EXPECT_EQ(shared.count, 40'000);
}

TEST(MutexTest, LockGivesItBackOnceAndNoMore) {
  Mutex mutex;
  {
    Lock lock(mutex);
    lock.unlock();
    ASSERT_TRUE(mutex.try_lock());
    mutex.unlock();
    lock.lock();
    std::thread([&] { EXPECT_FALSE(mutex.try_lock()); }).join();
    lock.unlock();
    ASSERT_TRUE(mutex.try_lock());  // and the end of `lock` leaves it so
  }
  std::thread([&] { EXPECT_FALSE(mutex.try_lock()); }).join();
  mutex.unlock();
}

TEST(ConditionTest, WaitsUntilThePredicateHolds) {
  Shared shared;
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      {
        Lock lock(shared.mutex);
        ++shared.count;
      }
      shared.changed.notify_one();
    }
  });
  {
    Lock lock(shared.mutex);
    shared.changed.wait(shared.mutex, [&]() REQUIRES(shared.mutex) { return shared.count == 3; });
    EXPECT_EQ(shared.count, 3);
  }
  other.join();
}

TEST(ConditionTest, NotifyAllWakesEveryOne) {
  Shared shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Lock lock(shared.mutex);
      shared.changed.wait(shared.mutex, [&]() REQUIRES(shared.mutex) { return shared.count > 0; });
    });
  }
  {
    Lock lock(shared.mutex);
    shared.count = 1;
  }
  shared.changed.notify_all();
  for (std::thread& thread : threads) thread.join();
}

TEST(ConditionTest, ADeadlineIsOfTheSteadyClockAndPasses) {
  Shared shared;
  Lock lock(shared.mutex);
  const int64_t deadline = steady_ns() + 20'000'000;
  EXPECT_FALSE(shared.changed.wait_until(shared.mutex, deadline, [] { return false; }));
  EXPECT_GE(steady_ns(), deadline);
  const int64_t before = steady_ns();
  EXPECT_FALSE(shared.changed.wait_for(shared.mutex, 20'000'000, [] { return false; }));
  EXPECT_GE(steady_ns() - before, 20'000'000);
}

TEST(ConditionTest, WhatHoldsAtTheDeadlineCounts) {
  Shared shared;
  Lock lock(shared.mutex);
  int asked = 0;
  EXPECT_TRUE(shared.changed.wait_until(shared.mutex, 1, [&] { return ++asked == 2; }));  // long past
  EXPECT_TRUE(shared.changed.wait_for(shared.mutex, 0, [] { return true; }));
}

TEST(ConditionTest, ForEverIsNotPast) {
  Shared shared;
  std::thread other([&] {
    {
      Lock lock(shared.mutex);
      shared.count = 1;
    }
    shared.changed.notify_one();
  });
  {
    Lock lock(shared.mutex);
    const auto is_there = [&]() REQUIRES(shared.mutex) { return shared.count == 1; };
    EXPECT_TRUE(shared.changed.wait_for(shared.mutex, INT64_MAX, is_there));
  }
  other.join();
}

}  // namespace
}  // namespace nvshare
