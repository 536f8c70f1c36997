#include "scheduler/gpus/user_jobs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace nvshare::scheduler {
namespace {

constexpr std::chrono::seconds kJobsEndWithin{20};

// One thread made all: who made his daemon answer slowly held up everybody's.
TEST(UserJobs, OneUsersWaitHoldsUpNobodyElse) {
  std::promise<void> may_end, begun;
  const std::shared_future<void> end = may_end.get_future().share();
  UserJobs jobs(3);
  jobs.later(1, [&begun, end] {
    begun.set_value();
    end.wait();
  });
  ASSERT_EQ(begun.get_future().wait_for(kJobsEndWithin), std::future_status::ready);
  for (const uid_t user : {2, 3, 2}) {
    std::promise<void> done;
    jobs.later(user, [&done] { done.set_value(); });
    EXPECT_EQ(done.get_future().wait_for(kJobsEndWithin), std::future_status::ready) << user;
  }
  may_end.set_value();
}

TEST(UserJobs, ThoseOfOneUserRunInOrderAndNeverAtTheSameTime) {
  std::vector<int> order;  // of one user: no lock
  std::promise<void> all;
  UserJobs jobs(8);
  for (int i = 0; i < 1000; ++i) {
    jobs.later(1, [&order, i] { order.push_back(i); });
    jobs.later(2, [] {});
  }
  jobs.later(1, [&all] { all.set_value(); });
  ASSERT_EQ(all.get_future().wait_for(kJobsEndWithin), std::future_status::ready);
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(UserJobs, AtTheEndWhatRunsIsWaitedForAndTheRestDropped) {
  std::promise<void> begun;
  bool ended = false;
  auto dropped = std::make_shared<int>();
  {
    UserJobs jobs(1);
    jobs.later(1, [&] {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ended = true;
    });
    begun.get_future().wait();
    for (int i = 0; i < 10; ++i) jobs.later(1, [dropped] { ++*dropped; });
    jobs.end();
    jobs.later(1, [dropped] { ++*dropped; });
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(*dropped, 0);
  EXPECT_EQ(dropped.use_count(), 1);
}

TEST(UserJobs, FinishWaitsForAll) {
  std::atomic<int> done = 0;
  UserJobs jobs(4);
  jobs.finish();
  for (int i = 0; i < 40; ++i) {
    jobs.later(static_cast<uid_t>(i % 7), [&done] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++done;
    });
  }
  jobs.finish();
  EXPECT_EQ(done, 40);
}

// Its error is the scheduler's log's, and the next runs.
TEST(UserJobs, AJobThatThrowsEndsNothing) {
  std::promise<void> done;
  UserJobs jobs(1);
  jobs.later(1, [] { throw std::runtime_error("a job failed"); });
  jobs.later(1, [&done] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(kJobsEndWithin), std::future_status::ready);
}

}  // namespace
}  // namespace nvshare::scheduler
