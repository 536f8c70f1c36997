// Host memory for swapping: one budget for all, whose memory it is, and that it comes back.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Mappings of a process that its forked children do not get, of at least a unit of the arena: bytes in sum, and of them shared memory
// that the scheduler made.
struct Arena {
  int64_t bytes = 0;
  int64_t of_scheduler = 0;
  bool inherited = false;  // some of the scheduler's memory would be
  bool dumped = false;     // some of it would be in a core file
};

Arena arena_of(pid_t pid) {
  Arena arena;
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  bool lent = false;
  int64_t bytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    uint64_t from = 0;
    uint64_t to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      lent = line.find("memfd:nvshare-arena") != std::string::npos;
      bytes = static_cast<int64_t>(to - from);
    }
    if (line.rfind("VmFlags:", 0) != 0) continue;
    const bool stays = line.find(" dc") != std::string::npos;
    if (stays && bytes >= 2 * kMiB) arena.bytes += bytes;
    if (lent && stays) arena.of_scheduler += bytes;
    if (lent && !stays) arena.inherited = true;
    if (stays && bytes >= 2 * kMiB && line.find(" dd") == std::string::npos) arena.dumped = true;
  }
  return arena;
}

Arguments hold(Stage& stage, const std::string& name) {
  return {"hold", "--hold", "120M", "--steps", std::to_string(scaled(20, 5)), "--go", stage.go_file(name)};
}

// One holds its memory on the GPU, another has it swapped out in part for that.
struct Pair {
  Child* swapped;
  Child* resident;
};
Pair two_of_which_one_is_swapped(Stage& stage, const Environment& environment) {
  Pair pair{&stage.start("first", hold(stage, "first"), environment), nullptr};
  EXPECT_TRUE(stage.wait_until([&] { return pair.swapped->logged("standing still"); }));
  pair.resident = &stage.start("second", hold(stage, "second"), environment);
  EXPECT_TRUE(stage.wait_until([&] { return pair.resident->logged("standing still"); }));
  auto client = stage.client_of(pair.swapped->pid());
  EXPECT_TRUE(client && client->swapped > 0);
  return pair;
}

void finish(Stage& stage) {
  stage.tell_to_go("first");
  stage.tell_to_go("second");
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

TEST(HostMemory, WhoWaitsForItIsToldWhichBudgetAndHowMuchIsMissing) {
  StageOptions options;
  options.scheduler["NVSHARE_HOST_MEMORY_BUDGET"] = "20Mi";  // two of 120 MiB on what holds 204 have to move 36
  Stage stage(options);
  stage.start_scheduler();
  Child& first = stage.start("first", hold(stage, "first"));
  ASSERT_TRUE(stage.wait_until([&] { return first.logged("standing still"); }));
  Child& second = stage.start("second", hold(stage, "second"));
  EXPECT_TRUE(stage.wait_until([&] {
    auto client = stage.client_of(second.pid());
    return client && client->waiting_for.find("host memory") != std::string::npos &&
           client->waiting_for.find("are missing") != std::string::npos;
  }));
  auto report = stage.status();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->host_memory_budget, 20 * kMiB);
  EXPECT_NE(report->host_memory_bound.find("host_memory_budget"), std::string::npos) << report->host_memory_bound;
  EXPECT_LE(report->host_memory_reserved, 20 * kMiB);
  finish(stage);
}

TEST(HostMemory, AQuarterOfTheDemandIsNeverPassedAndAllFinish) {
  StageOptions options;
  options.scheduler["NVSHARE_HOST_MEMORY_BUDGET"] = "120Mi";
  Stage stage(options);
  stage.start_scheduler();
  stage.tell_to_go("all");
  for (int i = 0; i < 4; ++i) stage.start("hold-" + std::to_string(i), hold(stage, "all"));
  int64_t most = 0;
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    if (report) most = std::max(most, report->host_memory_reserved);
    return report && report->clients.empty() && stage.anybody_ended();
  }));
  EXPECT_GT(most, 0) << "nothing was ever swapped: the test shows nothing";
  EXPECT_LE(most, 120 * kMiB);
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

TEST(HostMemory, IsTheProgramsOwnWhereNothingBoundsIt) {
  Stage stage;
  stage.start_scheduler();
  Pair pair = two_of_which_one_is_swapped(stage, {{"NVSHARE_HOST_ARENA", "process"}});
  auto client = stage.client_of(pair.swapped->pid());
  ASSERT_TRUE(client);
  EXPECT_GE(client->host_memory_process, client->swapped);
  EXPECT_EQ(client->host_memory_scheduler, 0);
  Arena arena = arena_of(pair.swapped->pid());
  EXPECT_GE(arena.bytes, client->swapped) << "a forked child would get it";
  EXPECT_FALSE(arena.dumped) << "a core file would have it";
  EXPECT_EQ(arena.of_scheduler, 0);
  finish(stage);
}

