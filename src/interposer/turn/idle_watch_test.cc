#include "interposer/turn/idle_watch.h"

#include <gtest/gtest.h>

#include <random>

namespace nvshare::interposer {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;

// A program that computes for `work_ns` and pauses for `pause_ns`, over and over, under a watch; getting the lock back takes back_ns.
struct Job {
  int64_t work_ns, pause_ns, back_ns;
  IdleWatch watch;
  int64_t now = 0;
  int64_t billed = 0;    // time with the lock
  int64_t releases = 0;  // of `rounds`
  uint64_t submissions = 0;

  void run(int rounds) {
    bool held = false;
    for (int i = 0; i < rounds; ++i) {
      if (!held) now += back_ns;
      const int64_t began = now;
      watch.begin(++submissions);
      held = true;
      const int64_t ends = now + work_ns;
      const int64_t wants = ends + pause_ns;
      while (now < wants && held) {
        const IdleWatch::Next next = watch.look(submissions, false, now);
        switch (next.step) {
          case IdleWatch::Step::kWait:
            ASSERT_GT(next.wait_ns, 0);
            now += next.wait_ns;
            break;
          case IdleWatch::Step::kSynchronize:
            now = std::max(now, ends);
            watch.work_ended(now);
            break;
          case IdleWatch::Step::kRelease:
            ++releases;
            held = false;
            EXPECT_GE(now, ends) << "given up with work under way";
            break;
        }
      }
      billed += std::min(now, wants) - began;
      now = wants;
      if (!held) watch.came_back(wants - watch.idle_since_ns(), back_ns);
    }
  }
};

TEST(IdleWatch, AHalfIdleProgramIsBilledForItsWorkAndLittleMore) {
  Job job{5 * kMillisecond, 5 * kMillisecond, 100 * kMicrosecond, {}};
  job.run(1000);
  EXPECT_EQ(job.releases, 1000);
  EXPECT_LT(static_cast<double>(job.billed), 0.53 * static_cast<double>(job.now));
}

TEST(IdleWatch, ShortAndFrequentGapsKeepTheLock) {
  for (const int64_t pause : {50 * kMicrosecond, 250 * kMicrosecond, 290 * kMicrosecond}) {
    Job job{kMillisecond, pause, 100 * kMicrosecond, {}};
    job.run(1000);
    EXPECT_LE(job.releases, 10) << pause;
  }
}

TEST(IdleWatch, ManyShortGapsBetweenLongOnesDoNotHideTheLong) {
  Job job{kMillisecond, 20 * kMillisecond, 100 * kMicrosecond, {}};
  std::mt19937_64 random(1);
  int64_t long_pauses = 0;
  for (int i = 0; i < 2000; ++i) {
    const bool is_long = random() % 4 == 0;
    job.pause_ns = is_long ? 20 * kMillisecond : 280 * kMicrosecond;
    long_pauses += is_long ? 1 : 0;
    job.run(1);
  }
  EXPECT_GE(job.releases, long_pauses);
}

TEST(IdleWatch, OthersWaitsAreNoCostOfTheRelease) {
  Job job{5 * kMillisecond, 5 * kMillisecond, 50 * kMillisecond, {}};  // throttled each time
  job.run(1000);
  EXPECT_EQ(job.releases, 1000);
}

TEST(IdleWatch, TheSchedulersFigureIsTheLeast) {
  Job job{5 * kMillisecond, 5 * kMillisecond, 100 * kMicrosecond, {}};
  job.watch.configure(2 * kMillisecond);
  EXPECT_EQ(job.watch.threshold_ns(), 2 * kMillisecond);
  job.run(100);
  EXPECT_GE(job.watch.threshold_ns(), 2 * kMillisecond);
  EXPECT_GE(job.billed, 100 * 7 * kMillisecond);
  job.watch.configure(0);
  EXPECT_LT(job.watch.threshold_ns(), kMillisecond) << "its own default again";
}

TEST(IdleWatch, ABusyProgramIsLookedAtRarelyAndNeverWaitedFor) {
  IdleWatch watch;
  watch.begin(0);
  int64_t now = 0;
  int looks = 0;
  for (uint64_t submissions = 1; now < 1000 * kMillisecond; ++looks) {
    const IdleWatch::Next next = watch.look(++submissions, false, now);
    ASSERT_EQ(next.step, IdleWatch::Step::kWait);
    now += next.wait_ns;
  }
  EXPECT_LT(looks, 2100);
}

TEST(IdleWatch, WorkThatComesDuringTheWaitForEarlierWorkIsSeen) {
  IdleWatch watch;
  watch.begin(1);
  ASSERT_EQ(watch.look(1, false, 0).step, IdleWatch::Step::kSynchronize);
  watch.work_ended(kMillisecond);
  EXPECT_EQ(watch.look(2, false, 10 * kMillisecond).step, IdleWatch::Step::kWait);
  EXPECT_EQ(watch.look(2, true, 20 * kMillisecond).step, IdleWatch::Step::kWait) << "a thread is about to submit";
  EXPECT_EQ(watch.look(2, false, 30 * kMillisecond).step, IdleWatch::Step::kSynchronize);
}

}  // namespace
}  // namespace nvshare::interposer
