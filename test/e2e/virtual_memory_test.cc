// Programs that manage GPU memory themselves (cuMemCreate, cuMemMap): their memory moves like any other, and they do not notice.
#include <gtest/gtest.h>
#include <unistd.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

class VirtualMemory : public testing::Test {
 protected:
  void SetUp() override { stage_.start_scheduler(); }
  void TearDown() override {
    stage_.tell_to_stop();
    stage_.expect_success_of_all();
    stage_.expect_gpu_unharmed();
  }

  void start_neighbour() { stage_.start("neighbour", {"mix", "--seed", "99", "--hold", "120M", "--largest", "100M"}); }

  uint64_t turns_of(Child& child) {
    auto client = stage_.client_of(child.pid());
    return client ? client->turns : 0;
  }

  // So large that little fits beside it, at any time. What it has of small blocks is at most 14M, and takes up to 54 MiB: each of the 22
  // sizes that small allocations are rounded to has pages of its own. The GPU has 204 MiB for a program, less what others have that cannot
  // move.
  void start_large_neighbour() { stage_.start("large", {"mix", "--seed", "98", "--floor", "130M", "--hold", "144M", "--largest", "14M"}); }

  void wait_until_out(Child& child, int64_t bytes) {
    EXPECT_TRUE(stage_.wait_until([&] {
      auto client = stage_.client_of(child.pid());
      return (client && client->swapped >= bytes && child.logged("standing still")) || !child.running();
    }));
    EXPECT_TRUE(child.running()) << child.log();
  }

  Stage stage_;
};

TEST_F(VirtualMemory, ExpandableSegmentsTakeTurns) {
  Child* children[3];
  for (int i = 0; i < 3; ++i) {
    std::string name = "expandable-" + std::to_string(i);
    children[i] = &stage_.start(name, {"expandable", "--seed", std::to_string(i), "--hold", i == 2 ? "60M" : "100M"});
  }
  start_large_neighbour();
  const auto wanted = static_cast<uint64_t>(scaled(25, 4));
  EXPECT_TRUE(stage_.wait_until([&] {
    bool all = true;
    for (Child* child : children) all = all && turns_of(*child) >= wanted;
    return all || stage_.anybody_ended();
  }));
  for (Child* child : children) EXPECT_GE(turns_of(*child), wanted) << child->name();
}

TEST_F(VirtualMemory, HandlesComeAndGoAtEveryMoment) {
  start_large_neighbour();
  Child& child = stage_.start("churn", {"vmm-churn", "--hold", "80M", "--threads", "3"});
  const auto wanted = static_cast<uint64_t>(scaled(30, 6));
  EXPECT_TRUE(stage_.wait_until([&] { return turns_of(child) >= wanted || stage_.anybody_ended(); }));
  EXPECT_GE(turns_of(child), wanted);
}

TEST_F(VirtualMemory, SeveralMappingsAndNone) {
  Child& child = stage_.start("handles", {"handles", "--hold", "110M", "--go", stage_.go_file("handles")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  start_large_neighbour();
  wait_until_out(child, 100 << 20);
  auto client = stage_.client_of(child.pid());
  ASSERT_TRUE(client);
  EXPECT_EQ(client->unswappable, 0);
  stage_.tell_to_go("handles");
  const uint64_t turns = turns_of(child);
  EXPECT_TRUE(stage_.wait_until([&] { return turns_of(child) >= turns + static_cast<uint64_t>(scaled(10, 2)) || stage_.anybody_ended(); }));
}

std::string errors_of(const std::string& log, int time) {
  size_t at = 0;
  for (int i = 0; i <= time; ++i) {
    at = log.find("errors\n", i == 0 ? 0 : at + 1);
    if (at != std::string::npos && at >= 7 && log.compare(at - 7, 7, "end of ") == 0) at = log.find("errors\n", at + 1);
    if (at == std::string::npos) return "";
  }
  return log.substr(at, log.find("end of errors", at) - at);
}

// The same answers as from the driver itself, also while the memory is not there.
TEST_F(VirtualMemory, ErrorsAreTheDrivers) {
  stage_.tell_to_go("bare");
  Child& bare = stage_.start_bare("bare", {"vmm-errors", "--hold", "60M", "--go", stage_.go_file("bare")});
  stage_.expect_success(bare);
  const std::string expected = errors_of(bare.log(), 0);
  ASSERT_NE(expected.find("map over a mapping: 1"), std::string::npos) << bare.log();
  EXPECT_EQ(expected, errors_of(bare.log(), 1));
  Child& child = stage_.start("errors", {"vmm-errors", "--hold", "100M", "--go", stage_.go_file("errors")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  EXPECT_EQ(expected, errors_of(child.log(), 0));
  start_large_neighbour();
  wait_until_out(child, 100 << 20);
  stage_.tell_to_go("errors");
  stage_.expect_success(child);
  EXPECT_EQ(expected, errors_of(child.log(), 1));
}

// What another process may use stays on the GPU; the rest of the program still moves.
TEST_F(VirtualMemory, ExportedToAnotherProcess) {
  Child& child =
      stage_.start("export", {"vmm-export", "--hold", "90M", "--steps", std::to_string(scaled(4, 2)), "--go", stage_.go_file("export")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  start_large_neighbour();
  wait_until_out(child, 90 << 20);
  stage_.tell_to_go("export");
  EXPECT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    return (client && client->unswappable == (10 << 20)) || !child.running();
  }));
  stage_.expect_success(child);
}

TEST_F(VirtualMemory, LimitsCountHandles) {
  Child& child = stage_.start("limited", {"vmm-limit", "--limit", "40M"}, {{"NVSHARE_GPU_MEMORY_LIMIT", "40Mi"}});
  stage_.expect_success(child);
}

// The memory lock is never asked for: nothing runs. All of it may be given back while it is an address only.
TEST_F(VirtualMemory, LimitsHoldWithoutTheLock) {
  start_neighbour();
  Child& hog = stage_.start("hog", {"hold", "--hold", "120M", "--go", stage_.go_file("hog")});
  Child& child = stage_.start("limited", {"vmm-limit", "--limit", "80M"}, {{"NVSHARE_GPU_MEMORY_LIMIT", "80Mi"}});
  stage_.expect_success(child);
  stage_.tell_to_go("hog");
  stage_.expect_success(hog);
}

// With the backend that moves nothing, handles are the driver's own: the scheduler is to know of them all the same.
TEST_F(VirtualMemory, HandlesThatCannotMoveAreCounted) {
  Child& child = stage_.start("pinned", {"expandable", "--seed", "1", "--hold", "60M"}, {{"NVSHARE_MEMORY_BACKEND", "none"}});
  EXPECT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    return (client && client->unswappable >= (int64_t{40} << 20) && client->allocated >= client->unswappable) || !child.running();
  }));
  EXPECT_TRUE(child.running()) << child.log();
}

}  // namespace
}  // namespace nvshare::e2e
