// A program that closed all descriptors that it did not know had eight bytes of the library's in files that it opened afterwards, one of
// them closed, and was shared no more, or waited for ever.
#include <gtest/gtest.h>

#include <csignal>

#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, FilesUnderNumbersThatWereOursStayTheProgramsOwn) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.drop_every = std::chrono::milliseconds(200)});
  Child& child = stage.start("closes", {"closes", "--rounds", "80"});
  stage.expect_success(child);
  EXPECT_TRUE(scheduler.came_with_lock() || child.logged("the scheduler is back")) << "it is shared no more: " << child.log();
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
