// Which GPUs there are, and what ails them.
#include "kubernetes/devices/gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;

TEST(VisibleGpus, AreNamedByUuidOrNumber) {
  std::vector<Gpu> all = {{"GPU-a", 1, true, -1, 0}, {"MIG-b", 1, true, -1, 1}, {"GPU-c", 1, true}};
  auto names = [&](const std::string& visible) {
    auto chosen = visible_gpus(all, visible);
    std::string text;
    if (!chosen) return std::string(chosen.error().text);
    for (const Gpu& gpu : *chosen) text += gpu.uuid + " ";
    return text;
  };
  EXPECT_EQ(names("all"), "GPU-a MIG-b GPU-c ");
  EXPECT_EQ(names("GPU-c,0,0"), "GPU-c GPU-a ");
  EXPECT_EQ(names("none"), "");
  EXPECT_EQ(names("void"), "");
  EXPECT_NE(names("3").find("'3' is no GPU of this machine, which has GPU 0 (GPU-a), GPU 1 (MIG-b), GPU-c"), std::string::npos);
  all.resize(9, {"GPU-d", 1, true, -1, 3});
  EXPECT_NE(names("9").find("GPU 3 (GPU-d) and 1 more"), std::string::npos);
  EXPECT_NE(names("GPU-a,GPU-x").find("'GPU-x'"), std::string::npos);
}

TEST(Ailments, TwoLooksWithoutAnAnswerAndOneWith) {
  Ailments ailments;
  EXPECT_FALSE(ailments.saw("a", true));
  EXPECT_FALSE(ailments.saw("a", false));
  EXPECT_FALSE(ailments.saw("a", true));
  EXPECT_FALSE(ailments.saw("a", false));
  EXPECT_TRUE(ailments.saw("a", false));
  EXPECT_FALSE(ailments.healthy("a"));
  EXPECT_TRUE(ailments.healthy("b"));
  EXPECT_FALSE(ailments.saw("a", false));
  EXPECT_TRUE(ailments.saw("a", true));
  EXPECT_TRUE(ailments.healthy("a"));
}

TEST(Ailments, AnErrorOfTheGpuLastsUntilItWasAwayAndAProgramsIsNone) {
  Ailments ailments;
  for (uint64_t xid : {13, 31, 43, 45, 68, 109}) EXPECT_FALSE(ailments.reported("a", xid)) << xid;
  EXPECT_TRUE(ailments.healthy("a"));
  EXPECT_TRUE(ailments.reported("a", 79));
  EXPECT_FALSE(ailments.reported("a", 48)) << "it is unhealthy already";
  EXPECT_EQ(ailments.reason("a"), "the driver reported XID 48");
  EXPECT_TRUE(ailments.healthy("b"));
  EXPECT_FALSE(ailments.saw("a", true)) << "it answers, and is broken";
  ailments.saw("a", false);
  ailments.saw("a", true);
  EXPECT_FALSE(ailments.healthy("a")) << "one look may miss it";
  ailments.saw("a", false);
  ailments.saw("a", false);
  EXPECT_TRUE(ailments.saw("a", true)) << "a reset";
  ailments.scheduler_answers(false);
  EXPECT_FALSE(ailments.healthy("a"));
  EXPECT_FALSE(ailments.healthy("b"));
  ailments.scheduler_answers(true);
  EXPECT_TRUE(ailments.healthy("a"));
}

TEST(NumaNode, IsWhatTheKernelSaysOfThePciAddress) {
  std::string folder = (fs::temp_directory_path() / "nvshare-gpus-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto write = [&](const std::string& name, const std::string& content) {
    ASSERT_TRUE(write_file_atomically(folder + "/" + name, content));
  };
  const std::string device = folder + "/bus/pci/devices/0001:c1:00.0";
  fs::create_directories(device);
  write("bus/pci/devices/0001:c1:00.0/numa_node", "1\n");
  EXPECT_EQ(numa_node_of(folder, "00000001:C1:00.0"), 1);
  EXPECT_EQ(numa_node_of(folder, "0001:C1:00.0"), 1);
  EXPECT_EQ(numa_node_of(folder, "00000000:C1:00.0"), -1);
  EXPECT_EQ(numa_node_of(folder, ""), -1);
  write("bus/pci/devices/0001:c1:00.0/numa_node", "-1\n");
  EXPECT_EQ(numa_node_of(folder, "00000001:C1:00.0"), -1) << "a machine with one node";
  Gpu gpu{"GPU-a", int64_t{10} << 30, true, 1};
  EXPECT_EQ(virtual_gpus({gpu}, Division{}).at(0).numa_node, 1);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace nvshare::kubernetes
