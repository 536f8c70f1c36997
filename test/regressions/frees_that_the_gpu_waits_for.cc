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

void expect_refusal(Stage& stage, Arguments arguments) {
  arguments.insert(arguments.begin(), "allocate-while-the-gpu-waits");
  Child& child = stage.start("allocates", arguments);
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("refused")) << "nothing was tested: " << child.log();
  stage.expect_gpu_unharmed();
}

// The same of an allocation that found no room: it waited for all frees that were pending, however long. The last refusal may take its
// time.
TEST(Regressions, AnAllocationDoesNotWaitForTheGpuForEver) {
  Stage stage;
  stage.start_scheduler();
  expect_refusal(stage, {"--hold", "60M"});
}

// And for what was freed beside a capture, with all that was submitted since.
TEST(Regressions, AnAllocationDoesNotWaitForEverForWhatWasFreedBesideACapture) {
  Stage stage;
  stage.start_scheduler();
  expect_refusal(stage, {"--hold", "60M", "--beside-capture", "1"});
}

// The same without a scheduler, where the driver itself has no room.
TEST(Regressions, AnAllocationDoesNotWaitForEverWithoutAScheduler) {
  Stage stage;
  expect_refusal(stage, {"--hold", "80M", "--beside-capture", "1"});
}

// The library's wait kept all contexts where they were. The end of one that had no work waited for the others', and they for it.
TEST(Regressions, TheEndOfAContextDoesNotWaitForTheWorkOfOthers) {
  Stage stage;
  stage.start_scheduler();
  for (const char* threads : {"1", "0"}) {
    stage.expect_success(stage.start("destroys", {"destroy-while-the-gpu-waits", "--hold", "60M", "--threads", threads}));
  }
  stage.expect_gpu_unharmed();
}

// The driver was asked whether the capture forbids it by an allocation of ours, and the free of that waits for the GPU.
TEST(Regressions, AnAllocationBesideACaptureDoesNotWaitForTheGpu) {
  Stage stage;
  stage.start_scheduler();
  stage.expect_success(stage.start("allocates", {"allocate-beside-a-capture"}));
  stage.expect_success(stage.start("allocates-much", {"allocate-beside-a-capture", "--count", "300"}));
  stage.expect_gpu_unharmed();
}

// A driver's callback may free nothing. The library passed that answer on, and freed.
TEST(Regressions, AFreeThatTheDriverDoesNotPermitFreesNothing) {
  Stage stage;
  stage.expect_success(stage.start_bare("native", {"free-in-a-callback"}));
  stage.start_scheduler();
  stage.expect_success(stage.start("shared", {"free-in-a-callback"}));
  stage.expect_gpu_unharmed();
}

// What was freed beside a capture has no event of ours, and the next allocation in stream order waited for all of the GPU's work instead.
TEST(Regressions, AnAllocationDoesNotWaitForWhatWasFreedBesideACapture) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("allocates", {"frees-of-captures"});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

// The end of a green context waited for all frees of the GPU that were pending.
TEST(Regressions, TheEndOfAGreenContextDoesNotWaitForTheRestOfTheGpu) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("ends", {"green-while-the-gpu-waits"});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
