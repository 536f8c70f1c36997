// cuMemFreeAsync waited for the GPU once 4096 frees were pending, which a driver never does: where the GPU waits for the very thread that
// frees, as by a host callback, both stood still for good.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, AFreeInStreamOrderDoesNotWaitForTheGpu) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("frees", {"free-while-the-gpu-waits"});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
