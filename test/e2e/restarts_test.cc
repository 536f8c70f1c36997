// The scheduler dies and comes back, in mid-run and in mid-swap: no program fails, no byte is lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

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

}  // namespace
}  // namespace nvshare::e2e
