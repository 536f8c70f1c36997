// With `prefetch`: memory comes in and leaves beside a program that runs (docs/adr/0023), and every byte stays right.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

// Under a sanitizer copies are too slow for a batch and its pause to fit into a turn.
constexpr bool kCopiesInTime = kSlowness == 1;

// Of three that hold 224 MiB each one runs, and most of another fits beside it: 80 % of the GPU may be used.
StageOptions with_prefetch(const char* prefetch = "on") {
  StageOptions options;
  options.gpu_memory_mb = 512;
  options.scheduler["NVSHARE_PREFETCH"] = prefetch;
  options.switch_time = "1.5";  // a batch takes a quarter of its time, and more where copies are slow
  return options;
}

struct Moved {
  uint64_t switches = 0;
  int64_t in = 0, ahead = 0, in_vain = 0;
};

Moved moved_on(Stage& stage) {
  auto report = stage.status();
  if (!report || report->gpus.empty()) return {};
  const auto& usage = report->gpus[0].usage;
  return {report->gpus[0].switches, usage.swapped_in, usage.prefetched, usage.prefetched_in_vain};
}

Moved moved_after(Stage& stage, uint64_t switches) {
  Moved moved;
  EXPECT_TRUE(stage.wait_until([&] {
    moved = moved_on(stage);
    return moved.switches >= switches || stage.anybody_ended();
  }));
  EXPECT_GE(moved.switches, switches) << "programs ended early";
  return moved;
}

void start_three(Stage& stage) {
  for (int i = 0; i < 3; ++i) {
    stage.start("server-" + std::to_string(i), {"serve", "--weights", "200M", "--changes", "24M"});
  }
  EXPECT_TRUE(stage.wait_until([&] { return moved_on(stage).switches >= 3 || stage.anybody_ended(); }));
}

void finish(Stage& stage) {
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

TEST(Prefetch, MemoryComesInBesideWhoRuns) {
  Stage stage(with_prefetch());
  stage.start_scheduler();
  start_three(stage);
  const Moved moved = moved_after(stage, static_cast<uint64_t>(scaled(10, kSlowness == 1 ? 10 : 6)));
  std::cout << moved.switches << " switches, " << (moved.in >> 20) << " MiB in, " << (moved.ahead >> 20) << " of them ahead, "
            << (moved.in_vain >> 20) << " in vain\n";
  EXPECT_TRUE(moved.ahead > 0 || !kCopiesInTime);
  EXPECT_LE(moved.ahead, moved.in);
  EXPECT_LE(moved.in_vain, moved.ahead);
  finish(stage);
}

TEST(Prefetch, NotWithoutTheSetting) {
  Stage stage(with_prefetch("off"));
  stage.start_scheduler();
  start_three(stage);
  EXPECT_EQ(moved_after(stage, static_cast<uint64_t>(scaled(8, 4))).ahead, 0);
  finish(stage);
}

// Beside programs of all sizes that grow and shrink, and with a driver that now and then has no memory.
TEST(Prefetch, AmongManyOfRandomSizesWithShortages) {
  StageOptions options = with_prefetch();
  options.gpu["SIMGPU_FAULTS"] = "create_oom:0.02,create_oom_moment:3";
  Stage stage(options);
  stage.start_scheduler();
  constexpr const char* kStreams[] = {"own", "legacy", "per-thread"};
  auto random = generator(1);
  start_three(stage);
  for (int i = 0; i < scaled(5, 2); ++i) {  // under TSan each takes gigabytes of the host's memory
    stage.start("worker-" + std::to_string(i),
                {"mix", "--seed", std::to_string(random() % 1'000'000), "--largest", "80M", "--hold", i % 2 == 0 ? "110M" : "40M",
                 "--threads", i % 4 == 1 ? "3" : "1", "--streams", kStreams[i % 3]});
  }
  const Moved moved = moved_after(stage, static_cast<uint64_t>(scaled(30, 10)));
  std::cout << (moved.ahead >> 20) << " MiB ahead, " << (moved.in_vain >> 20) << " in vain\n";
  finish(stage);
}

// The scheduler, and programs, end in the middle of it.
TEST(Prefetch, DeathsAndRestarts) {
  StageOptions options = with_prefetch();
  options.scheduler["NVSHARE_RESTART_GRACE"] = "0.5";
  Stage stage(options);
  stage.start_scheduler();
  start_three(stage);
  auto random = generator(3);
  int64_t ahead = 0;
  for (int i = 0; i < scaled(8, 3); ++i) {
    const int64_t before = moved_on(stage).ahead;
    EXPECT_TRUE(stage.wait_until([&] { return moved_on(stage).ahead > before || !kCopiesInTime || stage.anybody_ended(); }));
    ahead += moved_on(stage).ahead - before;
    usleep(static_cast<useconds_t>(between(random, 0, 200'000)));
    if (i % 2 == 0) {
      stage.kill_scheduler();
      stage.start_scheduler();
      if (testing::Test::HasFatalFailure()) return;
    } else {
      Child& victim = stage.start("victim-" + std::to_string(i), {"mix", "--seed", std::to_string(i), "--hold", "90M", "--largest", "64M"});
      usleep(static_cast<useconds_t>(between(random, 300'000, 1'000'000)));
      victim.signal(SIGKILL);
      ASSERT_TRUE(victim.wait(moments()));
      EXPECT_FALSE(victim.logged("FAILED")) << victim.log();
      stage.forget(victim);
    }
  }
  EXPECT_TRUE(ahead > 0 || !kCopiesInTime);
  finish(stage);
}

}  // namespace
}  // namespace nvshare::e2e
