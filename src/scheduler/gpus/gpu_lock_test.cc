// GPU locks among schedulers of several users. As root: root and two users; else these tests say that they need root.
#include "scheduler/gpus/gpu_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "scheduler/log.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

constexpr uid_t kUser = 65534;
constexpr uid_t kOtherUser = 65533;
constexpr char kGpu[] = "GPU-00000000-0000-0000-0000-000000000001";

class LocksOfUsers : public testing::Test {
 protected:
  LocksOfUsers() { chmod(folder_.path().c_str(), 0755); }
  ~LocksOfUsers() override {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

  std::string locks() const { return folder_.path() + "/locks"; }

  // Runs in a process of that user; what it returns. With `stays` the process goes on, with all that it holds, until the test's end.
  std::string as(uid_t user, const std::function<std::string()>& work, bool stays = false) {
    int pipes[2];
    if (pipe(pipes) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      if (user != 0 && (setgid(user) != 0 || setuid(user) != 0)) _exit(1);
      umask(0);
      const std::string said = work() + "\n";
      if (write(pipes[1], said.data(), said.size()) < 0) _exit(1);
      while (stays) pause();
      _exit(0);
    }
    children_.push_back(child);
    close(pipes[1]);
    std::string said;
    for (char c = 0; read(pipes[0], &c, 1) == 1 && c != '\n';) said += c;
    close(pipes[0]);
    return said;
  }

  // "locked", or why not. The lock lasts as long as its process.
  std::string acquire() {
    Result<GpuLock> lock = GpuLock::acquire(locks(), kGpu, "/run/of-" + std::to_string(geteuid()));
    if (!lock) return lock.error().text;
    held_.push_back(std::move(*lock));
    return "locked";
  }

  TestFolder folder_;
  std::vector<pid_t> children_;
  std::vector<GpuLock> held_;
};

TEST_F(LocksOfUsers, ASecondSchedulerOfTheSameUserNamesTheFirst) {
  EXPECT_EQ(as(
                geteuid(), [this] { return acquire(); }, true),
            "locked");
  EXPECT_NE(acquire().find("is managed by another scheduler (pid " + std::to_string(children_[0])), std::string::npos);
  kill(children_[0], SIGKILL);
  waitpid(children_[0], nullptr, 0);
  children_.clear();
  EXPECT_EQ(as(geteuid(), [this] { return acquire(); }), "locked");
}

// Whoever opened a file before it was removed would have a lock that nobody else meets.
TEST_F(LocksOfUsers, OneThatIsRemovedWhileOthersOpenItIsNeverHeldTwice) {
  std::atomic<int> holders{0};
  std::atomic<int> twice{0};
  const auto work = [&] {
    for (int i = 0; i < 300; ++i) {
      Result<GpuLock> lock = GpuLock::acquire(locks(), kGpu, "/run/test");
      if (!lock) continue;
      if (++holders > 1) ++twice;
      usleep(100);
      --holders;
      lock->remove();
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(twice, 0);
  EXPECT_TRUE(std::filesystem::is_empty(locks())) << "nor is a file left";
}

#define NEEDS_ROOT() \
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to act as other users"

// Anybody's flock kept root's scheduler from starting.
TEST_F(LocksOfUsers, NobodyElseCanOpenOrLockRootsFiles) {
  NEEDS_ROOT();
  ASSERT_EQ(acquire(), "locked");
  const std::string said = as(kUser, [this] {
    std::string opened;
    for (const auto& entry : std::filesystem::directory_iterator(locks())) {
      const int fd = open(entry.path().c_str(), O_RDONLY);
      if (fd >= 0 && entry.path().extension() != ".owner") opened += entry.path().filename().string();
    }
    const bool makes = open((locks() + "/GPU-x.lock").c_str(), O_RDWR | O_CREAT, 0666) >= 0;
    return opened + (makes ? " and makes files" : "");
  });
  EXPECT_EQ(said, "");
}

TEST_F(LocksOfUsers, AnOldFolderThatEverybodyCouldWriteIsTakenOver) {
  NEEDS_ROOT();
  ASSERT_EQ(mkdir(locks().c_str(), 0), 0);
  ASSERT_EQ(chmod(locks().c_str(), 01777), 0);
  ASSERT_EQ(as(
                kUser,
                [this] {
                  const int fd = open((locks() + "/" + kGpu + ".lock").c_str(), O_RDWR | O_CREAT, 0666);
                  return flock(fd, LOCK_EX) == 0 ? "mine" : "not mine";
                },
                true),
            "mine");
  EXPECT_EQ(acquire(), "locked");
}

TEST_F(LocksOfUsers, RootDoesNotLockInAFolderOfSomebodyElse) {
  NEEDS_ROOT();
  ASSERT_EQ(mkdir(locks().c_str(), 0755), 0);
  ASSERT_EQ(chown(locks().c_str(), kUser, kUser), 0);
  EXPECT_NE(acquire().find("is no folder of user 0"), std::string::npos);
}

TEST_F(LocksOfUsers, AUsersSchedulerGivesWayToRootsAndRootsDoesNot) {
  NEEDS_ROOT();
  ASSERT_EQ(chmod(folder_.path().c_str(), 01777), 0);
  ASSERT_EQ(as(
                0, [this] { return acquire(); }, true),
            "locked");
  chmod(locks().c_str(), 01777);  // so that users have places of their own in it
  const std::string roots = "another user's scheduler (pid " + std::to_string(children_[0]);
  EXPECT_NE(as(kUser, [this] { return acquire(); }).find(roots), std::string::npos);
  kill(children_[0], SIGKILL);
  waitpid(children_[0], nullptr, 0);
  children_.erase(children_.begin());
  EXPECT_EQ(as(
                kUser, [this] { return acquire(); }, true),
            "locked")
      << "its file is still there, its process is not";
  EXPECT_NE(as(kOtherUser, [this] { return acquire(); }).find("another user's scheduler"), std::string::npos);
  set_log_level("error");
  EXPECT_EQ(acquire(), "locked") << "root's";
}

TEST_F(LocksOfUsers, AnOwnersFileIsNotBelievedOfProcessesThatAreNotItsWriters) {
  NEEDS_ROOT();
  ASSERT_EQ(mkdir(locks().c_str(), 0), 0);
  ASSERT_EQ(chmod(locks().c_str(), 01777), 0);
  // Names a process of root's, as one that would last.
  as(kUser, [this] {
    mkdir((locks() + "/user-65534").c_str(), 0755);
    std::ofstream(locks() + "/user-65534/" + kGpu + ".owner") << "pid 1, started " << start_time_of(1) << ", runtime directory x\n";
    return std::string();
  });
  EXPECT_EQ(as(kOtherUser, [this] { return acquire(); }), "locked");
}

// It is shown on others' terminals.
TEST_F(LocksOfUsers, WhatAnOwnersFileSaysIsMadePrintable) {
  NEEDS_ROOT();
  ASSERT_EQ(mkdir(locks().c_str(), 0), 0);
  ASSERT_EQ(chmod(locks().c_str(), 01777), 0);
  as(
      kUser,
      [this] {
        mkdir((locks() + "/user-65534").c_str(), 0755);
        std::ofstream(locks() + "/user-65534/" + kGpu + ".owner")
            << "pid " << getpid() << ", started " << start_time_of(getpid()) << ", runtime directory \033]0;yours\007\n";
        return std::string();
      },
      true);
  const std::string told = as(kOtherUser, [this] { return acquire(); });
  EXPECT_NE(told.find("another user's scheduler"), std::string::npos) << told;
  EXPECT_NE(told.find("?]0;yours?"), std::string::npos) << told;
  EXPECT_EQ(told.find('\033'), std::string::npos);
}

}  // namespace
}  // namespace nvshare::scheduler
