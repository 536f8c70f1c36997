// What NVML shows a tenant: its limit, its use, its processes, and nothing of its neighbours'.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <sstream>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Seen {
  uint64_t total = 0, used = 0, free = 0;
  std::map<int, uint64_t> processes;  // pid -> bytes
};

class NvmlView : public testing::Test {
 protected:
  // Everything that the viewer printed, whose three lists of computing processes must agree.
  Seen look(const std::string& viewer, bool preload = true, const Environment& more = {}, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), viewer);
    Child& child = stage_.start_command("look-" + std::to_string(++looks_), arguments, preload, more);
    last_ = child.pid();
    stage_.expect_success(child);
    Seen seen;
    std::istringstream lines(child.log());
    std::vector<std::string> lists;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string what;
      fields >> what;
      if (what == "memory") fields >> seen.total >> seen.used >> seen.free;
      if (what.starts_with("compute")) lists.push_back(line.substr(line.find(' ')));
      if (what == "graphics" || what == "mps") {
        EXPECT_TRUE(line.ends_with(" 0")) << line;
      }
      if (what != "compute") continue;
      int pid = 0;
      char colon = 0;
      fields >> pid;  // the count
      for (uint64_t bytes = 0; fields >> pid >> colon >> bytes;) seen.processes[pid] = bytes;
    }
    EXPECT_EQ(lists.size(), 3u) << child.log();
    for (const std::string& list : lists) EXPECT_EQ(list, lists.front());
    EXPECT_EQ(seen.used + seen.free, seen.total) << child.log();
    stage_.forget(child);
    return seen;
  }

  // A program of the test's own tenant that has so much, and stands still.
  Child& hold(const std::string& name, const std::string& bytes) {
    Child& child = stage_.start(name, {"hold", "--hold", bytes});
    EXPECT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
    return child;
  }

  Stage stage_;
  int looks_ = 0;
  pid_t last_ = 0;
};

TEST_F(NvmlView, ATenantSeesItsLimitAndItsOwnUse) {
  stage_.start_scheduler();
  stage_.make_tenant("mine", getpid());
  stage_.start_tenant("neighbour", {{"hold", "--hold", "60M"}});
  Child& one = hold("one", "40M");
  Child& two = hold("two", "20M");
  ASSERT_TRUE(stage_.wait_until([&] {
    auto report = stage_.status();
    return report && report->clients.size() == 3;
  }));

  for (const char* viewer : {kNvmlViewerPath, kNvmlLinkedViewerPath}) {
    const Seen seen = look(viewer);
    EXPECT_EQ(seen.total, 256 * kMiB) << viewer;
    ASSERT_EQ(seen.processes.size(), 2u) << viewer;
    ASSERT_TRUE(seen.processes.count(one.pid()) == 1 && seen.processes.count(two.pid()) == 1) << viewer;
    EXPECT_GE(seen.processes.at(one.pid()), 40 * kMiB);
    EXPECT_GE(seen.processes.at(two.pid()), 20 * kMiB);
    EXPECT_EQ(seen.used, seen.processes.at(one.pid()) + seen.processes.at(two.pid()));
    EXPECT_LT(seen.used, 80 * kMiB) << "the neighbour's is not ours";
  }

  stage_.make_tenant("mine", getpid(), 100 * kMiB);
  Seen seen = look(kNvmlViewerPath);
  EXPECT_EQ(seen.total, 100 * kMiB);
  EXPECT_GE(seen.used, 60 * kMiB);
  seen = look(kNvmlViewerPath, true, {{"NVSHARE_GPU_MEMORY_LIMIT", "90Mi"}});
  EXPECT_EQ(seen.total, 90 * kMiB) << "a program's own limit lowers it";
  seen = look(kNvmlViewerPath, true, {}, {"--cuda", std::to_string(10 * kMiB)});
  EXPECT_EQ(seen.processes.size(), 3u);
  EXPECT_EQ(seen.processes[last_], 10 * kMiB) << "its own, at once";

  seen = look(kNvmlViewerPath, false);
  EXPECT_EQ(seen.total, 256 * kMiB) << "outside the library the GPU is as ever";
  EXPECT_EQ(seen.processes.size(), 3u);
  stage_.tell_to_stop();
  stage_.expect_success(one);
  stage_.expect_success(two);
}

TEST_F(NvmlView, WithoutASchedulerOnlyALimitOfItsOwnIsShown) {
  Child& other = stage_.start_bare("other", {"hold", "--hold", "40M"});
  ASSERT_TRUE(stage_.wait_until([&] { return other.logged("standing still") || !other.running(); }));
  Seen seen = look(kNvmlViewerPath);
  EXPECT_EQ(seen.total, 256 * kMiB);
  EXPECT_GE(seen.used, 40 * kMiB);
  EXPECT_EQ(seen.processes.count(other.pid()), 1u);
  seen = look(kNvmlViewerPath, true, {{"NVSHARE_GPU_MEMORY_LIMIT", "50Mi"}});
  EXPECT_EQ(seen.total, 50 * kMiB);
  EXPECT_EQ(seen.used, 0u);
  EXPECT_TRUE(seen.processes.empty());
  stage_.tell_to_stop();
  stage_.expect_success(other);
}

}  // namespace
}  // namespace nvshare::e2e
