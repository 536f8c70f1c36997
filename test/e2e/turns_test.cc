// Programs that share a GPU which is too small for all of them: every byte stays right.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

std::string digest_of(const Child& child) {
  std::string log = child.log();
  size_t at = log.find("digest ");
  return at == std::string::npos ? "" : log.substr(at, sizeof "digest 0123456789abcdef" - 1);
}

uint64_t turns_of(const protocol::admin::StatusReport& report) {
  uint64_t turns = 0;
  for (const auto& client : report.clients) turns += client.turns;
  return turns;
}

TEST(Turns, TwoThatDoNotFitTogetherComputeTheSameAsAlone) {
  Stage stage;
  auto arguments = [](int number) {
    // The floors alone do not fit together: neither ever runs beside the other.
    return Arguments{"mix",  "--seed",  std::to_string(number),         "--floor", "105M", "--hold", "150M", "--largest",
                     "100M", "--steps", std::to_string(scaled(400, 30))};
  };
  std::string alone[2];
  for (int i = 0; i < 2; ++i) {
    Child& child = stage.start_bare("alone-" + std::to_string(i), arguments(i));
    stage.expect_success(child);
    alone[i] = digest_of(child);
    ASSERT_FALSE(alone[i].empty());
    stage.forget(child);
  }
  stage.start_scheduler();
  Child* children[2];
  for (int i = 0; i < 2; ++i) children[i] = &stage.start("together-" + std::to_string(i), arguments(i));
  uint64_t switches = 0;
  stage.wait_until([&] {
    if (auto report = stage.status(); report && !report->gpus.empty()) switches = report->gpus[0].switches;
    return !children[0]->running() && !children[1]->running();
  });
  for (int i = 0; i < 2; ++i) {
    stage.expect_success(*children[i]);
    EXPECT_EQ(digest_of(*children[i]), alone[i]);
  }
  EXPECT_GE(switches, 2u);
  stage.expect_gpu_unharmed();
}

// Sizes from 1 byte to 40 % of the GPU, every kind of stream, every way to reach the driver.
TEST(Turns, EightOfRandomSizesForThreeHundredTurns) {
  StageOptions options;
  options.gpu_memory_mb = 256;
  Stage stage(options);
  stage.start_scheduler();
  constexpr const char* kStreams[] = {"own", "legacy", "per-thread"};
  constexpr const char* kReach[] = {"link", "dlsym", "proc"};
  auto random = generator(1);
  for (int i = 0; i < 8; ++i) {
    stage.start("worker-" + std::to_string(i),
                {"mix", "--seed", std::to_string(random() % 1'000'000), "--largest", "102M", "--hold", i % 2 == 0 ? "110M" : "40M",
                 "--threads", i % 4 == 1 ? "3" : "1", "--streams", kStreams[i % 3], "--reach", kReach[random() % 3]});
  }
  const auto wanted = static_cast<uint64_t>(scaled(300, 30));
  uint64_t turns = 0;
  EXPECT_TRUE(stage.wait_until([&] {
    if (auto report = stage.status()) turns = turns_of(*report);
    return turns >= wanted || stage.anybody_ended();
  })) << turns
      << " turns";
  EXPECT_GE(turns, wanted);
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// Nobody is asked to drop, nothing moves.
TEST(Turns, TwoThatFitRunTogether) {
  StageOptions options;
  options.scheduler["NVSHARE_SHARING"] = "together";  // by default turns are tried
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 2; ++i) {
    stage.start("fits-" + std::to_string(i), {"mix", "--seed", std::to_string(i), "--hold", "30M", "--largest", "20M"});
  }
  int both = 0;
  uint64_t drops = 0;
  int64_t moved = 0;
  // As often as it takes: how long programs need to start is the machine's affair.
  stage.wait_until([&] {
    auto report = stage.status();
    if (!report) return false;
    int running = 0;
    for (const auto& client : report->clients) {
      running += client.state == "running" ? 1 : 0;
      drops += client.drops;
      moved += client.swapped_out_total;
    }
    both += running == 2 ? 1 : 0;
    return both >= 100 || stage.anybody_ended();
  });
  EXPECT_FALSE(stage.anybody_ended());
  stage.tell_to_stop();
  stage.expect_success_of_all();
  EXPECT_GE(both, 100);
  EXPECT_EQ(drops, 0u);
  EXPECT_EQ(moved, 0);
}

}  // namespace
}  // namespace nvshare::e2e
