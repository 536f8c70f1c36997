// What a node answers the kubelet, with what it has written down: CDI specifications, grants over a restart.
#include "kubernetes/kubelet/node.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kubernetes/devices/cdi.h"
#include "kubernetes/devices/install.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGib = 1LL << 30;

class NodeTest : public testing::Test {
 protected:
  NodeTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-node-XXXXXX").string();
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
  ~NodeTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) { ASSERT_TRUE(write_file_atomically(folder_ + "/" + name, content)); }
  InstalledFiles install(const std::string& name) {
    auto files = install_files(folder_ + "/" + name, settings_.install_dir, "1.2.3");
    EXPECT_TRUE(files) << files.error().text;
    return files ? *files : InstalledFiles{};
  }

  std::string folder_;
  Settings settings_;
};

TEST_F(NodeTest, CdiDevicesAreDescribedAndStayDescribed) {
  settings_.cdi = Cdi::kWithNvidia;
  auto files = install("library-1");
  auto node = Node::open(settings_, files, {{"GPU-b", 10 * kGib, true}, {"GPU-a", 10 * kGib, true}});
  ASSERT_TRUE(node) << node.error().text;
  auto edits = (*node)->allocate(Resource::kGpu, {"GPU-b::0", "GPU-a::1"});
  ASSERT_TRUE(edits) << edits.error().text;
  EXPECT_TRUE(edits->variables.empty() && edits->mounts.empty());
  EXPECT_EQ(edits->cdi_devices, (std::vector<std::string>{"nvshare.com/gpu=GPU-a:GPU-b", "nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}));
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

  // Another default reaches containers that start again.
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

TEST_F(NodeTest, AllocateRefusesWhatIsNotOfThisNode) {
  auto node = Node::open(settings_, install("library-1"), {{"GPU-a", 10 * kGib, true}});
  ASSERT_TRUE(node);
  EXPECT_FALSE((*node)->allocate(Resource::kGpu, {"GPU-b::0"}));
  EXPECT_FALSE((*node)->allocate(Resource::kGpu, {"memory-00001"}));
  EXPECT_FALSE((*node)->allocate(Resource::kGpu, {}));
}

TEST_F(NodeTest, ANodeRemembersItsGrantsAndRefusesSizesThatCannotBe) {
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

}  // namespace
}  // namespace nvshare::kubernetes
