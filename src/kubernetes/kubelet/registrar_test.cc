// The kubelet's folder as a starting, stopping, tidying kubelet leaves it, without gRPC: sockets are plain files here.
#include "kubernetes/kubelet/registrar.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class RegistrarTest : public testing::Test {
 protected:
  RegistrarTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-registrar-XXXXXX").string();
    base_ = mkdtemp(name.data());
    folder_ = base_ + "/device-plugins";
  }
  ~RegistrarTest() override {
    registrar_.reset();
    fs::remove_all(base_);
  }

  void start(std::chrono::milliseconds unheard = 60s) {
    registrar_ = std::make_unique<Registrar>(folder_,
                                             Registrar::Hooks{[this] { return fs::exists(folder_ + "/ours.sock"); },
                                                              [this]() -> Result<void> {
                                                                touch("ours.sock");
                                                                if (kubelet_comes_meanwhile_.exchange(false)) touch("kubelet.sock", "late");
                                                                attempts_at_serve_ = attempts_.load();
                                                                ++serves_;
                                                                return {};
                                                              },
                                                              [this]() -> Result<void> {
                                                                ++attempts_;
                                                                if (deaf_) return error_format("no server listens");
                                                                std::lock_guard lock(mutex_);
                                                                announced_to_ = content();
                                                                return {};
                                                              },
                                                              [this] { return heard_.load(); }},
                                             50ms, unheard);
  }
  void touch(const std::string& name, const std::string& text = "") { std::ofstream(folder_ + "/" + name) << text; }
  std::string content() {
    std::ifstream stream(folder_ + "/kubelet.sock");
    std::string text;
    stream >> text;
    return text;
  }
  // As a kubelet starts: every socket goes, then its own comes, complete.
  void kubelet(const std::string& name) {
    for (const auto& file : fs::directory_iterator(folder_)) fs::remove(file.path());
    std::ofstream(base_ + "/new") << name;
    fs::rename(base_ + "/new", folder_ + "/kubelet.sock");
  }
  template <typename Condition>
  static bool wait(const Condition& condition) {
    for (auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms)) {
      if (condition()) return true;
    }
    return false;
  }
  bool announced_to(const std::string& name) {
    return wait([&] {
      std::lock_guard lock(mutex_);
      return announced_to_ == name && fs::exists(folder_ + "/ours.sock");
    });
  }

  std::string base_, folder_;
  std::atomic<int> serves_{0}, attempts_{0}, attempts_at_serve_{0};
  std::atomic<bool> deaf_{false}, heard_{true}, kubelet_comes_meanwhile_{false};
  std::mutex mutex_;
  std::string announced_to_;
  std::unique_ptr<Registrar> registrar_;
};

TEST_F(RegistrarTest, FollowsEveryKubelet) {
  start();
  fs::create_directory(folder_);  // later than we
  ASSERT_TRUE(wait([&] { return serves_ > 0; }));
  for (int i = 0; i < 100; ++i) {
    std::string name = "kubelet-" + std::to_string(i);
    kubelet(name);
    ASSERT_TRUE(announced_to(name)) << name;
  }
}

// The kubelet's socket came while ours were made: it was registered with, and again for the event that followed.
TEST_F(RegistrarTest, RegistersOnceWithAKubeletThatComesMeanwhile) {
  fs::create_directory(folder_);
  kubelet_comes_meanwhile_ = true;
  start();
  ASSERT_TRUE(announced_to("late"));
  fs::remove(folder_ + "/ours.sock");  // seen after the event of the kubelet's socket
  ASSERT_TRUE(wait([&] { return serves_ == 2; }));
  EXPECT_EQ(attempts_at_serve_, 1);
}

TEST_F(RegistrarTest, TriesAgainWhileNobodyListensAndWhenNobodyWatches) {
  fs::create_directory(folder_);
  deaf_ = true;
  kubelet("first");
  start(100ms);
  ASSERT_TRUE(wait([&] { return attempts_ >= 3; }));
  EXPECT_EQ(registrar_->announcements(), 0);
  deaf_ = false;
  ASSERT_TRUE(announced_to("first"));
  heard_ = false;
  int before = registrar_->announcements();
  ASSERT_TRUE(wait([&] { return registrar_->announcements() >= before + 2; }));
}

TEST_F(RegistrarTest, MakesItsSocketAnewAndFollowsAFolderThatIsReplaced) {
  fs::create_directory(folder_);
  kubelet("first");
  start();
  ASSERT_TRUE(announced_to("first"));
  int before = registrar_->announcements();
  fs::remove(folder_ + "/ours.sock");
  ASSERT_TRUE(wait([&] { return registrar_->announcements() > before; }));
  fs::rename(folder_, base_ + "/aside");
  fs::create_directory(folder_);
  kubelet("second");
  ASSERT_TRUE(announced_to("second"));
  // Again when the registrar has just made its socket anew in it.
  ASSERT_TRUE(wait([&] {
    std::error_code error;
    fs::remove_all(folder_, error);
    return !fs::exists(folder_);
  }));
  fs::create_directory(folder_);
  kubelet("third");
  ASSERT_TRUE(announced_to("third"));
  registrar_->stop();
  int attempts = attempts_;
  kubelet("fourth");
  EXPECT_EQ(attempts_, attempts);
}

}  // namespace
}  // namespace nvshare::kubernetes
