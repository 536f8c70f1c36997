#include "scheduler/gpus/mps_control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

TEST(MpsControl, OnlyLinesThatAreANumberAreProcesses) {
  EXPECT_EQ(pids_in("12\n 34 \r\n\nServer 56 not found\n78x\n-9\n0\n99999999999999\n90"), (std::vector<pid_t>{12, 34, 90}));
  EXPECT_TRUE(pids_in("").empty());
}

TEST(MpsControl, AUsersGroupsAreThoseOfTheProcessThatAsks) {
  const Result<MpsUser> user = mps_user_of(7, "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t2\t3\t4\nGroups:\t5 6 44 \n");
  ASSERT_TRUE(user);
  EXPECT_EQ(user->uid, 7u);
  EXPECT_EQ(user->gid, 2u) << "the effective one";
  EXPECT_EQ(user->groups, (std::vector<gid_t>{5, 6, 44}));
  EXPECT_FALSE(mps_user_of(7, "")) << "a process that is gone";
}

// The thread that asks stood still for good, and with it all daemons and the scheduler's end.
TEST(MpsControl, AProcessThatIsHeldUpBeforeItIsTheProgramIsEnded) {
  const TestFolder folder;
  const MpsFolders folders = MpsFolders::of(folder.path(), geteuid());
  const std::string program = folder.path() + "/program";
  // Whoever opens it waits for the lease: /proc/sys/fs/lease-break-time, 45 s.
  const FileDescriptor lease(open(program.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0755));
  const auto former = signal(SIGIO, SIG_IGN);
  ASSERT_EQ(fcntl(lease.get(), F_SETLEASE, F_WRLCK), 0);
  const auto begun = std::chrono::steady_clock::now();
  const auto answer = ask_mps_control(program, {geteuid(), getegid(), {}}, folders, "quit\n", std::chrono::milliseconds(100));
  EXPECT_FALSE(answer);
  EXPECT_NE(std::string(answer.error().text).find("did not get that far"), std::string::npos) << answer.error().text;
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
  fcntl(lease.get(), F_SETLEASE, F_UNLCK);
  signal(SIGIO, former);
}

// A user can make its daemon print without end.
TEST(MpsControl, OnlyTheEndOfWhatADaemonPrintedIsRead) {
  const TestFolder folder;
  const std::string path = folder.path() + "/out";
  EXPECT_EQ(last_line_of_file(path), "");
  std::ofstream(path) << "first\nlast\n \n";
  EXPECT_EQ(last_line_of_file(path), "last");
  ASSERT_EQ(truncate(path.c_str(), off_t{64} << 30), 0) << "more than there is memory";
  std::ofstream(path, std::ios::app) << "\nits last words\n";
  EXPECT_EQ(last_line_of_file(path), "its last words");
}

TEST(MpsControl, ANoteIsReadAsItWasWritten) {
  const TestFolder folder;
  const MpsFolders folders = MpsFolders::of(folder.path(), 7);
  ASSERT_EQ(mkdir(folders.base.c_str(), 0755), 0);
  EXPECT_EQ(read_mps_note(folders, 7).pid, 0) << "there is none";
  ASSERT_TRUE(write_mps_note(folders, {12, 34, {7, 8, {9, 10}}}));
  const MpsNote note = read_mps_note(folders, 7);
  EXPECT_EQ(note.pid, 12);
  EXPECT_EQ(note.start_time, 34u);
  EXPECT_EQ(note.user.uid, 7u);
  EXPECT_EQ(note.user.gid, 8u);
  EXPECT_EQ(note.user.groups, (std::vector<gid_t>{9, 10}));
  std::ofstream(folders.note) << "gibberish";
  EXPECT_EQ(read_mps_note(folders, 7).pid, 0);
}

TEST(MpsControl, WhatCannotStartSaysWhatAndWhy) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const auto missing = start_mps_daemon("/nowhere/control", self, MpsFolders::of(folder.path(), self.uid));
  ASSERT_FALSE(missing);
  EXPECT_NE(std::string(missing.error().text).find("could not run it: No such file"), std::string::npos) << missing.error().text;
  const auto deep = start_mps_daemon("/bin/true", self, MpsFolders::of(folder.path() + "/" + std::string(100, 'x'), self.uid));
  ASSERT_FALSE(deep);
  EXPECT_NE(std::string(deep.error().text).find("too long"), std::string::npos) << deep.error().text;
  if (geteuid() == 0) return;
  const auto other = start_mps_daemon("/bin/true", {geteuid() + 1, getegid(), {}}, MpsFolders::of(folder.path(), geteuid() + 1));
  ASSERT_FALSE(other);
  EXPECT_NE(std::string(other.error().text).find("mps.conf"), std::string::npos) << other.error().text;
}

TEST(MpsControl, AFrontEndThatFailsOrHangsIsAnError) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const MpsFolders folders = MpsFolders::of(folder.path(), self.uid);
  const auto script = [&](const char* text) {
    const std::string path = folder.path() + "/script";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    chmod(path.c_str(), 0700);
    return path;
  };
  const auto asked =
      ask_mps_control(script("read line; echo \"$line $CUDA_MPS_PIPE_DIRECTORY\""), self, folders, "hello\n", std::chrono::seconds(20));
  ASSERT_TRUE(asked) << asked.error().text;
  EXPECT_EQ(*asked, "hello " + folders.pipes + "\n");
  const auto failed = ask_mps_control(script("echo cannot find it; exit 1"), self, folders, "x\n", std::chrono::seconds(20));
  ASSERT_FALSE(failed);
  EXPECT_NE(std::string(failed.error().text).find("cannot find it"), std::string::npos);
  const auto hung = ask_mps_control(script("exec sleep 100"), self, folders, "x\n", std::chrono::milliseconds(200));
  ASSERT_FALSE(hung);
  EXPECT_NE(std::string(hung.error().text).find("has not answered"), std::string::npos);
}

TEST(MpsControl, AFolderThatSomebodyElseMadeIsNotUsed) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const MpsFolders folders = MpsFolders::of(folder.path(), self.uid);
  ASSERT_EQ(mkdir(folders.base.c_str(), 0755), 0);
  ASSERT_EQ(symlink("/tmp", folders.folder.c_str()), 0);
  const auto refused = start_mps_daemon("/bin/true", self, folders);
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("is no folder"), std::string::npos) << refused.error().text;
}

}  // namespace
}  // namespace nvshare::scheduler
