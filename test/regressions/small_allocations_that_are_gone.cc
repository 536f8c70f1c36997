// The pages of small allocations stayed with the program, one of every size, after all in them was freed: a program that had used up to
// 24 sizes got no memory that the GPU did have.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, SmallAllocationsThatAreGone) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("sizes", {"sizes", "--hold", "190M"});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
