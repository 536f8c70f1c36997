#include "scheduler/gpus/mps_control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>
#include <utility>
#include <vector>

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

TEST(MpsControl, NoTwoGroupsHaveTheSameFolders) {
  std::set<std::string> paths;
  size_t count = 0;
  for (const TrustGroup& group : std::vector<TrustGroup>{{1, ""},
                                                         {11, ""},
                                                         {1, "1"},
                                                         {1, "1-1"},
                                                         {11, "1"},
                                                         {1, "pipe"},
                                                         {1, "log"},
                                                         {1, "out"},
                                                         {1, "daemon"},
                                                         {1, "group-1"},
                                                         {1, "A"},
                                                         {1, "a"}}) {
    const MpsFolders folders = MpsFolders::of("/run", group);
    EXPECT_EQ(folders.folder, "/run/mps/" + std::to_string(group.user)) << "what is its user's is in there";
    EXPECT_TRUE(folders.pipes.starts_with(folders.folder + "/"));
    for (const std::string& path : {folders.pipes, folders.logs, folders.output, folders.note, folders.group}) {
      if (path.empty()) continue;
      paths.insert(path);
      ++count;
    }
    EXPECT_EQ(group_of_note(folders.note.substr(folders.base.size() + 1)), group);
  }
  EXPECT_EQ(paths.size(), count);
  for (const char* bad : {"1.daemon.new", "1.out", ".daemon", "01.daemon", "-1.daemon", "1-.daemon", "1-..daemon", "1-a.b.daemon",
                          "1a.daemon", "4294967296.daemon", "1--a.daemon", "x"})
    EXPECT_EQ(group_of_note(bad), std::nullopt) << bad;
}

// Names that come once would fill the file system; what is not the daemon's stays.
TEST(MpsControl, WhatAGroupsDaemonMadeIsRemovedAndNothingElse) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const MpsFolders folders = MpsFolders::of(folder.path(), {self.uid, "team"});
  const auto daemon = start_mps_daemon("/bin/true", self, folders);
  ASSERT_TRUE(daemon) << daemon.error().text;
  waitpid(daemon->pid, nullptr, 0);
  const std::string elsewhere = folder.path() + "/elsewhere";
  std::ofstream(elsewhere) << "kept";
  for (int i = 0; i < 300; ++i)
    std::ofstream(folders.pipes + "/a file of some length that a daemon might have made " + std::to_string(i)) << "x";
  ASSERT_EQ(symlink(elsewhere.c_str(), (folders.logs + "/link").c_str()), 0);
  ASSERT_EQ(mkfifo((folders.pipes + "/log").c_str(), 0600), 0);
  remove_mps_folders(self, folders);
  EXPECT_NE(access(folders.group.c_str(), F_OK), 0) << "all of it is gone";
  EXPECT_EQ(access(folders.folder.c_str(), F_OK), 0);
  EXPECT_EQ(access(elsewhere.c_str(), F_OK), 0) << "links are not followed";

  const auto again = start_mps_daemon("/bin/true", self, folders);
  ASSERT_TRUE(again) << again.error().text;
  waitpid(again->pid, nullptr, 0);
  ASSERT_EQ(mkdir((folders.pipes + "/own").c_str(), 0700), 0);
  remove_mps_folders(self, folders);
  EXPECT_EQ(access((folders.pipes + "/own").c_str(), F_OK), 0) << "the user's own";
  rmdir((folders.pipes + "/own").c_str());
  ASSERT_EQ(rmdir(folders.pipes.c_str()), 0);
  ASSERT_EQ(symlink(folder.path().c_str(), folders.pipes.c_str()), 0);
  remove_mps_folders(self, folders);
  EXPECT_EQ(access(elsewhere.c_str(), F_OK), 0) << "nor is one in the folder's place";

  const MpsFolders unnamed = MpsFolders::of(folder.path(), {self.uid, ""});
  const auto own = start_mps_daemon("/bin/true", self, unnamed);
  ASSERT_TRUE(own) << own.error().text;
  waitpid(own->pid, nullptr, 0);
  remove_mps_folders(self, unnamed);
  EXPECT_EQ(access(unnamed.pipes.c_str(), F_OK), 0) << "it has one place for good";
}

