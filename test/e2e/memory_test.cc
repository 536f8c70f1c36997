// Every way to hold GPU memory besides plain allocations: counted, kept right over turns, and room made where the driver itself runs out.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

constexpr int64_t kMiB = 1 << 20;

class Memory : public testing::Test {
 protected:
  void SetUp() override { stage_.start_scheduler(); }
  void TearDown() override {
    stage_.tell_to_stop();
    stage_.expect_success_of_all();
    stage_.expect_gpu_unharmed();
  }

  // A neighbour that makes everybody else take turns.
  void start_neighbour(const std::string& hold = "110M") {
    stage_.start("neighbour", {"mix", "--seed", "99", "--hold", hold, "--largest", "80M"});
  }

  // Until the program had so many turns and `seen` was true of it at some time.
  void run_for_turns(Child& child, int turns, const std::function<bool(const protocol::admin::ClientReport&)>& seen) {
    uint64_t had = 0;
    bool was_seen = false;
    EXPECT_TRUE(stage_.wait_until([&] {
      if (auto client = stage_.client_of(child.pid())) {
        had = client->turns;
        was_seen = was_seen || seen(*client);
      }
      return (had >= static_cast<uint64_t>(turns) && was_seen) || !child.running();
    })) << had
        << " turns, " << (was_seen ? "" : "not ") << "seen";
    EXPECT_TRUE(child.running()) << child.log();
  }

  Stage stage_;
};

TEST_F(Memory, ArraysStayWhereTheyAreAndAreCounted) {
  start_neighbour();
  // 16 MiB and 21 MiB in arrays; three blocks of 16 MiB besides what it holds.
  run_for_turns(stage_.start("arrays", {"arrays", "--hold", "60M", "--array", "8M"}), scaled(12, 4),
                [](const auto& client) { return client.swapped > 0 && client.unswappable >= 18 * kMiB && client.resident >= 18 * kMiB; });
}

std::string pass_of(const std::string& log, int pass) {
  const size_t from = log.find("pass " + std::to_string(pass) + "\n");
  const size_t to = from == std::string::npos ? from : log.find("end of pass", from);
  if (to == std::string::npos) return "";
  const size_t first = log.find('\n', from) + 1;
  return log.substr(first, to - first);
}

// In a turn, and swapped out.
TEST_F(Memory, PointersAreAnsweredForAsTheDriverDoes) {
  stage_.tell_to_go("bare");
  Child& bare = stage_.start_bare("bare", {"pointers", "--go", stage_.go_file("bare")});
  stage_.expect_success(bare);
  const std::string expected = pass_of(bare.log(), 0);
  ASSERT_NE(expected.find("large +0: range 0 104857600, type 2, device 0"), std::string::npos) << bare.log();
  Child& child = stage_.start("pointers", {"pointers", "--go", stage_.go_file("pointers")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  EXPECT_EQ(expected, pass_of(child.log(), 0));
  stage_.start("large", {"mix", "--seed", "98", "--floor", "130M", "--hold", "144M", "--largest", "14M"});
  EXPECT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    return (client && client->swapped >= 90 * kMiB) || !child.running();
  }));
  stage_.tell_to_go("pointers");
  EXPECT_TRUE(stage_.wait_until([&] { return !pass_of(child.log(), 1).empty() || !child.running(); }));
  EXPECT_EQ(expected, pass_of(child.log(), 1));
  stage_.expect_success(child);
}

// What is freed may be kept for the next allocation, but much of it for a moment only, also where nobody asks for it.
TEST_F(Memory, FreedMemoryGoesBackByItself) {
  Child& child = stage_.start("free-and-stay", {"free-and-stay", "--hold", "30M"});
  ASSERT_TRUE(stage_.wait_until([&] { return child.log().find("freed") != std::string::npos || !child.running(); }));
  EXPECT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    return client && client->resident < 3 * kMiB;
  })) << child.log();
}

// No copy is made of what was freed in stream order and is done: of 80 MiB only what is still in use goes to the host.
TEST_F(Memory, WhatWasFreedInStreamOrderIsNotSwapped) {
  Child& child = stage_.start("free-and-stay", {"free-and-stay", "--hold", "2M", "--keep", "20M", "--ordered", "60M"});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("freed") || !child.running(); })) << child.log();
  stage_.start("large", {"mix", "--seed", "98", "--floor", "190M", "--hold", "200M", "--largest", "10M"});
  int64_t most = 0;
  EXPECT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    if (client) most = std::max(most, client->swapped);
    return (client && client->swapped >= 20 * kMiB && client->resident == 0) || !child.running();
  })) << child.log();
  EXPECT_LE(most, 26 * kMiB);
}

// A stream passes its frees one after the other, so each look asks about the oldest alone.
TEST_F(Memory, ManyPendingFreesCostAnAllocationFewQuestions) {
  Child& child = stage_.start("pending", {"pending-frees", "--count", "500"});
  stage_.expect_success(child);
  const std::string log = child.log();
  const size_t at = log.find("questions: ");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_LE(std::stol(log.substr(at + 11)), 1000);
}

// Bytes of a process's mappings that no core file has.
int64_t not_dumped(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/smaps");
  int64_t sum = 0, size = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind("Size:", 0) == 0) size = std::stoll(line.substr(5)) * 1024;
    if (line.rfind("VmFlags:", 0) == 0 && (line + " ").find(" dd ") != std::string::npos) sum += size;
  }
  return sum;
}

