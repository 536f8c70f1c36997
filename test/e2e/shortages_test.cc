// When something is missing: the scheduler, NVML, host memory, a sensible setting, the GPU's cooperation.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

int lines_with(const std::string& log, const std::string& text) {
  int count = 0;
  for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
  return count;
}

const Arguments kShortMix = {"mix", "--steps", "100", "--hold", "60M", "--largest", "40M", "--threads", "2"};
const Environment kDefaultLogLevel = {{"NVSHARE_LOG_LEVEL", ""}};

TEST(Shortages, NoScheduler) {
  Stage stage;
  Child& child = stage.start("alone", kShortMix, kDefaultLogLevel);
  stage.expect_success(child);
  EXPECT_EQ(lines_with(child.log(), "nvshare["), 1) << child.log();
  EXPECT_EQ(lines_with(child.log(), "warning"), 1) << child.log();
  stage.expect_gpu_unharmed();
}

TEST(Shortages, NoSchedulerButTheLimitHolds) {
  Stage stage;
  stage.expect_success(stage.start("limited", {"limit", "--limit", "16M"}, {{"NVSHARE_GPU_MEMORY_LIMIT", "16Mi"}}));
}

TEST(Shortages, NoSchedulerThoughOneIsRequired) {
  Stage stage;
  Child& child = stage.start("refused", kShortMix, {{"NVSHARE_REQUIRE_SCHEDULER", "1"}});
  std::optional<int> status = child.wait(patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(*status, 3) << child.log();  // a CUDA error
  EXPECT_TRUE(child.logged("NVSHARE_REQUIRE_SCHEDULER=1")) << child.log();
}

TEST(Shortages, NoSchedulerAndTheProgramIsToWaitForOne) {
  Stage stage;
  Child& child = stage.start("waits", kShortMix, {{"NVSHARE_REQUIRE_SCHEDULER", "wait"}});
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("waits for one before it uses the GPU") || !child.running(); })) << child.log();
  EXPECT_TRUE(child.running()) << child.log();
  stage.start_scheduler();
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

TEST(Shortages, NoNvml) {
  StageOptions options;
  options.gpu["SIMGPU_NO_NVML"] = "1";
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 3; ++i) {
    stage.start("mix-" + std::to_string(i),
                {"mix", "--seed", std::to_string(i), "--steps", std::to_string(scaled(600, 60)), "--hold", "100M", "--largest", "80M"});
  }
  bool turns = stage.wait_until([&] {
    auto report = stage.status();
    return (report && !report->gpus.empty() && report->gpus[0].switches >= 3) || stage.anybody_ended();
  });
  EXPECT_TRUE(turns);
  auto report = stage.status();
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->nvml);
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

TEST(Shortages, ForeignMemoryIsLeftAlone) {
  Stage stage;
  stage.start_scheduler();
  Child& foreign = stage.start_bare("foreign", {"hold", "--hold", "80M", "--go", stage.go_file("foreign")});
  ASSERT_TRUE(stage.wait_until([&] { return foreign.logged("standing still"); }));
  Child* children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = &stage.start("mix-" + std::to_string(i), {"mix", "--seed", std::to_string(i), "--steps", std::to_string(scaled(600, 60)),
                                                            "--hold", "60M", "--largest", "40M"});
  }
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return report && !report->gpus.empty() && report->gpus[0].foreign >= (80 << 20);
  }));
  for (Child* child : children) stage.expect_success(*child);
  stage.tell_to_go("foreign");
  stage.expect_success(foreign);
  stage.expect_gpu_unharmed();
}