// What another thread has open, such as the end of a pipe that somebody reads to its end, a user's process might keep.
TEST(MpsControl, AChildHasNothingOpenThatIsNotItsOwn) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const std::string program = folder.path() + "/program";
  std::ofstream(program) << "#!/bin/sh\nexec /bin/ls /proc/self/fd\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  const FileDescriptor other(fcntl(0, F_DUPFD, 60));  // goes on over exec
  ASSERT_TRUE(other);
  const auto open = ask_mps_control(program, self, MpsFolders::of(folder.path(), {self.uid, ""}), "", std::chrono::seconds(20));
  ASSERT_TRUE(open) << open.error().text;
  EXPECT_EQ(*open, "0\n1\n2\n3\n") << "3 is the folder that is read";
}

// A file system whose server reads what is asked and never answers, as any user may mount one in a folder of his own.
class SilentFileSystem {
 public:
  explicit SilentFileSystem(std::string folder) : folder_(std::move(folder)), device_(open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string options = "fd=" + std::to_string(device_.get()) + ",rootmode=40000,user_id=0,group_id=0";
    mounted_ = device_ && mount("silent", folder_.c_str(), "fuse", 0, options.c_str()) == 0;
    if (!mounted_) return;
    server_ = std::thread([this] {
      std::vector<char> asked(1 << 20);
      if (read(device_.get(), asked.data(), asked.size()) < 0) return;
      struct {
        uint32_t length = 80;
        int32_t error = 0;
        uint64_t unique = 0;
        uint32_t major = 7, minor = 31;
        uint32_t rest[14] = {};
      } answer;
      static_assert(sizeof answer == 80);
      std::memcpy(&answer.unique, asked.data() + 8, sizeof answer.unique);
      answer.rest[3] = 4096;  // max_write
      if (write(device_.get(), &answer, sizeof answer) < 0) return;
      while (read(device_.get(), asked.data(), asked.size()) > 0) ++asked_;
    });
  }
  ~SilentFileSystem() { end(); }
  // Whoever waits for it is let go.
  void end() {
    if (!mounted_) return;
    mounted_ = false;
    umount2(folder_.c_str(), MNT_FORCE | MNT_DETACH);
    server_.join();
  }
  bool is_mounted() const { return mounted_; }
  int asked() const { return asked_; }

 private:
  const std::string folder_;
  const FileDescriptor device_;
  bool mounted_ = false;
  std::atomic<int> asked_ = 0;
  std::thread server_;
};

// No signal ended it, and the thread waited for it: the daemons of all users stood still for good, and with them the scheduler's end.
TEST(MpsControl, AProcessThatNoSignalEndsIsLeftAndItsUserStartsNoOther) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const MpsFolders folders = MpsFolders::of(folder.path(), {self.uid, ""});
  const std::string silent = folder.path() + "/silent", program = folder.path() + "/program";
  ASSERT_EQ(mkdir(silent.c_str(), 0700), 0);
  std::ofstream(program) << "#!/bin/sh\nexec /bin/cat " << silent << "/file\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  SilentFileSystem files(silent);
  if (!files.is_mounted()) GTEST_SKIP() << "takes root and /dev/fuse";
  const auto begun = std::chrono::steady_clock::now();
  const auto answer = ask_mps_control(program, self, folders, "", std::chrono::milliseconds(500));
  EXPECT_FALSE(answer);
  EXPECT_GE(files.asked(), 1);
  const auto next = ask_mps_control("/bin/true", self, folders, "", std::chrono::seconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(15));
  ASSERT_FALSE(next);
  EXPECT_NE(std::string(next.error().text).find("was killed and does not end"), std::string::npos) << next.error().text;
  files.end();
  bool goes_on = false;
  for (int i = 0; i < 1000 && !goes_on; ++i) {
    goes_on = static_cast<bool>(ask_mps_control("/bin/true", self, folders, "", std::chrono::seconds(20)));
    if (!goes_on) usleep(10'000);
  }
  EXPECT_TRUE(goes_on);
}

