// Every change of the kubelet's checkpoint is heard; what cannot be read changes nothing.
#include "kubernetes/pods/checkpoint_watch.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "kubernetes/pods/test_checkpoint.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class CheckpointWatchTest : public testing::Test {
 protected:
  CheckpointWatchTest() {
    spdlog::set_level(spdlog::level::off);
    std::string name = (fs::temp_directory_path() / "nvs-checkpoint-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    fs::create_directories(plugins());
  }
  ~CheckpointWatchTest() override { fs::remove_all(folder_); }

  std::string plugins() const { return folder_ + "/device-plugins"; }
  static std::string text(int pods) {
    std::vector<CheckpointEntry> entries;
    for (int i = 0; i < pods; ++i)
      entries.push_back({"aa-" + std::to_string(i), "main", "nvshare.com/gpu", {"GPU-a::" + std::to_string(i)}});
    return checkpoint_text(entries);
  }
  CheckpointWatch watch(std::chrono::milliseconds look_interval = 3600s) {
    return CheckpointWatch(
        loop_, plugins(), {"nvshare.com/gpu", "nvshare.com/gpu-memory", "", {}},
        [this](const Checkpoint& checkpoint) {
          std::lock_guard lock(mutex_);
          pods_ = static_cast<int>(checkpoint.pods.size());
          ++told_;
        },
        look_interval);
  }
  bool hears(int pods) {
    for (auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms)) {
      std::lock_guard lock(mutex_);
      if (pods_ == pods) return true;
    }
    return false;
  }
  int reports() {
    std::lock_guard lock(mutex_);
    return told_;
  }

  std::string folder_;
  std::mutex mutex_;
  int pods_ = -1;  // heard of
  int told_ = 0;
  LoopThread loop_;  // last: what it calls uses the members above
};

TEST_F(CheckpointWatchTest, EveryChangeIsHeard) {
  const auto watch = this->watch();
  for (int pods = 1; pods <= 20; ++pods) {
    write_checkpoint(plugins(), text(pods));
    ASSERT_TRUE(hears(pods));
  }
  const int before = this->reports();
  std::ofstream(plugins() + "/other") << "not of interest";
  write_checkpoint(plugins(), text(3).substr(0, 50));
  write_checkpoint(plugins(), "");
  fs::remove(plugins() + "/" + kCheckpointName);
  write_checkpoint(plugins(), text(3));
  EXPECT_TRUE(hears(3));
  EXPECT_EQ(this->reports(), before + 1) << "half a file and none are no news";
}

// None, half of one, and a folder in its place: that is not "no pod holds anything".
TEST_F(CheckpointWatchTest, AFileThatIsNotThereOrCannotBeReadSaysNothing) {
  const std::string file = plugins() + "/" + kCheckpointName;
  for (int round = 0; round < 3; ++round) {
    const auto watch = this->watch(1ms);
    if (round == 1) write_checkpoint(plugins(), text(3).substr(0, 50));
    if (round == 2) fs::create_directories(file);
    std::this_thread::sleep_for(20ms);  // some looks
    EXPECT_EQ(reports(), round);
    fs::remove(file);
    write_checkpoint(plugins(), text(3 + round));
    EXPECT_TRUE(hears(3 + round));
    fs::remove(file);
  }
}

TEST_F(CheckpointWatchTest, AFileWrittenInPlaceAndAFolderThatIsReplaced) {
  write_checkpoint(plugins(), text(2));
  const auto watch = this->watch(100ms);
  EXPECT_TRUE(hears(2)) << "what was there before";
  {
    std::ofstream stream(plugins() + "/" + kCheckpointName);
    const std::string all = text(5);
    stream << all.substr(0, 100) << std::flush;
    std::this_thread::sleep_for(5ms);
    stream << all.substr(100);
  }
  EXPECT_TRUE(hears(5));
  fs::rename(plugins(), folder_ + "/old");
  fs::create_directories(plugins());
  write_checkpoint(plugins(), text(6));
  EXPECT_TRUE(hears(6));
  write_checkpoint(plugins(), text(7));
  EXPECT_TRUE(hears(7));
}

}  // namespace
}  // namespace nvshare::kubernetes
