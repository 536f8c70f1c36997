#include "interposer/turn/idleness.h"

#include <gtest/gtest.h>

#include <random>

namespace nvshare::interposer::turn {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;

Idleness under_a_limit(int64_t least_ns = 0) {
  Idleness idle;
  Idleness::Terms terms;
  terms.limited = true;
  terms.least_ns = least_ns;
  idle.set_terms(terms);
  return idle;
}

Idleness others_wait_for_memory(int64_t swap_cost_ns) {
  Idleness idle;
  Idleness::Terms terms;
  terms.waiters = terms.memory_waiters = 1;
  terms.swap_cost_ns = swap_cost_ns;
  idle.set_terms(terms);
  return idle;
}

// A program that computes for `work_ns` and pauses for `pause_ns`, over and over, under a watch; getting the lock back takes back_ns.
struct Job {
  int64_t work_ns, pause_ns, back_ns;
  Idleness idle = under_a_limit();
  int64_t now = 0;
  int64_t billed = 0;    // time with the lock
  int64_t releases = 0;  // of `rounds`
  uint64_t submissions = 0;

  void run(int rounds) {
    bool held = false;
    int64_t wished = now;
    for (int i = 0; i < rounds; ++i) {
      ++submissions;
      if (held) {
        idle.watch_begins(submissions);
      } else {
        now += back_ns;
        idle.use_begins(submissions, wished, now);
      }
      const int64_t began = now;
      held = true;
      const int64_t ends = now + work_ns;
      const int64_t wants = ends + pause_ns;
      while (now < wants && held) {
        const Idleness::Next next = idle.look(submissions, true, false, now);
        switch (next.step) {
          case Idleness::Step::kNothing:
            FAIL() << "no look is wanted";
          case Idleness::Step::kWait:
            ASSERT_GT(next.wait_ns, 0);
            now += next.wait_ns;
            break;
          case Idleness::Step::kSynchronize:
            now = std::max(now, ends);
            idle.work_ended(now);
            break;
          case Idleness::Step::kGiveUp:
            ++releases;
            held = false;
            EXPECT_GE(now, ends) << "given up with work under way";
            break;
        }
      }
      billed += std::min(now, wants) - began;
      now = wished = wants;
    }
  }
};

TEST(Idleness, AHalfIdleProgramIsBilledForItsWorkAndLittleMore) {
  Job job{5 * kMillisecond, 5 * kMillisecond, 100 * kMicrosecond};
  job.run(1000);
  EXPECT_EQ(job.releases, 1000);
  EXPECT_LT(static_cast<double>(job.billed), 0.53 * static_cast<double>(job.now));
}

TEST(Idleness, ShortAndFrequentGapsKeepTheLock) {
  for (const int64_t pause : {50 * kMicrosecond, 250 * kMicrosecond, 290 * kMicrosecond}) {
    Job job{kMillisecond, pause, 100 * kMicrosecond};
    job.run(1000);
    EXPECT_LE(job.releases, 10) << pause;
  }
}

TEST(Idleness, ManyShortGapsBetweenLongOnesDoNotHideTheLong) {
  Job job{kMillisecond, 20 * kMillisecond, 100 * kMicrosecond};
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

TEST(Idleness, OthersWaitsAreNoCostOfTheRelease) {
  Job job{5 * kMillisecond, 5 * kMillisecond, 50 * kMillisecond};  // throttled each time
  job.run(1000);
  EXPECT_EQ(job.releases, 1000);
}

TEST(Idleness, TheSchedulersFigureIsTheLeast) {
  Job job{5 * kMillisecond, 5 * kMillisecond, 100 * kMicrosecond, under_a_limit(2 * kMillisecond)};
  job.run(100);
  EXPECT_EQ(job.releases, 100);
  EXPECT_GE(job.billed, 100 * 7 * kMillisecond);
  BilledPatience patience;
  patience.configure(2 * kMillisecond);
  EXPECT_EQ(patience.value_ns(), 2 * kMillisecond);
  patience.configure(0);
  EXPECT_LT(patience.value_ns(), kMillisecond) << "its own default again";
}

TEST(Idleness, ABusyProgramIsLookedAtRarelyAndNeverWaitedFor) {
  for (Idleness idle : {under_a_limit(), others_wait_for_memory(kMillisecond)}) {
    idle.use_begins(0, 0, 0);
    int64_t now = 0;
    int looks = 0;
    for (uint64_t submissions = 1; now < 1000 * kMillisecond; ++looks) {
      const Idleness::Next next = idle.look(++submissions, true, false, now);
      ASSERT_EQ(next.step, Idleness::Step::kWait);
      now += next.wait_ns;
    }
    EXPECT_LT(looks, 2100);
  }
}

TEST(Idleness, WorkThatComesDuringTheWaitForEarlierWorkIsSeen) {
  Idleness idle = under_a_limit();
  idle.use_begins(1, 0, 0);
  ASSERT_EQ(idle.look(1, true, false, 0).step, Idleness::Step::kSynchronize);
  idle.work_ended(kMillisecond);
  EXPECT_EQ(idle.look(2, true, false, 10 * kMillisecond).step, Idleness::Step::kWait);
  EXPECT_EQ(idle.look(2, true, true, 20 * kMillisecond).step, Idleness::Step::kWait) << "a thread is about to submit";
  EXPECT_EQ(idle.look(2, true, false, 30 * kMillisecond).step, Idleness::Step::kSynchronize);
}

TEST(Idleness, ACaptureIsNotWaitedFor) {
  for (Idleness idle : {under_a_limit(), others_wait_for_memory(kMillisecond)}) {
    idle.use_begins(1, 0, 0);
    EXPECT_EQ(idle.look(1, false, false, kMillisecond).step, Idleness::Step::kWait);
    EXPECT_EQ(idle.look(1, true, false, kMillisecond).step, Idleness::Step::kSynchronize);
  }
}

TEST(Idleness, WithMemoryToMoveTheCostOfTheSwitchIsSatOutFirst) {
  constexpr int64_t kCost = 300 * kMillisecond;
  Idleness idle = others_wait_for_memory(kCost);
  int64_t now = 1000 * kMillisecond;
  idle.use_begins(1, now, now);
  ASSERT_EQ(idle.look(2, true, false, now).step, Idleness::Step::kWait) << "it was used";
  now += 10 * kMillisecond;
  ASSERT_EQ(idle.look(2, true, false, now).step, Idleness::Step::kSynchronize);
  idle.work_ended(now);
  const int64_t ended = now;
  Idleness::Next next = idle.look(2, true, false, now);
  for (; next.step == Idleness::Step::kWait; next = idle.look(2, true, false, now)) {
    EXPECT_LE(next.wait_ns, 10 * kMillisecond) << "a pause that ends meanwhile is measured";
    now += next.wait_ns;
  }
  EXPECT_EQ(next.step, Idleness::Step::kGiveUp);
  EXPECT_EQ(now - ended, kCost);
  EXPECT_EQ(idle.idle_since_ns(), ended);
  EXPECT_EQ(idle.gave_up(), Idleness::Reason::kMemory);
  // It comes back at once, so the pause is one to sit out.
  idle.use_begins(2, now, now + kMillisecond);
  EXPECT_EQ(idle.gave_up(), Idleness::Reason::kNone);
}

TEST(Idleness, ThereIsAReasonToLookOrNot) {
  Idleness idle;
  EXPECT_EQ(idle.reason(), Idleness::Reason::kNone);
  EXPECT_EQ(idle.look(1, true, false, 0).step, Idleness::Step::kNothing);
  Idleness::Terms terms;
  terms.waiters = 1;
  idle.set_terms(terms);
  EXPECT_EQ(idle.reason(), Idleness::Reason::kNone) << "the waiter needs none of its memory: giving up would help nobody";
  terms.limited = true;
  idle.set_terms(terms);
  EXPECT_EQ(idle.reason(), Idleness::Reason::kBill);
  terms.memory_waiters = 1;
  idle.set_terms(terms);
  EXPECT_EQ(idle.reason(), Idleness::Reason::kMemory) << "what a swap costs decides";
}

}  // namespace
}  // namespace nvshare::interposer::turn
