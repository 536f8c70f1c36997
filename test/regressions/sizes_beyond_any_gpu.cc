// Rows times their pitch wrapped around, so that 2^55 rows were an allocation of 512 bytes. An allocation from a pool that failed counted
// in the pool's high-water mark, and one of nearly 2^64 bytes took what was in use out of its count.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, SizesBeyondAnyGpuAreRefusedAndCountNowhere) {
  Stage stage;
  stage.expect_success(stage.start_bare("native", {"absurd-sizes"}));
  stage.start_scheduler();
  stage.expect_success(stage.start("shared", {"absurd-sizes"}));
}

}  // namespace
}  // namespace nvshare::e2e
