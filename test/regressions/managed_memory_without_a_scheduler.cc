// A program that waited went on by itself when its scheduler had ended, although it has managed memory that is left to demand paging: two
// such programs page against each other.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

// Works, gives the lock up, and gets it no more from a scheduler that ends; returns how long it took to go on, or nothing if it does not.
std::optional<Duration> goes_on(const std::string& hold, Duration patience) {
  StageOptions options;
  options.gpu_memory_mb = 64;
  Stage stage(options);
  auto scheduler =
      std::make_unique<ScriptedScheduler>(stage.runtime_directory(), ScriptedScheduler::Script{.tells_if_held = true, .grants_most = 1});
  Child& child = stage.start("managed", {"managed", "--hold", hold});
  EXPECT_TRUE(stage.wait_until([&] { return child.logged("works") || stage.anybody_ended(); })) << child.log();
  const auto has_left = [&] {
    scheduler->drop();  // again, where the machine is so busy that its work did not end in time
    return !scheduler->releases(protocol::ReleaseReason::kDropped).empty() || stage.anybody_ended();
  };
  EXPECT_TRUE(stage.wait_until(has_left)) << child.log();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it asks for the lock again
  scheduler.reset();
  const int64_t since = now_ns();
  if (!stage.wait_until([&] { return child.logged("goes on without a scheduler"); }, patience)) return std::nullopt;
  return Duration(now_ns() - since);
}

TEST(Regressions, ManagedMemoryOnDemandWaitsForTheNextScheduler) {
  const std::optional<Duration> without = goes_on("16M", patience());
  ASSERT_TRUE(without) << "all that it has fits, and nobody holds it";
  EXPECT_FALSE(goes_on("120M", 4 * *without));
}

}  // namespace
}  // namespace nvshare::e2e