// While others hold memory for a moment, a program that does not run asks for more than would fit for now: it waits, and is not refused.
TEST(Shortages, AllocationsWaitForAShortLivedNeighbour) {
  StageOptions options;
  options.switch_time = "60";
  Stage stage(options);
  stage.start_scheduler();
  Child& late = stage.start("late", {"hold", "--hold", "110M", "--more", "40M", "--go", stage.go_file("late")});
  ASSERT_TRUE(stage.wait_until([&] { return late.logged("standing still"); })) << late.log();
  Child& runs = stage.start("runs", {"serve", "--weights", "95M"});
  ASSERT_TRUE(stage.wait_until([&] { return runs.logged("serving"); })) << runs.log();
  Child& brief = stage.start_bare("brief", {"hold", "--hold", "70M", "--go", stage.go_file("brief")});
  ASSERT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return report && !report->gpus.empty() && report->gpus[0].foreign >= (70 << 20);
  })) << stage.raw_status();
  stage.tell_to_go("late");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(late.running()) << late.log();
  stage.tell_to_go("brief");
  stage.expect_success(brief);
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// The same of one that runs, whose growth the scheduler refuses for the moment.
TEST(Shortages, GrowthOfARunningProgramWaitsForAShortLivedNeighbour) {
  Stage stage;
  stage.start_scheduler();
  Child& runs = stage.start("runs", {"hold", "--hold", "110M", "--more", "40M", "--go", stage.go_file("runs")});
  ASSERT_TRUE(stage.wait_until([&] { return runs.logged("standing still"); })) << runs.log();
  Child& brief = stage.start_bare("brief", {"hold", "--hold", "70M", "--go", stage.go_file("brief")});
  ASSERT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return report && !report->gpus.empty() && report->gpus[0].foreign >= (70 << 20);
  })) << stage.raw_status();
  stage.tell_to_go("runs");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(runs.running()) << runs.log();
  stage.tell_to_go("brief");
  stage.expect_success(brief);
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// The scheduler has little room for swapped memory: who does not fit waits for the others' end, and nobody loses data.
TEST(Shortages, LittleHostMemoryByBudget) {
  StageOptions options;
  options.scheduler["NVSHARE_HOST_MEMORY_BUDGET"] = "40Mi";
  Stage stage(options);
  stage.start_scheduler();
  stage.tell_to_go("all");
  for (int i = 0; i < 4; ++i) {
    stage.start("hold-" + std::to_string(i),
                {"hold", "--hold", i % 2 == 0 ? "150M" : "90M", "--steps", std::to_string(scaled(40, 5)), "--go", stage.go_file("all")});
  }
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// The programs themselves find no host memory: what cannot move stays, and they still come to their ends.
TEST(Shortages, NoHostMemoryInTheProcess) {
  StageOptions options;
  options.gpu["SIMGPU_FAULTS"] = "register_fail:1";
  Stage stage(options);
  stage.start_scheduler();
  stage.tell_to_go("all");
  for (int i = 0; i < 3; ++i) {
    stage.start("hold-" + std::to_string(i),
                {"hold", "--hold", "120M", "--steps", std::to_string(scaled(40, 5)), "--go", stage.go_file("all")});
  }
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// Page-locking fails, and GPU memory is short for a moment after others gave theirs back, as on real drivers.
TEST(Shortages, TheDriverFailsNowAndThen) {
  StageOptions options;
  options.gpu["SIMGPU_FAULTS"] = "register_fail:0.3,create_oom:0.02,create_oom_moment:3";
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 3; ++i) stage.start("grow-" + std::to_string(i), {"grow", "--hold", "100M", "--piece", "10M"});
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return (report && !report->gpus.empty() && report->gpus[0].switches >= static_cast<uint64_t>(scaled(30, 6))) || stage.anybody_ended();
  }));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// A driver that refuses a context though the GPU has room has its reasons (seen on an H200, driver 580): the program hears of it at once.
TEST(Shortages, AContextRefusedThoughThereIsRoomIsNotWaitedFor) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("refused", {"another-context", "--go", stage.go_file("refused")});
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("standing still"); })) << child.log();
  stage.order_gpu("set_faults context_oom:1");
  stage.tell_to_go("refused");
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("another context: 2"); })) << child.log();
  stage.order_gpu("set_faults ");
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("attempts lasted a moment")) << child.log();
  EXPECT_TRUE(child.logged("the driver has another reason")) << child.log();
}