// The scheduler itself would wait for it, for good.
TEST(MpsControl, AFileSystemOverAUsersFolderIsNotAsked) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const MpsFolders folders = MpsFolders::of(folder.path(), {self.uid, ""});
  ASSERT_EQ(mkdir(folders.base.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(folders.folder.c_str(), 0700), 0);
  SilentFileSystem files(folders.folder);
  if (!files.is_mounted()) GTEST_SKIP() << "takes root and /dev/fuse";
  const auto started = start_mps_daemon("/bin/true", self, folders);
  ASSERT_FALSE(started);
  EXPECT_NE(std::string(started.error().text).find("unmount what is there"), std::string::npos) << started.error().text;
  EXPECT_EQ(files.asked(), 0);
}

// It lived on, with nobody who reads what it prints.
TEST(MpsControl, AFrontEndThatClosesItsOutputAndLivesIsEnded) {
  const TestFolder folder;
  const std::string program = folder.path() + "/program";
  std::ofstream(program) << "#!/bin/sh\nexec /bin/sleep 1000 >&- 2>&-\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  const auto begun = std::chrono::steady_clock::now();
  const auto answer = ask_mps_control(program, {geteuid(), getegid(), {}}, MpsFolders::of(folder.path(), {geteuid(), ""}), "",
                                      std::chrono::milliseconds(300));
  EXPECT_FALSE(answer);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

// The thread that asks stood still for good, and with it all daemons and the scheduler's end.
TEST(MpsControl, AProcessThatIsHeldUpBeforeItIsTheProgramIsEnded) {
  const TestFolder folder;
  const MpsFolders folders = MpsFolders::of(folder.path(), {geteuid(), ""});
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
  const MpsFolders folders = MpsFolders::of(folder.path(), {7, ""});
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
  const auto missing = start_mps_daemon("/nowhere/control", self, MpsFolders::of(folder.path(), {self.uid, ""}));
  ASSERT_FALSE(missing);
  EXPECT_NE(std::string(missing.error().text).find("could not run it: No such file"), std::string::npos) << missing.error().text;
  const auto deep = start_mps_daemon("/bin/true", self, MpsFolders::of(folder.path() + "/" + std::string(100, 'x'), {self.uid, ""}));
  ASSERT_FALSE(deep);
  EXPECT_NE(std::string(deep.error().text).find("too long"), std::string::npos) << deep.error().text;
  if (geteuid() == 0) return;
  const auto other = start_mps_daemon("/bin/true", {geteuid() + 1, getegid(), {}}, MpsFolders::of(folder.path(), {geteuid() + 1, ""}));
  ASSERT_FALSE(other);
  EXPECT_NE(std::string(other.error().text).find("mps.conf"), std::string::npos) << other.error().text;
}

TEST(MpsControl, AFrontEndThatFailsOrHangsIsAnError) {
  const TestFolder folder;
  const MpsUser self{geteuid(), getegid(), {}};
  const MpsFolders folders = MpsFolders::of(folder.path(), {self.uid, ""});
  const auto script = [&](const char* text) {
    std::string path = folder.path() + "/script";
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
  const MpsFolders folders = MpsFolders::of(folder.path(), {self.uid, ""});
  ASSERT_EQ(mkdir(folders.base.c_str(), 0755), 0);
  ASSERT_EQ(symlink("/tmp", folders.folder.c_str()), 0);
  const auto refused = start_mps_daemon("/bin/true", self, folders);
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("is no folder"), std::string::npos) << refused.error().text;
}

}  // namespace
}  // namespace nvshare::scheduler
