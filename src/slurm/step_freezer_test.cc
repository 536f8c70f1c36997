// In a folder that looks like a cgroup file system. What Slurm makes of a real one is in test/slurm.
#include "slurm/step_freezer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace nvshare::slurm {
namespace {

class StepFreezerTest : public testing::Test {
 protected:
  StepFreezerTest() {
    std::string name = "/tmp/nvs-freezer-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) root_ = name;
  }
  ~StepFreezerTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + file).parent_path());
    std::ofstream(root_ + file) << text;
  }
  std::string read(const std::string& file) const {
    std::string text;
    std::getline(std::ifstream(root_ + file) >> std::ws, text);
    return text;
  }

  std::string root_;
};

constexpr char kVersion1[] = "5:memory:/slurm/uid_0/job_7/step_0/task_0\n4:freezer:/slurm_node/uid_0/job_7/step_0\n0::/\n";
constexpr char kVersion2[] = "0::/system.slice/node_slurmstepd.scope/job_7/step_batch/user/task_0\n";

TEST_F(StepFreezerTest, ThawsAndFreezesAStepOfVersion1) {
  const std::string state = "/freezer/slurm_node/uid_0/job_7/step_0/freezer.state";
  write(state, "FREEZING\n");
  StepFreezer freezer(kVersion1, 7, root_);
  ASSERT_FALSE(freezer.empty());
  EXPECT_TRUE(freezer.is_freezing());
  EXPECT_FALSE(freezer.is_frozen());
  freezer.freeze();
  EXPECT_EQ(read(state), "FREEZING") << "what it has not thawed";
  freezer.thaw();
  EXPECT_EQ(read(state), "THAWED");
  EXPECT_FALSE(freezer.is_freezing());
  freezer.freeze();
  EXPECT_EQ(read(state), "FROZEN");
  EXPECT_TRUE(freezer.is_frozen());
}

TEST_F(StepFreezerTest, ThawsAndFreezesTheFolderOfVersion2ThatWasFrozen) {
  const std::string step = "/system.slice/node_slurmstepd.scope/job_7/step_batch";
  for (const char* folder : {"", "/user", "/user/task_0"}) write(step + folder + "/cgroup.freeze", "0\n");
  StepFreezer freezer(kVersion2, 7, root_);
  ASSERT_FALSE(freezer.empty());
  EXPECT_FALSE(freezer.is_freezing());
  write(step + "/user/cgroup.freeze", "1\n");
  EXPECT_TRUE(freezer.is_freezing());
  EXPECT_FALSE(freezer.is_frozen());
  write(step + "/user/task_0/cgroup.events", "populated 1\nfrozen 1\n");
  EXPECT_TRUE(freezer.is_frozen());
  freezer.thaw();
  EXPECT_EQ(read(step + "/user/cgroup.freeze"), "0");
  freezer.freeze();
  EXPECT_EQ(read(step + "/user/cgroup.freeze"), "1");
  EXPECT_EQ(read(step + "/cgroup.freeze"), "0") << "slurmstepd itself is there";
}

TEST_F(StepFreezerTest, KnowsWhoIsInTheStep) {
  write("/freezer/slurm_node/uid_0/job_7/step_0/freezer.state", "THAWED\n");
  const StepFreezer freezer(kVersion1, 7, root_);
  EXPECT_TRUE(freezer.contains(kVersion1));
  EXPECT_TRUE(freezer.contains("4:freezer:/slurm_node/uid_0/job_7/step_0/own\n"));
  for (const char* other : {"4:freezer:/slurm_node/uid_0/job_7/step_01\n", "4:freezer:/slurm_node/uid_0/job_7\n", "4:freezer:/\n", "",
                            "0::/slurm_node/uid_0/job_7/step_0\n"})
    EXPECT_FALSE(freezer.contains(other)) << other;
}

TEST_F(StepFreezerTest, IsEmptyWithoutACgroupOfTheJobsStep) {
  write("/freezer/slurm_node/uid_0/job_7/step_0/freezer.state", "THAWED\n");
  for (const char* other : {"", "4:freezer:/\n", "4:freezer:/slurm_node/uid_0/job_7\n", "0::/system.slice/slurmd.service\n", kVersion2})
    EXPECT_TRUE(StepFreezer(other, 7, root_).empty()) << other;
  EXPECT_TRUE(StepFreezer(kVersion1, 70, root_).empty());
  EXPECT_FALSE(StepFreezer().contains(kVersion1));
}

}  // namespace
}  // namespace nvshare::slurm