// What cannot be copied out stays where it is; the one that needs the room waits, and runs once copies work again.
TEST(Shortages, CopyingOutFailsForAWhile) {
  Stage stage;
  stage.start_scheduler();
  Child& stays = stage.start("stays", {"hold", "--hold", "150M", "--go", stage.go_file("stays")});
  ASSERT_TRUE(stage.wait_until([&] { return stays.logged("standing still"); }));
  stage.order_gpu("set_faults copy_fail:1");
  Child& waits = stage.start("waits", {"hold", "--hold", "150M", "--go", stage.go_file("waits")});
  ASSERT_TRUE(stage.wait_until([&] {
    auto client = stage.client_of(waits.pid());
    return client && client->allocated >= (150 << 20);
  }));
  usleep(500'000);
  EXPECT_TRUE(stays.running() && waits.running());
  auto client = stage.client_of(stays.pid());
  ASSERT_TRUE(client);
  EXPECT_GE(client->resident, 150 << 20) << "what could not be copied left the GPU";
  stage.order_gpu("set_faults ");
  EXPECT_TRUE(stage.wait_until([&] { return waits.logged("standing still"); }));
  stage.tell_to_go("waits");
  stage.tell_to_go("stays");
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// A program whose GPU, or MPS server, was lost before it had its first turn is let through to see the driver's error.
TEST(Shortages, AGpuLostBeforeTheFirstTurnIsSeenByTheProgram) {
  StageOptions options;
  options.switch_time = "600";                // no turn ends by itself
  options.scheduler["NVSHARE_NVML"] = "off";  // which is lost with the GPU, and would have to say that the first one's memory is free
  Stage stage(options);
  stage.start_scheduler();
  Child& first = stage.start("first", {"hold", "--hold", "150M", "--go", stage.go_file("first")});
  ASSERT_TRUE(stage.wait_until([&] { return first.logged("standing still"); })) << first.log();
  stage.order_gpu("set_faults copy_fail:1");
  Child& waits = stage.start("waits", {"hold", "--hold", "150M", "--go", stage.go_file("waits")});
  ASSERT_TRUE(stage.wait_until([&] {
    auto client = stage.client_of(waits.pid());
    // The first one, which stands still, may give the GPU up at once; none of its memory can move out.
    return client && client->allocated >= (150 << 20) && (client->state == "waiting" || client->state == "loading");
  })) << stage.raw_status();
  EXPECT_EQ(stage.client_of(waits.pid())->resident, 0u);
  stage.order_gpu("set_faults device_lost:1");
  kill(first.pid(), SIGKILL);
  EXPECT_TRUE(stage.wait_until([&] { return !waits.running(); })) << stage.raw_status() << waits.log();
  EXPECT_TRUE(waits.logged("CUDA error 999")) << waits.log();
  stage.order_gpu("set_faults ");
  stage.forget(first);
  stage.forget(waits);
}

TEST(Shortages, LimitOfAProgramUnderAScheduler) {
  Stage stage;
  stage.start_scheduler();
  Child& neighbour = stage.start("neighbour", {"mix", "--hold", "120M", "--largest", "80M"});
  stage.expect_success(stage.start(
      "limited", {"limit", "--limit", "64M", "--piece", "4M"},
      {{"NVSHARE_GPU_MEMORY_LIMIT", "64Mi"}, {"NVSHARE_GPU_MEMORY_GRANT", "200Mi"}, {"NVSHARE_GPU_MEMORY_GRANT_DEFAULT", "16Mi"}}));
  stage.expect_success(
      stage.start("granted", {"limit", "--limit", "48M", "--piece", "4M"},
                  {{"NVSHARE_GPU_MEMORY_LIMIT", "1Gi"}, {"NVSHARE_GPU_MEMORY_GRANT", "96Mi"}, {"NVSHARE_GPU_MEMORY_GRANT_GPUS", "2"}}));
  stage.expect_success(stage.start("default", {"limit", "--limit", "32M", "--piece", "4M"},
                                   {{"NVSHARE_GPU_MEMORY_LIMIT", ""}, {"NVSHARE_GPU_MEMORY_GRANT_DEFAULT", "32Mi"}}));
  stage.tell_to_stop();
  stage.expect_success(neighbour);
}

struct WrongSetting {
  const char* variable;
  const char* value;
  const char* accepted;
};

TEST(Shortages, WrongSettingsAreNamed) {
  Stage stage;
  for (const WrongSetting& each :
       {WrongSetting{"NVSHARE_MEMORY_BACKEND", "fast", "vmm"}, WrongSetting{"NVSHARE_LOG_LEVEL", "loud", "error"}}) {
    Child& child = stage.start(each.variable, kShortMix, {{each.variable, each.value}});
    stage.expect_success(child);
    EXPECT_TRUE(child.logged(std::string(each.variable))) << child.log();
    EXPECT_TRUE(child.logged(each.value)) << child.log();
    EXPECT_TRUE(child.logged(each.accepted)) << child.log();
  }
}

// Each variable without which a program may have more: a value that cannot be read gives it no GPU.
TEST(Shortages, AWrongLimitLiftsNone) {
  Stage stage;
  stage.start_scheduler();
  const auto expect_refused = [&](const WrongSetting& each) {
    Child& child = stage.start(each.variable, kShortMix, {{each.variable, each.value}});
    const std::optional<int> status = child.wait(patience());
    ASSERT_TRUE(status) << each.variable;
    EXPECT_NE(*status, 0) << each.variable;
    EXPECT_TRUE(child.logged(std::string(each.variable))) << child.log();
    EXPECT_TRUE(child.logged(each.value)) << child.log();
    EXPECT_TRUE(child.logged(each.accepted)) << child.log();
    EXPECT_TRUE(child.logged("is refused to this program")) << child.log();
  };
  for (const WrongSetting& each : {WrongSetting{"NVSHARE_GPU_MEMORY_LIMIT", "4gb", "accepted: bytes, or a number with K"},
                                   WrongSetting{"NVSHARE_GPU_MEMORY_GRANT", "4 Gi", "accepted: bytes"},
                                   WrongSetting{"NVSHARE_GPU_MEMORY_GRANT_GPUS", "two", "1 to 1000"},
                                   WrongSetting{"NVSHARE_GPU_MEMORY_GRANT_DEFAULT", "lots", "accepted: bytes"}}) {
    expect_refused(each);
  }
  stage.stop_scheduler();
  expect_refused({"NVSHARE_REQUIRE_SCHEDULER", "maybe", "accepted: 0, wait, 1"});
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
