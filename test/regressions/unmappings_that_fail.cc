// Once the driver had failed to unmap a piece of memory that left, that could not come in again: where it belongs was mapped still, so its
// program waited for ever.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, UnmappingsThatFailKeepNoMemoryOut) {
  Stage stage;
  stage.start_scheduler();
  Child& first = stage.start("first", {"steady", "--hold", "110M"});
  Child& second = stage.start("second", {"steady", "--hold", "110M"});
  ASSERT_TRUE(stage.wait_for_turns({&first, &second}, 2)) << stage.raw_status();
  stage.order_gpu("set_faults unmap_fail:0.2");
  EXPECT_TRUE(stage.wait_for_turns({&first, &second}, 3)) << stage.raw_status();
  stage.order_gpu("set_faults unmap_fail:0");
  EXPECT_TRUE(stage.wait_for_turns({&first, &second}, 3)) << stage.raw_status();
  stage.tell_to_stop();
  stage.expect_success_of_all();
}

}  // namespace
}  // namespace nvshare::e2e
