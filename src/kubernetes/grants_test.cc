// What containers are given, how it gets onto the host, and which GPUs there are.
#include "kubernetes/grants.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kubernetes/cdi.h"
#include "kubernetes/gpus.h"
#include "kubernetes/install.h"
#include "kubernetes/node.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGib = 1LL << 30;

class GrantsTest : public testing::Test {
 protected:
  GrantsTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-grants-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    settings_.install_dir = folder_ + "/install";
    settings_.cdi_dir = folder_ + "/cdi";
    settings_.runtime_dir = "/run/other";
    write("library-1",
          "\x7f"
          "ELF one");
    write("library-2",
          "\x7f"
          "ELF two");
  }
  ~GrantsTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) { ASSERT_TRUE(write_file_atomically(folder_ + "/" + name, content)); }
  InstalledFiles install(const std::string& name) {
    auto files = install_files(folder_ + "/" + name, settings_.install_dir, "1.2.3");
    EXPECT_TRUE(files) << files.error().text;
    return files ? *files : InstalledFiles{};
  }
  static ino_t inode(const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  std::string folder_;
  Settings settings_;
};

TEST_F(GrantsTest, AContainerGetsTheLibraryTheSocketsFolderAndItsGpus) {
  InstalledFiles files{"/var/lib/nvshare/lib/libnvshare-1.so", "/var/lib/nvshare/lib/ld.so.preload"};
  auto one = grant_gpus(settings_, files, {"GPU-b::3"});
  EXPECT_EQ(one.variables, (std::map<std::string, std::string>{{"NVIDIA_VISIBLE_DEVICES", "GPU-b"}}));
  EXPECT_EQ(one.mounts, (std::vector<Mount>{{"/usr/lib/nvshare/libnvshare.so", files.library},
                                            {"/etc/ld.so.preload", files.preload},
                                            {"/run/nvshare/client", "/run/other/client"}}));
  EXPECT_TRUE(one.cdi_devices.empty());
  auto two = grant_gpus(settings_, files, {"GPU-b::3", "GPU-a::0", "GPU-b::4"});
  EXPECT_EQ(two.variables["NVIDIA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
  EXPECT_EQ(two.variables["NVSHARE_GPU_MEMORY_GRANT_GPUS"], "2");
  EXPECT_EQ(grant_memory(settings_, 4).variables["NVSHARE_GPU_MEMORY_LIMIT"], "4096Mi");
  EXPECT_EQ(grant_memory(settings_, 4).variables["NVSHARE_GPU_MEMORY_GRANT"], "4096Mi") << "which a pod's own variable does not replace";
  EXPECT_FALSE(one.variables.contains("NVSHARE_GPU_MEMORY_GRANT_DEFAULT"));
  settings_.division.default_memory = 3 * kGib;
  EXPECT_EQ(grant_gpus(settings_, files, {"GPU-b::3"}).variables["NVSHARE_GPU_MEMORY_GRANT_DEFAULT"], "3072Mi");
  EXPECT_EQ(grant_gpus(settings_, files, {"GPU-b::3", "GPU-a::0"}).variables["NVSHARE_GPU_MEMORY_GRANT_DEFAULT"], "1536Mi")
      << "an even part on each";
  settings_.division.memory_unit = 1'500'000;
  EXPECT_EQ(grant_memory(settings_, 3).variables["NVSHARE_GPU_MEMORY_LIMIT"], "4500000");
}

TEST_F(GrantsTest, CdiDevicesAreDescribedAndStayDescribed) {
  settings_.cdi = Cdi::kWithNvidia;
  auto files = install("library-1");
  auto node = Node::open(settings_, files, {{"GPU-b", 10 * kGib, true}, {"GPU-a", 10 * kGib, true}});
  ASSERT_TRUE(node) << node.error().text;
  auto grant = (*node)->allocate(Resource::kGpu, {"GPU-b::0", "GPU-a::1"});
  ASSERT_TRUE(grant) << grant.error().text;
  EXPECT_TRUE(grant->variables.empty() && grant->mounts.empty());
  EXPECT_EQ(grant->cdi_devices, (std::vector<std::string>{"nvshare.com/gpu=GPU-a:GPU-b", "nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}));
  ASSERT_TRUE((*node)->allocate(Resource::kMemory, {"memory-00000", "memory-00001"}));

  auto spec = nlohmann::json::parse(*read_file(settings_.cdi_dir + "/nvshare.com-gpu.json"));
  EXPECT_EQ(spec["cdiVersion"], "0.5.0");
  EXPECT_EQ(spec["kind"], "nvshare.com/gpu");
  EXPECT_EQ(spec["devices"][0]["name"], "GPU-a:GPU-b");
  EXPECT_EQ(spec["devices"][0]["containerEdits"]["env"],
            nlohmann::json::array({"NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b", "NVSHARE_GPU_MEMORY_GRANT_GPUS=2"}));
  EXPECT_EQ(spec["containerEdits"]["mounts"][0]["hostPath"], files.library);
  spec = nlohmann::json::parse(*read_file(settings_.cdi_dir + "/nvshare.com-gpu-memory.json"));
  EXPECT_EQ(spec["devices"][0]["name"], "2048Mi");
  EXPECT_EQ(spec["devices"][0]["containerEdits"]["env"],
            nlohmann::json::array({"NVSHARE_GPU_MEMORY_GRANT=2048Mi", "NVSHARE_GPU_MEMORY_LIMIT=2048Mi"}));

  // Another default reaches those who start again.
  settings_.division.default_memory = kGib;
  EXPECT_NE(CdiSpecs(settings_, files).gpu_spec().find("NVSHARE_GPU_MEMORY_GRANT_DEFAULT=512Mi"), std::string::npos);
  settings_.division.default_memory = 0;

  // A plugin of a later version: the old names stay, with the new library.
  auto newer = install("library-2");
  CdiSpecs later(settings_, newer);
  ASSERT_TRUE(later.describe_gpus({{"GPU-a"}}));
  spec = nlohmann::json::parse(*read_file(settings_.cdi_dir + "/nvshare.com-gpu.json"));
  EXPECT_EQ(spec["devices"].size(), 2u);
  EXPECT_EQ(spec["containerEdits"]["mounts"][0]["hostPath"], newer.library);
  // The machine started anew: the folder is empty, the kubelet still gives the names out.
  fs::remove_all(settings_.cdi_dir);
  auto again = Node::open(settings_, newer, {{"GPU-a", 10 * kGib, true}, {"GPU-b", 10 * kGib, true}});
  ASSERT_TRUE(again);
  (*again)->update({{"default", "pod", "main", {"GPU-a::1", "GPU-b::0"}, {"memory-00000"}, {}}});
  EXPECT_NE(read_file(settings_.cdi_dir + "/nvshare.com-gpu.json")->find("GPU-a:GPU-b"), std::string::npos);
  EXPECT_NE(read_file(settings_.cdi_dir + "/nvshare.com-gpu-memory.json")->find("1024Mi"), std::string::npos);
}

TEST_F(GrantsTest, VersionsOfTheLibraryStandSideBySide) {
  auto first = install("library-1");
  ino_t before = inode(first.library);
  ino_t preload = inode(first.preload);
  EXPECT_EQ(first.library.find(settings_.install_dir + "/lib/libnvshare-1.2.3-"), 0u) << first.library;
  EXPECT_EQ(*read_file(first.preload), "/usr/lib/nvshare/libnvshare.so\n");
  auto second = install("library-2");
  EXPECT_NE(second.library, first.library);
  EXPECT_EQ(*read_file(first.library),
            "\x7f"
            "ELF one");
  EXPECT_EQ(install("library-1").library, first.library);
  EXPECT_EQ(inode(first.library), before) << "what containers have mounted is left alone";
  EXPECT_EQ(inode(first.preload), preload);
  struct stat info {};
  ASSERT_EQ(stat(second.library.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
  EXPECT_EQ(std::distance(fs::directory_iterator(settings_.install_dir + "/lib"), {}), 3) << "no drafts are left";
  // Half a file of an earlier crash under the final name is replaced, and one with more in it.
  for (const uintmax_t bytes : {4, 40}) {
    std::filesystem::resize_file(first.library, bytes);
    install("library-1");
    EXPECT_EQ(*read_file(first.library),
              "\x7f"
              "ELF one");
  }
}

TEST_F(GrantsTest, WhatCannotBeInstalledIsRefusedByName) {
  write("text", "no library");
  EXPECT_NE(std::string(install_files(folder_ + "/text", settings_.install_dir, "1").error().text).find("/text"), std::string::npos);
  EXPECT_NE(std::string(install_files(folder_ + "/none", settings_.install_dir, "1").error().text).find("/none"), std::string::npos);
  EXPECT_NE(std::string(install_files(folder_ + "/library-1", folder_ + "/no/folder", "1").error().text).find("/no/folder"),
            std::string::npos);
}

TEST_F(GrantsTest, AllocateRefusesWhatIsNotOfThisNode) {
  auto node = Node::open(settings_, install("library-1"), {{"GPU-a", 10 * kGib, true}});
  ASSERT_TRUE(node);
  EXPECT_FALSE((*node)->allocate(Resource::kGpu, {"GPU-b::0"}));
  EXPECT_FALSE((*node)->allocate(Resource::kGpu, {"memory-00001"}));
  EXPECT_FALSE((*node)->allocate(Resource::kGpu, {}));
}

TEST_F(GrantsTest, ANodeRemembersItsGrantsAndRefusesSizesThatCannotBe) {
  auto files = install("library-1");
  std::vector<HeldDevices> listed = {{"default", "a", "main", {"GPU-a::0"}, {}, {}}, {"default", "b", "main", {"GPU-a::1"}, {}, {}}};
  for (int i = 0; i < 6; ++i) listed[0].memory.insert(unit_id(Resource::kMemory, i));
  for (int i = 6; i < 10; ++i) listed[1].memory.insert(unit_id(Resource::kMemory, i));
  settings_.division.physical_memory = 8 * kGib;
  {
    auto node = Node::open(settings_, files, {{"GPU-a", 10 * kGib, true}});
    ASSERT_TRUE(node);
    (*node)->update({});
    (*node)->update(listed);
    EXPECT_EQ((*node)->admit(Resource::kGpu, {"GPU-a::1"}).kind, Admission::Kind::kGranted);
  }
  auto node = Node::open(settings_, files, {{"GPU-a", 10 * kGib, true}});
  ASSERT_TRUE(node);
  (*node)->update(listed);
  EXPECT_EQ((*node)->admit(Resource::kGpu, {"GPU-a::0"}).kind, Admission::Kind::kRefused);
  EXPECT_EQ((*node)->admit(Resource::kGpu, {"GPU-a::1"}).kind, Admission::Kind::kGranted);

  settings_.division.memory_unit = 16 * kGib;
  auto small = Node::open(settings_, files, {{"GPU-a", 10 * kGib, true}});
  ASSERT_FALSE(small);
  EXPECT_NE(std::string(small.error().text).find("GPU-a has less memory than one unit"), std::string::npos);
  settings_.division = {};
  settings_.division.memory_unit = 1 << 20;
  auto many = Node::open(settings_, files, {{"GPU-a", 141 * kGib, true}});
  ASSERT_FALSE(many);
  EXPECT_NE(std::string(many.error().text).find("NVSHARE_GPU_MEMORY_UNIT"), std::string::npos);
}

// ---- GPUs ----

TEST(VisibleGpus, AreNamedByUuidOrNumber) {
  std::vector<Gpu> all = {{"GPU-a", 1, true}, {"GPU-b", 1, true}, {"GPU-c", 1, true}};
  auto names = [&](const std::string& visible) {
    auto chosen = visible_gpus(all, visible);
    std::string text;
    if (!chosen) return std::string(chosen.error().text);
    for (const Gpu& gpu : *chosen) text += gpu.uuid + " ";
    return text;
  };
  EXPECT_EQ(names("all"), "GPU-a GPU-b GPU-c ");
  EXPECT_EQ(names("GPU-c,0,0"), "GPU-c GPU-a ");
  EXPECT_EQ(names("none"), "");
  EXPECT_EQ(names("void"), "");
  EXPECT_NE(names("3").find("'3' is no GPU of this machine, which has 3"), std::string::npos);
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

TEST_F(GrantsTest, TheNumaNodeIsWhatTheKernelSaysOfThePciAddress) {
  const std::string device = folder_ + "/bus/pci/devices/0001:c1:00.0";
  fs::create_directories(device);
  write("bus/pci/devices/0001:c1:00.0/numa_node", "1\n");
  EXPECT_EQ(numa_node_of(folder_, "00000001:C1:00.0"), 1);
  EXPECT_EQ(numa_node_of(folder_, "0001:C1:00.0"), 1);
  EXPECT_EQ(numa_node_of(folder_, "00000000:C1:00.0"), -1);
  EXPECT_EQ(numa_node_of(folder_, ""), -1);
  write("bus/pci/devices/0001:c1:00.0/numa_node", "-1\n");
  EXPECT_EQ(numa_node_of(folder_, "00000001:C1:00.0"), -1) << "a machine with one node";
  Gpu gpu{"GPU-a", 10 * kGib, true, 1};
  EXPECT_EQ(virtual_gpus({gpu}, Division{}).at(0).numa_node, 1);
}

}  // namespace
}  // namespace nvshare::kubernetes
