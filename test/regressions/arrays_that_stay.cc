// An array that could not be destroyed was counted on with whichever context was current, or with none: then it stayed in the count when
// the driver had freed it with its own context, until nothing could be allocated any more.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, AnArrayThatCannotBeDestroyedEndsWithItsContext) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("arrays", {"arrays-that-stay", "--steps", "40"});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
