// A thread freed memory that had just come in, while the rest of the turn's memory waited for room: it stayed on the GPU until all had come
// in, so the load waited for more room than the scheduler, which heard of the free, had to give. The program stood still for ever.
#include <gtest/gtest.h>

#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Case {
  uint64_t block_mib;     // of three blocks
  uint64_t first_mib;     // a scheduler has room for so much until it hears that there are only two
  uint64_t left_mib = 0;  // on the GPU, of the last one
  int freed = 0;          // which block
};

void expect_to_load_without_what_is_freed(const Case& it) {
  StageOptions options;
  options.gpu_memory_mb = 512;
  Stage stage(options);
  ScriptedScheduler scheduler(stage.runtime_directory(), {.piecemeal_bytes = it.first_mib * kMiB, .left_bytes = it.left_mib * kMiB});
  Child& child = stage.start("frees", {"free-while-loading", "--hold", std::to_string(3 * it.block_mib) + "M", "--which",
                                       std::to_string(it.freed), "--go", stage.go_file("load"), "--free", stage.go_file("free")});
  const auto on_gpu = [&] { return stage.gpu_counters().used_bytes; };
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  scheduler.drop();
  ASSERT_TRUE(stage.wait_until([&] { return on_gpu() < 40 * kMiB; }));
  stage.tell_to_go("load");
  ASSERT_TRUE(stage.wait_until([&] { return on_gpu() >= 40 * kMiB; }));
  // What keeps a program from its turn is not silent.
  EXPECT_TRUE(stage.wait_until([&] { return child.logged("memory has waited for room on GPU 0") || !child.running(); }));
  stage.tell_to_go("free");
  stage.expect_success(child);
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

TEST(Regressions, FreedMemoryThatHasComeInMakesRoomForTheRest) { expect_to_load_without_what_is_freed({48, 60}); }

// It is copied in pieces of 64 MiB.
TEST(Regressions, FreedMemoryOfWhichAPartHasComeInMakesRoomForTheRest) { expect_to_load_without_what_is_freed({72, 70}); }

// The second piece of the last block stays on the GPU, and the first is to come in after all others.
TEST(Regressions, FreedMemoryOfWhichAPartNeverLeftMakesRoomForTheRest) {
  expect_to_load_without_what_is_freed({.block_mib = 80, .first_mib = 90, .left_mib = 20, .freed = 2});
}

}  // namespace
}  // namespace nvshare::e2e
