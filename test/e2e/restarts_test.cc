// The scheduler dies and comes back, in mid-run and in mid-swap: no program fails, no byte is lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "e2e/harness/random.h"
#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"
#include "e2e/harness/stopped_thread.h"

namespace nvshare::e2e {
namespace {

bool moves(const protocol::admin::StatusReport& report) {
  for (const auto& client : report.clients) {
    if (client.state == "loading" || client.state == "dropping") return true;
  }
  return false;
}

TEST(Restarts, SchedulerKilledInMidRunAndInMidSwap) {
  StageOptions options;
  options.link_mbps = 1000;  // swaps that take a while
  options.scheduler["NVSHARE_RESTART_GRACE"] = "0.5";
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 4; ++i) {
    stage.start("worker-" + std::to_string(i), {"mix", "--seed", std::to_string(i), "--hold", i == 0 ? "45M" : "90M", "--largest", "80M",
                                                "--threads", i == 0 ? "2" : "1"});
  }
  auto random = generator(5);
  int in_swap = 0;
  for (int i = 0; i < scaled(50, 8); ++i) {
    usleep(static_cast<useconds_t>(between(random, 10'000, 600'000)));
    bool moving = false;
    if (i % 2 == 0) {
      moving = stage.wait_until(
          [&] {
            auto report = stage.status();
            return report && moves(*report);
          },
          moments());
    }
    in_swap += moving ? 1 : 0;
    stage.kill_scheduler();
    ASSERT_FALSE(stage.anybody_ended());
    if (i % 5 == 0) usleep(static_cast<useconds_t>(between(random, 0, 500'000)));  // nobody is there for a while
    stage.start_scheduler();
    if (testing::Test::HasFatalFailure()) return;
  }
  std::cout << in_swap << " of the kills while memory moved\n";
  EXPECT_GT(in_swap, 0);
  // Everybody has a turn under the last one.
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    if (!report || report->clients.size() != 4) return false;
    for (const auto& client : report->clients) {
      if (client.turns == 0) return false;
    }
    return true;
  }));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// A program that waits for a slice of its own, in which no memory moves, goes on while the scheduler is away.
class NobodyWaits : public testing::TestWithParam<bool> {};
TEST_P(NobodyWaits, ForASliceThatNobodyGives) {
  StageOptions options;
  options.scheduler["NVSHARE_SHARING"] = "turns";
  Stage stage(options);
  stage.start_scheduler();
  std::vector<Child*> all;
  for (const char* name : {"first", "second", "third"}) all.push_back(&stage.start(name, {"steady", "--work", "1000"}));
  const auto lines = [](const Child& child) {
    const std::string log = child.log();
    return std::count(log.begin(), log.end(), '\n');
  };
  const auto take_turns = [&] {
    const auto report = stage.status();
    return report && report->clients.size() == 3 &&
           std::all_of(report->clients.begin(), report->clients.end(), [](const auto& client) { return client.turns >= 2; });
  };
  ASSERT_TRUE(stage.wait_until(take_turns)) << stage.raw_status();
  if (GetParam()) {
    stage.kill_scheduler();
  } else {
    stage.stop_scheduler();
  }
  std::vector<std::ptrdiff_t> before;
  for (const Child* child : all) before.push_back(lines(*child));
  EXPECT_TRUE(stage.wait_until(
      [&] {
        for (size_t i = 0; i < all.size(); ++i) {
          if (lines(*all[i]) < before[i] + 10) return false;
        }
        return true;
      },
      moments()));
  stage.start_scheduler();
  EXPECT_TRUE(stage.wait_until(take_turns)) << stage.raw_status();
  stage.tell_to_stop();
  stage.expect_success_of_all();
}
INSTANTIATE_TEST_SUITE_P(Restarts, NobodyWaits, testing::Bool(),
                         [](const auto& param) { return param.param ? "WhereItIsKilled" : "WhereItEnds"; });

// Programs that do not fit together: small ones, all of whose memory is on the GPU, wait beside large ones, one of which runs or moves.
// Those that may go on while nobody is there do, again and again, and the next scheduler takes them as they are.
TEST(Restarts, SmallProgramsGoOnBesideALargeOneThatDoesNotFitWithAll) {
  StageOptions options;
  options.link_mbps = 2000;
  options.scheduler["NVSHARE_SHARING"] = "turns";
  options.scheduler["NVSHARE_RESTART_GRACE"] = "0.5";
  Stage stage(options);
  stage.start_scheduler();
  std::vector<Child*> small;
  for (int i = 0; i < 3; ++i) {
    small.push_back(&stage.start("small-" + std::to_string(i), {"mix", "--seed", std::to_string(i), "--hold", "16M", "--largest", "8M"}));
  }
  for (int i = 0; i < 2; ++i) {
    stage.start("large-" + std::to_string(i), {"mix", "--seed", std::to_string(10 + i), "--hold", "110M", "--largest", "60M"});
  }
  auto random = generator(7);
  for (int i = 0; i < scaled(16, 4); ++i) {
    usleep(static_cast<useconds_t>(between(random, 50'000, 700'000)));
    stage.kill_scheduler();
    usleep(static_cast<useconds_t>(i % 3 == 0 ? between(random, 0, 20'000) : between(random, 20'000, 600'000)));
    ASSERT_FALSE(stage.anybody_ended());
    stage.start_scheduler();
    if (testing::Test::HasFatalFailure()) return;
  }
  size_t went_on = 0;
  for (const Child* child : small) went_on += child->logged("goes on without a scheduler");
  EXPECT_GT(went_on, 0U);
  EXPECT_TRUE(stage.wait_until([&] {
    const auto report = stage.status();
    return report && report->clients.size() == 5 &&
           std::all_of(report->clients.begin(), report->clients.end(), [](const auto& client) { return client.turns > 0; });
  })) << stage.raw_status();
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// Programs that started under a scheduler go on without one for good.
TEST(Restarts, SchedulerGoesForGood) {
  Stage stage;
  stage.start_scheduler();
  Child& runs = stage.start("runs", {"mix", "--hold", "60M", "--largest", "40M"});
  ASSERT_TRUE(stage.wait_until([&] { return stage.client_of(runs.pid()).has_value(); }));
  usleep(200'000);
  stage.stop_scheduler();
  usleep(500'000);
  stage.tell_to_stop();
  stage.expect_success(runs);
}

// The scheduler ends in the middle of a load, and the thread that would hear of it gets no processor: others may have this program's room
// by now, so the load stops by itself. The driver is out of memory before its first piece, until all that has come to pass.
TEST(Restarts, ALoadStopsWithItsSchedulerBeforeTheLinksThreadHearsOfIt) {
  constexpr uint64_t kMiB = 1 << 20;
  constexpr uint64_t kBlock = 40 * kMiB;
  Stage stage;
  auto scheduler = std::make_unique<ScriptedScheduler>(stage.runtime_directory(),
                                                       ScriptedScheduler::Script{.piecemeal_bytes = protocol::kMemoryBytesMax});
  Child& child = stage.start(
      "loads", {"free-while-loading", "--hold", "120M", "--which", "2", "--go", stage.go_file("load"), "--free", stage.go_file("free")});
  const auto on_gpu = [&] { return stage.gpu_counters().used_bytes; };
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  scheduler->drop();
  ASSERT_TRUE(stage.wait_until([&] { return on_gpu() < kBlock; }));
  const uint64_t without = on_gpu();
  stage.order_gpu("set_faults create_oom:1");
  stage.tell_to_go("load");
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("the GPU has not taken this program's memory in") || !child.running(); }));
  StoppedThread link(child.pid(), "nvshare-link", SYS_ppoll);
  ASSERT_TRUE(link.stands());
  scheduler.reset();
  stage.order_gpu("set_faults ");
  EXPECT_TRUE(stage.wait_until([&] { return on_gpu() >= without + kBlock; }, moments()));
  usleep(500'000 * kSlowness);
  EXPECT_LT(on_gpu(), without + 2 * kBlock) << "it went on by the word of a scheduler that is gone";
  link.go_on();
  scheduler = std::make_unique<ScriptedScheduler>(stage.runtime_directory(), ScriptedScheduler::Script{});
  stage.tell_to_go("free");
  stage.expect_success(child);
  EXPECT_EQ(scheduler->problem(), "");
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
