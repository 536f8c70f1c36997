// A pool was destroyed by the driver first, and then forgotten. A drain in between, or one that had begun to give back what pools keep,
// asked the driver about a pool that was no more, whose handle may be another's by then: a driver crashes, or works by what lies there.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

using namespace std::chrono_literals;

TEST(Regressions, ADrainAsksOfNoPoolThatHasEnded) {
  StageOptions options;
  options.gpu_memory_mb = 512;
  Stage stage(options);
  ScriptedScheduler scheduler(stage.runtime_directory(), {.drop_every = 2ms, .drop_spread = 5ms});
  Child& child = stage.start("pools", {"ending-pools"});
  const auto wanted = static_cast<size_t>(scaled(600, 60));
  EXPECT_TRUE(stage.wait_until([&] { return scheduler.releases().size() >= wanted || !child.running(); }));
  stage.tell_to_stop();
  stage.expect_success(child);
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
