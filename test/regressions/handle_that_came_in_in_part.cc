// A turn was taken back while a large handle of the program's came in for the first time: its GPU memory was there, as it comes and goes as
// a whole, but most of its parts were as if never there, with nothing to copy out. So it never left, however often it was asked to.
#include <gtest/gtest.h>

#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"
#include "protocol/messages.h"

namespace nvshare::e2e {
namespace {

constexpr uint64_t kHandleIsThere = 200 << 20, kHandleIsGone = 40 << 20;  // bytes in use on the GPU: at least, less than

TEST(Regressions, AHandleThatCameInInPartLeavesAsAWhole) {
  StageOptions options;
  options.gpu_memory_mb = 512;
  Stage stage(options);
  ScriptedScheduler scheduler(stage.runtime_directory(), {.piecemeal_bytes = protocol::kMemoryBytesMax, .grants_most = 1});
  Child& child = stage.start("handles", {"handles", "--hold", "300M", "--go", stage.go_file("handles")});
  const auto on_gpu = [&] { return stage.gpu_counters().used_bytes; };
  // From when the stand-in's cuMemCreate begins: to write to all of the memory takes it a while.
  ASSERT_TRUE(stage.wait_until([&] { return on_gpu() >= kHandleIsThere || !child.running(); }));
  scheduler.drop();
  ASSERT_TRUE(stage.wait_until([&] { return !scheduler.releases().empty() || !child.running(); }));
  EXPECT_FALSE(child.logged("mapped")) << "the whole turn has begun: nothing is seen of what this is about";
  EXPECT_TRUE(stage.wait_until([&] { return on_gpu() < kHandleIsGone || !child.running(); }));
  EXPECT_TRUE(child.running()) << child.log();
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
