// A program that heard that others wait for its memory while that memory was still coming in did not look for its own idleness in that
// turn: the thread that looks slept until the next message, and the GPU stood idle for the rest of the turn.
#include <gtest/gtest.h>

#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, WaitersHeardOfWhileLoadingEndAPauseToo) {
  StageOptions options;
  options.link_mbps = 2000;  // bringing its memory in takes a moment
  Stage stage(options);
  ScriptedScheduler scheduler(stage.runtime_directory(), {.drop_every = std::chrono::milliseconds(100), .waiters = true});
  Child& child = stage.start("bursts", {"bursts", "--work", "2000", "--pause", "400000", "--rounds", "1"});
  stage.expect_success(child);
  // Not in each pause: the test's threads may not get the processor in time.
  EXPECT_FALSE(scheduler.releases(protocol::ReleaseReason::kEarly).empty()) << "the lock was held through all pauses";
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
