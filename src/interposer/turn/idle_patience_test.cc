#include "interposer/turn/idle_patience.h"

#include <gtest/gtest.h>

namespace nvshare::interposer::turn {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kCost = 480 * kMs;  // 18 GiB at 40 GB/s, as on an H200

// The program under the rule: at each pause it holds the GPU for the threshold; a longer pause gives it up. Returns how long it held the
// GPU idle in all.
struct Program {
  SwapPatience watch;
  int64_t now = 1'000'000 * kMs;
  int released = 0;

  int64_t pause(int64_t length, int64_t cost = kCost) {
    const int64_t threshold = watch.threshold_ns(cost, false, now);
    now += length;
    if (length <= threshold) {
      watch.went_on(length, cost, now);
      return length;
    }
    ++released;
    watch.came_back(length, cost, now);
    return threshold;
  }
};

TEST(SwapPatience, BeforeAnythingIsKnownTheCostOfASwitchIsWaited) {
  Program notebook;
  EXPECT_EQ(kCost, notebook.pause(5'000 * kMs));
  EXPECT_EQ(kCost, notebook.pause(5'000 * kMs));
  EXPECT_EQ(SwapPatience::kLeast_ns, notebook.pause(5'000 * kMs));
}

// As on the H200: pauses of 1.25 s first, of which some were sat out at a time when a switch seemed dear. They made every later release
// more than a second late.
TEST(SwapPatience, PausesThatWereSatOutAreNoReasonToSitOutLongerOnes) {
  Program notebook;
  for (int i = 0; i < 4; ++i) notebook.pause(1'250 * kMs, 650 * kMs);
  for (int i = 0; i < 3; ++i) notebook.pause(5'000 * kMs);
  EXPECT_LE(notebook.pause(5'000 * kMs), 50 * kMs);
  Program served;
  for (int i = 0; i < 4; ++i) served.watch.went_on(1'250 * kMs, 0, served.now += 1'300 * kMs);
  EXPECT_EQ(SwapPatience::kLeast_ns, served.watch.threshold_ns(kCost, false, served.now));
}

// A training loop that loads data for 200 ms now and then keeps the GPU through it.
TEST(SwapPatience, ShortPausesOfABusyProgramAreSatOut) {
  Program trainer;
  for (int i = 0; i < 200; ++i) {
    trainer.pause(3 * kMs);
    trainer.now += 100 * kMs;
    if (i % 20 == 0) trainer.pause(200 * kMs);
  }
  EXPECT_EQ(0, trainer.released);
}

// One that was taken for idle too early learns its pause, even if it believed to know better.
TEST(SwapPatience, AReleaseThatWasNotWorthItIsNotRepeated) {
  Program program;
  for (int i = 0; i < 5; ++i) program.pause(10'000 * kMs);
  program.pause(600 * kMs);
  const int released = program.released;
  for (int i = 0; i < 20; ++i) program.pause(600 * kMs);
  EXPECT_EQ(released, program.released);
}

TEST(SwapPatience, ATurnThatWasNotUsedYetWaitsForTheThreadThatAskedForIt) {
  SwapPatience watch;
  EXPECT_EQ(SwapPatience::kLeast_ns, watch.threshold_ns(0, false, 0));
  EXPECT_EQ(5 * SwapPatience::kLeast_ns, watch.threshold_ns(0, true, 0));
}

}  // namespace
}  // namespace nvshare::interposer::turn
