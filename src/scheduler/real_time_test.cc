// In processes of their own: signals, limits and priorities are a process's.
#include "scheduler/real_time.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace nvshare::scheduler {
namespace {

constexpr uid_t kNobody = 65534;

int policy_of_this_thread() { return sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; }

bool may_be_real_time() {
  const sched_param priority{1};
  if (sched_setscheduler(0, SCHED_RR, &priority) != 0) return false;
  const sched_param none{0};
  sched_setscheduler(0, SCHED_OTHER, &none);
  return true;
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

// Until that is so, or for ten seconds.
template <typename Holds>
bool wait_on(EventLoop& loop, const Holds& holds) {
  const int64_t until = monotonic_ns() + 10'000'000'000;
  bool is_so = false;
  Timer look(loop, [&] {
    is_so = holds();
    is_so || monotonic_ns() > until ? loop.stop() : look.arm(monotonic_ns() + 10'000'000);
  });
  look.arm(monotonic_ns());
  loop.run();
  return is_so;
}

void never_pause(bool (*until)()) {
  const int64_t began = monotonic_ns();
  while (!until() && monotonic_ns() - began < 10'000'000'000) {
  }
}

TEST(RealTime, IsOneThreadsAndEnds) {
  if (!may_be_real_time()) GTEST_SKIP() << "no real-time priority here";
  EXPECT_EXIT(
      {
        EventLoop loop;
        auto real_time = RealTime::begin(loop);
        check(bool{real_time}, "it is allowed");
        check(policy_of_this_thread() == SCHED_OTHER, "its thread is ordinary until it is needed");
        (*real_time)->needed();
        check(policy_of_this_thread() == SCHED_RR, "then it is real-time");
        std::thread([] { check(policy_of_this_thread() == SCHED_OTHER, "a thread that it makes is ordinary"); }).join();
        real_time->reset();
        check(policy_of_this_thread() == SCHED_OTHER, "it is ordinary at the end");
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(RealTime, EndsWhenItIsNoLongerNeeded) {
  if (!may_be_real_time()) GTEST_SKIP() << "no real-time priority here";
  EXPECT_EXIT(
      {
        EventLoop loop;
        auto real_time = RealTime::begin(loop, 50'000'000);
        check(bool{real_time}, "it is allowed");
        (*real_time)->needed();
        check(policy_of_this_thread() == SCHED_RR, "it is real-time");
        check(wait_on(loop, [] { return policy_of_this_thread() == SCHED_OTHER; }), "it is ordinary again");
        (*real_time)->needed();
        check(policy_of_this_thread() == SCHED_RR, "and real-time the next time");
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(RealTime, WhatNeverPausesIsOrdinaryForAWhile) {
  if (!may_be_real_time()) GTEST_SKIP() << "no real-time priority here";
  EXPECT_EXIT(
      {
        EventLoop loop;
        auto real_time = RealTime::begin(loop);
        check(bool{real_time}, "it is allowed");
        (*real_time)->needed();
        int times = 0;
        const auto twice = [&times] {
          if (policy_of_this_thread() != SCHED_RR) return false;
          if (times == 2) return true;
          never_pause([] { return policy_of_this_thread() == SCHED_OTHER; });
          check(policy_of_this_thread() == SCHED_OTHER, "it gives way in the middle of a loop without a pause");
          ++times;
          return false;
        };
        check(wait_on(loop, twice), "it is real-time again each time");
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

void use_processor_for(int64_t ns) {
  const auto used_ns = [] {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
  };
  const int64_t until = used_ns() + ns;
  while (used_ns() < until) {
  }
}

TEST(RealTime, IsNotHeldToTheTimeInARowOfBefore) {
  if (!may_be_real_time()) GTEST_SKIP() << "no real-time priority here";
  EXPECT_EXIT(
      {
        constexpr int64_t kMostOfItNs = RealTime::kInARowUs * 1'000 * 2 / 3;
        EventLoop loop;
        for (int times = 0; times < 2; ++times) {
          auto real_time = RealTime::begin(loop);
          check(bool{real_time}, "it is allowed");
          (*real_time)->needed();
          use_processor_for(kMostOfItNs);
          check(policy_of_this_thread() == SCHED_RR, "it is real-time until it has been busy for so long since it became so");
        }
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(RealTime, WhereItIsNotAllowedAllIsAsBefore) {
  EXPECT_EXIT(
      {
        const rlimit none = {};
        setrlimit(RLIMIT_RTPRIO, &none);
        check(getuid() != 0 || setresuid(kNobody, kNobody, kNobody) == 0, "it can be a user without rights");
        EventLoop loop;
        auto real_time = RealTime::begin(loop);
        check(!real_time, "it is refused");
        check(std::strstr(real_time.error().text, "Operation not permitted") != nullptr, "and says why");
        check(policy_of_this_thread() == SCHED_OTHER, "it is ordinary");
        check(wait_on(loop, [] { return true; }), "its loop runs");
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(RealTime, IsNoneWhereTheKernelWouldEndIt) {
  EXPECT_EXIT(
      {
        rlimit soon = {};
        soon.rlim_cur = soon.rlim_max = RealTime::kInARowUs;
        setrlimit(RLIMIT_RTTIME, &soon);
        EventLoop loop;
        auto real_time = RealTime::begin(loop);
        check(!real_time && std::strstr(real_time.error().text, "RLIMIT_RTTIME") != nullptr, "the limit is named");
        check(policy_of_this_thread() == SCHED_OTHER, "it is ordinary");
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace nvshare::scheduler
