#include "base/cgroup_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace nvshare {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// A folder that looks like a cgroup mount.
class CgroupMemory : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "cgroup-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void file(const std::string& path, const std::string& text) {
    std::filesystem::path full = root_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }
  void limit(const std::string& folder, uint64_t limit_mib, uint64_t usage_mib) {
    file(folder + "/memory.max", std::to_string(limit_mib * kMiB));
    file(folder + "/memory.current", std::to_string(usage_mib * kMiB));
  }
  void limit_v1(const std::string& folder, const std::string& limit, uint64_t usage_mib) {
    file(folder + "/memory.limit_in_bytes", limit);
    file(folder + "/memory.usage_in_bytes", std::to_string(usage_mib * kMiB));
  }
  CgroupRoom room(const char* cgroups) { return cgroup_memory_room(cgroups, root_.c_str()); }

  std::string root_;
};

TEST_F(CgroupMemory, Version2TheTightestLevelCounts) {
  limit("pods/pod", 2048, 1000);
  limit("pods/pod/container", 4096, 900);
  CgroupRoom found = room("0::/pods/pod/container\n");
  EXPECT_EQ(found.limit, 2048 * kMiB);
  EXPECT_EQ(found.available, 1048 * kMiB);
  limit("pods/pod/container", 4096, 4000);
  EXPECT_EQ(room("0::/pods/pod/container\n").available, 96 * kMiB) << "what is left counts, not the limit";
}

TEST_F(CgroupMemory, Version2HighIsALimitToo) {
  limit("a", 4096, 100);
  file("a/memory.high", std::to_string(1024 * kMiB));
  EXPECT_EQ(room("0::/a\n").available, 924 * kMiB);
  file("a/memory.high", "max");
  EXPECT_EQ(room("0::/a\n").available, 3996 * kMiB);
}

TEST_F(CgroupMemory, WithoutALimitThereIsNone) {
  file("a/memory.max", "max");
  file("a/memory.current", "4096");
  EXPECT_FALSE(room("0::/a\n").limited());
  EXPECT_EQ(room("0::/a\n").available, UINT64_MAX);
  EXPECT_FALSE(room("").limited());
  EXPECT_FALSE(room("nonsense\n:\n::\n").limited());
  EXPECT_FALSE(room("0::/a").limited()) << "no newline at the end";
}

TEST_F(CgroupMemory, UsageAboveTheLimitLeavesNothing) {
  limit("a", 100, 200);
  EXPECT_EQ(room("0::/a\n").available, 0u);
}

TEST_F(CgroupMemory, FileCacheThatTheKernelDropsIsNoUsage) {
  limit("a", 1000, 900);
  file("a/memory.stat", "anon 5\nworkingset_inactive_file 7\nfile 9\ninactive_file " + std::to_string(600 * kMiB) + "\nactive_file 1");
  EXPECT_EQ(room("0::/a\n").available, 700 * kMiB);
  file("a/memory.stat", "inactive_file " + std::to_string(9000 * kMiB));
  EXPECT_EQ(room("0::/a\n").available, 1000 * kMiB) << "figures that do not belong together";
}

TEST_F(CgroupMemory, Version1HasItsOwnFiles) {
  limit_v1("memory/docker/x", std::to_string(512 * kMiB), 500);
  limit_v1("memory/docker", "9223372036854771712", 600);
  file("memory/docker/x/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(100 * kMiB));
  CgroupRoom found = room("4:memory:/docker/x\n3:cpu:/elsewhere\n0::/\n");
  EXPECT_EQ(found.limit, 512 * kMiB);
  EXPECT_EQ(found.available, 112 * kMiB);
  EXPECT_TRUE(room("5:cpuacct,memory,blkio:/docker/x\n").limited());
  EXPECT_FALSE(room("4:memory:/docker\n").limited()) << "a number near 2^63 is no limit";
  EXPECT_FALSE(room("4:memory2:/docker/x\n").limited()) << "another controller";
}

TEST_F(CgroupMemory, InAContainerTheMountsRootIsItsOwnCgroup) {
  limit(".", 300, 100);
  EXPECT_EQ(room("0::/\n").available, 200 * kMiB);
  EXPECT_EQ(room("0::/kubepods/pod1/abc\n").available, 200 * kMiB) << "a path of the host, not to be seen here";
  EXPECT_EQ(room("0::/../sibling\n").available, 200 * kMiB) << "outside of the cgroup namespace";
  limit_v1("memory", std::to_string(400 * kMiB), 100);
  EXPECT_EQ(room("4:memory:/kubepods/pod1/abc\n").available, 300 * kMiB);
}

TEST_F(CgroupMemory, OwnFollowsTheVariable) {
  // Whatever this process's cgroup is called, it does not exist here, so the root counts; both versions' files are there.
  limit(".", 300, 100);
  limit_v1("memory", std::to_string(300 * kMiB), 100);
  setenv(kCgroupRootVariable, root_.c_str(), 1);
  EXPECT_EQ(own_cgroup_memory_room().available, 200 * kMiB);
  unsetenv(kCgroupRootVariable);
}

}  // namespace
}  // namespace nvshare