// Gigabytes that are no help in a core file stay out of it.
TEST_F(Memory, CoreFilesLeaveOutWhatIsSwapped) {
  Child& child = stage_.start("free-and-stay", {"free-and-stay", "--hold", "2M", "--keep", "40M"});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("freed") || !child.running(); })) << child.log();
  stage_.start("large", {"mix", "--seed", "98", "--floor", "190M", "--hold", "200M", "--largest", "10M"});
  ASSERT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    return (client && client->swapped >= 40 * kMiB) || !child.running();
  })) << child.log();
  EXPECT_GE(not_dumped(child.pid()), 40 * kMiB);
}

TEST_F(Memory, ManagedMemorySwapsByPrefetches) {
  start_neighbour();
  run_for_turns(stage_.start("managed", {"managed", "--hold", "110M"}), scaled(12, 4),
                [](const auto& client) { return client.swapped > 30 * kMiB && client.unswappable == 0; });
}

TEST_F(Memory, ManagedMemoryStaysOnTheHostByAdvice) {
  start_neighbour();
  run_for_turns(stage_.start("managed", {"managed", "--hold", "110M", "--advise", "1"}), scaled(8, 4),
                [](const auto& client) { return client.swapped > 30 * kMiB; });
}

// What does not fit is left to demand paging, and takes nothing from the neighbours.
TEST_F(Memory, MoreManagedMemoryThanTheGpuHas) {
  start_neighbour();
  run_for_turns(stage_.start("managed", {"managed", "--hold", "400M"}), scaled(8, 3),
                [](const auto& client) { return client.allocated < 300 * kMiB; });
}

TEST_F(Memory, GraphsReplayTheirAllocations) {
  start_neighbour();
  run_for_turns(stage_.start("graph-memory", {"graph-memory", "--hold", "70M", "--graph", "8M"}), scaled(15, 5),
                [](const auto& client) { return client.unswappable >= 8 * kMiB && client.swapped > 0; });
}

TEST_F(Memory, PoolsCountTheirMemory) {
  start_neighbour();
  run_for_turns(stage_.start("pools", {"pools", "--hold", "70M"}), scaled(15, 5),
                [](const auto& client) { return client.unswappable >= 6 * kMiB && client.swapped > 0; });
}

// Modules take more memory than is free beside the neighbour's: it has to move out.
TEST(DriverShortage, ModulesMakeRoomForThemselves) {
  StageOptions options;
  options.gpu["SIMGPU_MODULE_MB"] = "10";
  Stage stage(options);
  stage.start_scheduler();
  Child& neighbour = stage.start("neighbour", {"hold", "--hold", "130M", "--go", stage.go_file("neighbour")});
  ASSERT_TRUE(stage.wait_until([&] { return neighbour.logged("standing still") || !neighbour.running(); }));
  Child& loads = stage.start("loads", {"load", "--hold", "40M", "--modules", "9"});
  stage.expect_success(loads);
  stage.tell_to_go("neighbour");
  stage.expect_success(neighbour);
  stage.expect_gpu_unharmed();
}

TEST(DriverShortage, LazyModulesMakeRoomAtTheFirstLaunch) {
  StageOptions options;
  options.gpu["SIMGPU_MODULE_MB"] = "60";
  options.gpu["SIMGPU_LAZY_MODULES"] = "1";
  Stage stage(options);
  stage.start_scheduler();
  Child& neighbour = stage.start("neighbour", {"hold", "--hold", "130M", "--go", stage.go_file("neighbour")});
  ASSERT_TRUE(stage.wait_until([&] { return neighbour.logged("standing still") || !neighbour.running(); }));
  stage.expect_success(stage.start("loads", {"load", "--hold", "40M", "--modules", "2"}));
  stage.tell_to_go("neighbour");
  stage.expect_success(neighbour);
  stage.expect_gpu_unharmed();
}

// Launches, loads, streams and events run out of memory again and again while programs take turns; no program sees it.
TEST(DriverShortage, NowAndThenInEveryCall) {
  StageOptions options;
  options.gpu["SIMGPU_FAULTS"] = "driver_oom:0.05";
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 3; ++i) {
    stage.start("mix-" + std::to_string(i),
                {"mix", "--seed", std::to_string(i), "--steps", std::to_string(scaled(300, 40)), "--hold", "90M", "--largest", "70M"});
  }
  stage.start("graph", {"graph", "--hold", "60M"});
  stage.start("loads", {"load", "--hold", "20M", "--modules", std::to_string(scaled(40, 6))});
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return (report && !report->gpus.empty() && report->gpus[0].switches >= 4) || stage.anybody_ended();
  }));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// What can never be had is refused in the end, by name, and the program is told.
TEST(DriverShortage, WhatCannotBeHadIsRefused) {
  StageOptions options;
  options.gpu["SIMGPU_MODULE_MB"] = "300";
  Stage stage(options);
  stage.start_scheduler();
  Child& child = stage.start("loads", {"load", "--hold", "20M", "--modules", "1"});
  std::optional<int> status = child.wait(patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(*status, 3) << child.log();  // a CUDA error
  EXPECT_TRUE(child.logged("cuModuleLoadData is out of GPU memory on GPU 0")) << child.log();
}

}  // namespace
}  // namespace nvshare::e2e