// Making host memory takes ten times as long as copying to it, once. Turns go by what a swap costs, so that time is no part of its speed:
// with it, the speed could not be above that of making it.
TEST(HostMemory, TheTimeToMakeItIsNotTakenForTheLinksSpeed) {
  constexpr int kPinnedMbps = kSlowness == 1 ? 40 : 10;  // slow enough for a copy to be faster on any machine
  StageOptions options;
  options.gpu_memory_mb = 180;
  options.gpu = {{"SIMGPU_PIN_MBPS", std::to_string(kPinnedMbps)}};
  Stage stage(options);
  stage.start_scheduler();
  two_of_which_one_is_swapped(stage, {});
  double speed = 0;
  ASSERT_TRUE(stage.wait_until([&] {
    if (auto report = stage.status(); report && !report->gpus.empty()) speed = report->gpus[0].bandwidth_out;
    return speed > 0 || stage.anybody_ended();
  }));
  EXPECT_GE(speed, 1.25e6 * kPinnedMbps);
  stage.expect_gpu_unharmed();
}

// What a container with a small limit sees of its cgroup, in either version's files.
TEST(HostMemory, IsTheSchedulersWhereTheProgramsCgroupIsTight) {
  Stage stage;
  stage.start_scheduler();
  const std::filesystem::path root = stage.directory() + "/cgroup";
  std::filesystem::create_directories(root / "memory");
  for (const char* file : {"memory.max", "memory/memory.limit_in_bytes"}) std::ofstream(root / file) << 100 * kMiB << "\n";
  for (const char* file : {"memory.current", "memory/memory.usage_in_bytes"}) std::ofstream(root / file) << 60 * kMiB << "\n";
  Pair pair = two_of_which_one_is_swapped(stage, {{"NVSHARE_CGROUP_ROOT", root.string()}});
  auto client = stage.client_of(pair.swapped->pid());
  ASSERT_TRUE(client);
  EXPECT_EQ(client->host_memory_process, 0);
  EXPECT_GE(client->host_memory_scheduler, client->swapped);
  Arena arena = arena_of(pair.swapped->pid());
  EXPECT_GE(arena.of_scheduler, client->swapped);
  EXPECT_FALSE(arena.inherited) << "a forked child would get it";
  EXPECT_FALSE(arena.dumped) << "a core file would have it";

  // It survives its scheduler, and the next one knows of it.
  const int64_t lent = client->host_memory_scheduler;
  stage.kill_scheduler();
  stage.start_scheduler();
  EXPECT_TRUE(stage.wait_until([&] {
    auto again = stage.client_of(pair.swapped->pid());
    return again && again->host_memory_scheduler >= lent;
  }));
  finish(stage);
}

// The scheduler dies while a segment is made, and the next one is told only of those that are there: what is made then is given back, or
// nobody would ever count it.
TEST(HostMemory, ThatIsNotMadeYetIsGivenUpWithItsScheduler) {
  StageOptions options;
  options.gpu = {{"SIMGPU_PIN_MBPS", kSlowness == 1 ? "30" : "10"}};
  options.scheduler["NVSHARE_RESTART_GRACE"] = "0.5";
  Stage stage(options);
  stage.start_scheduler();
  const Environment own = {{"NVSHARE_HOST_ARENA", "process"}};
  Child& first = stage.start("first", hold(stage, "first"), own);
  ASSERT_TRUE(stage.wait_until([&] { return first.logged("standing still"); }));
  EXPECT_EQ(arena_of(first.pid()).bytes, 0);
  Child& second = stage.start("second", hold(stage, "second"), own);
  ASSERT_TRUE(stage.wait_until([&] { return arena_of(first.pid()).bytes > 0; }));
  const int64_t begun = arena_of(first.pid()).bytes;
  stage.kill_scheduler();
  stage.start_scheduler();
  ASSERT_TRUE(stage.wait_until([&] { return stage.client_of(first.pid()).has_value(); }));
  std::cout << begun / kMiB << " MiB were being made\n";
  ASSERT_TRUE(stage.wait_until([&] { return second.logged("standing still"); }));
  int64_t counted = 0, there = 0;
  EXPECT_TRUE(stage.wait_until(
      [&] {
        const auto client = stage.client_of(first.pid());
        counted = client ? client->host_memory_process : 0;
        there = arena_of(first.pid()).bytes;
        return counted == there;
      },
      moments()))
      << counted / kMiB << " MiB are counted, " << there / kMiB << " are there";
  finish(stage);
}

TEST(HostMemory, OfAKilledProgramIsFreeAgain) {
  Stage stage;
  stage.start_scheduler();
  Pair pair = two_of_which_one_is_swapped(stage, {{"NVSHARE_HOST_ARENA", "scheduler"}});
  ASSERT_GT(arena_of(pair.swapped->pid()).of_scheduler, 0);
  pair.swapped->signal(SIGKILL);
  pair.resident->signal(SIGKILL);
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return report && report->clients.empty() && report->host_memory_reserved == 0;
  }));
  EXPECT_EQ(arena_of(stage.scheduler().pid()).of_scheduler, 0) << "mapped no longer than it takes to make it";
}

}  // namespace
}  // namespace nvshare::e2e
