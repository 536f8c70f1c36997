// Freed memory was kept for reuse, and could not be given up while the swap engine had hold of it: a program that replaced a large
// allocation by another one, without the lock, was told that it can never fit.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, FreedMemoryThatIsBeingMoved) {
  StageOptions options;
  options.switch_time = "0.01";
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 4; ++i) stage.start("replace-" + std::to_string(i), {"replace", "--seed", std::to_string(i), "--hold", "110M"});
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return (report && !report->gpus.empty() && report->gpus[0].switches >= static_cast<uint64_t>(scaled(40, 8))) || stage.anybody_ended();
  }));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
