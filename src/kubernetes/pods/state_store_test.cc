// Files that a restart must not forget: written after each change, and again after a disk that took nothing.
#include "kubernetes/pods/state_store.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class StateStoreTest : public testing::Test {
 protected:
  StateStoreTest() {
    spdlog::set_level(spdlog::level::off);
    std::string name = (fs::temp_directory_path() / "nvs-record-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~StateStoreTest() override { fs::remove_all(folder_); }
  static bool says(const std::string& file, const std::string& text) {
    for (auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms)) {
      if (auto read = read_file(file); read && *read == text) return true;
    }
    return false;
  }

  std::string folder_;
};

TEST_F(StateStoreTest, WritesWhatHasChangedAndAtTheEndWhatIsLeft) {
  std::atomic<int> number{1};
  const std::string file = folder_ + "/record";
  {
    StateStore store;
    store.add(file, "1", [&] { return std::to_string(number); });
    store.add(folder_ + "/other", "", [] { return "other"; });
    store.changed();
    EXPECT_TRUE(says(folder_ + "/other", "other"));
    EXPECT_FALSE(fs::exists(file)) << "it says that already";
    number = 2;
    store.changed();
    EXPECT_TRUE(says(file, "2"));
    number = 3;
  }
  EXPECT_TRUE(says(file, "3"));
}

// Nothing changes any more, and still it must be written.
TEST_F(StateStoreTest, TriesAgainWhatCouldNotBeWritten) {
  const std::string in_the_way = folder_ + "/in-the-way";
  ASSERT_TRUE(write_file_atomically(in_the_way, "a file, where a folder is needed"));
  StateStore store(5ms);
  store.add(in_the_way + "/record", "", [] { return "limits"; });
  store.add(folder_ + "/other", "", [] { return "other"; });
  store.changed();
  EXPECT_TRUE(says(folder_ + "/other", "other")) << "one bad file is no other's trouble";
  std::this_thread::sleep_for(20ms);
  fs::remove(in_the_way);
  EXPECT_TRUE(says(in_the_way + "/record", "limits"));
}

}  // namespace
}  // namespace nvshare::kubernetes
