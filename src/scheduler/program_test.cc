// nvshare-scheduler as people and service managers start it.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "protocol/admin.h"
#include "protocol/paths.h"
#include "scheduler/testing/test_program.h"

namespace nvshare::scheduler {
namespace {

TEST_F(ProgramTest, WrongUseIsRefusedByName) {
  EXPECT_EQ(wait_for_end(start({}, {{"NVSHARE_SWITCH_TIME_FIXED", "soon"}})), 2);
  EXPECT_NE(said().find("NVSHARE_SWITCH_TIME_FIXED: 'soon'"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({}, {{"NVSHARE_TRACE", "/tmp/" + std::string(300, 'a')}})), 1);
  EXPECT_NE(said().find("NVSHARE_TRACE"), std::string::npos) << said();
  EXPECT_NE(said().find("accepted: "), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({}, {{"NVSHARE_RUNTIME_DIR", "/proc/no"}})), 1);
  EXPECT_NE(said().find("NVSHARE_RUNTIME_DIR"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--switch-time-mode", "never"})), 2);
  EXPECT_NE(said().find("--switch-time-mode"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--config", "/nonexistent.toml"})), 2);
  EXPECT_NE(said().find("/nonexistent.toml"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--config", "/etc"})), 2);
  EXPECT_NE(said().find("cannot read /etc: Is a directory"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--config", "/dev/zero"})), 2);
  EXPECT_NE(said().find("/dev/zero is no settings file"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--colour"})), 2);
  EXPECT_NE(said().find("'--colour' is no flag; 'nvshare-scheduler --help' lists them"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--switch-time-fixed"})), 2);
  EXPECT_NE(said().find("nvshare-scheduler: --switch-time-fixed: a value is missing; see"), std::string::npos) << said();
  EXPECT_EQ(wait_for_end(start({"--version"})), 0);
}

TEST_F(ProgramTest, ASecondOneSaysWhichRunsAndWhatToDo) {
  const pid_t first = start({});
  ASSERT_NE(ask(R"({"request":"status"})"), "");
  EXPECT_EQ(wait_for_end(start({})), 1);
  const std::string pid = std::to_string(first);
  for (const std::string& part : {"(pid " + pid + ")", "'kill " + pid + "'", std::string("(--runtime-dir)")}) {
    EXPECT_NE(said().find(part), std::string::npos) << said();
  }
  kill(first, SIGTERM);
  EXPECT_EQ(wait_for_end(first), 0);
}

// Whoever connects would be taken for another process, of another tenant perhaps.
TEST_F(ProgramTest, AProcOfAnotherPidNamespaceIsRefused) {
  const auto in_a_namespace = [] {
    if (unshare(CLONE_NEWPID) != 0) _exit(97);
    const pid_t inside = fork();
    if (inside != 0) _exit(wait_for_end(inside));
  };
  const int status = wait_for_end(start({"--exit-when-idle", "1"}, {}, -1, in_a_namespace));
  if (status == 97) GTEST_SKIP() << "no PID namespace may be made here";
  EXPECT_EQ(status, EXIT_FAILURE);
  EXPECT_NE(said().find("/proc is of another PID namespace"), std::string::npos) << said();
}

// A file for each connection and one for each process, and a quarter of all is left to others.
TEST_F(ProgramTest, SaysForHowManyProgramsItsOpenFilesSuffice) {
  const auto with_few = [] {
    const rlimit few{256, 1024};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) _exit(98);
  };
  const pid_t pid = start({}, {}, -1, with_few);
  ASSERT_NE(ask(R"({"request":"status"})"), "");
  EXPECT_NE(said().find("room for 288 programs on a GPU each, or 64 on 8 GPUs each, as the limit of open files is 1024"), std::string::npos)
      << said();
  kill(pid, SIGTERM);
  EXPECT_EQ(wait_for_end(pid), 0);
}

#ifndef NVSHARE_SANITIZED
// Reports of thousands of clients take a third longer otherwise.
TEST_F(ProgramTest, ItsHeapIsOfHugePagesWhereThereAreSuch) {
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) GTEST_SKIP() << "this kernel has none";
  const pid_t pid = start({});
  ASSERT_NE(ask(R"({"request":"status"})"), "");
  std::ifstream maps("/proc/" + std::to_string(pid) + "/smaps");
  bool is_heap = false, has_heap = false;
  int64_t of_huge_pages_kib = 0, resident_kib = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) is_heap = line.ends_with("[heap]");
    if (!is_heap) continue;
    has_heap = true;
    if (line.starts_with("Size:")) of_huge_pages_kib = std::max(of_huge_pages_kib, std::int64_t{std::atoll(line.c_str() + 5)});
    if (line.starts_with("Rss:")) resident_kib += std::atoll(line.c_str() + 4);
    if (line.starts_with("VmFlags:") && line.find(" hg") == std::string::npos) of_huge_pages_kib = 0;
  }
  ASSERT_TRUE(has_heap);
  EXPECT_GE(of_huge_pages_kib, 200 << 10);
  EXPECT_LE(resident_kib, 32 << 10) << "memory comes with its use";
  kill(pid, SIGTERM);
  EXPECT_EQ(wait_for_end(pid), 0);
}
#endif

// Where the kernel lets it: the thread that grants alone. Not under sanitizers: a thread that is busy for 0.1 s in a row gives it up.
#ifndef NVSHARE_SANITIZED
TEST_F(ProgramTest, ViewersMakeOneThreadARealTimeOneUnlessItIsToldNotTo) {
  const sched_param lowest{1}, none{0};
  if (sched_setscheduler(0, SCHED_RR, &lowest) != 0) GTEST_SKIP() << "no real-time priority here";
  sched_setscheduler(0, SCHED_OTHER, &none);
  for (const char* setting : {"on", "off"}) {
    const pid_t pid = start({"--real-time", setting});
    ASSERT_NE(ask(R"({"request":"status"})"), "");
    size_t threads = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
      const pid_t id = std::stoi(thread.path().filename().string());
      const int wanted = id == pid && std::string(setting) == "on" ? SCHED_RR : SCHED_OTHER;
      EXPECT_EQ(sched_getscheduler(id) & ~SCHED_RESET_ON_FORK, wanted) << setting << ", thread " << id << " of " << pid;
      ++threads;
    }
    EXPECT_GT(threads, 1u);
    kill(pid, SIGTERM);
    EXPECT_EQ(wait_for_end(pid), 0);
  }
}
#endif

TEST_F(ProgramTest, EndsCleanlyOnSignalsAndTellsItsServiceManager) {
  std::string notifications = folder_.path() + "/notify";
  FileDescriptor manager(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, notifications.c_str());
  ASSERT_EQ(bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  for (int signal : {SIGTERM, SIGINT}) {
    pid_t pid = start({}, {{"NOTIFY_SOCKET", notifications}});
    char text[64] = {};
    ASSERT_GT(recv(manager.get(), text, sizeof text - 1, 0), 0);
    EXPECT_STREQ(text, "READY=1");
    kill(pid, signal);
    EXPECT_EQ(wait_for_end(pid), 0) << said();
    std::memset(text, 0, sizeof text);
    ASSERT_GT(recv(manager.get(), text, sizeof text - 1, 0), 0);
    EXPECT_STREQ(text, "STOPPING=1");
    EXPECT_NE(access((runtime_dir() + protocol::kClientSocket).c_str(), F_OK), 0) << "its socket is gone";
  }
}

TEST_F(ProgramTest, ReplacesOneThatWasKilledAndRefusesOneThatRuns) {
  pid_t killed = start({});
  ASSERT_NE(ask(R"({"request":"status"})"), "");
  kill(killed, SIGKILL);
  wait_for_end(killed);
  pid_t first = start({"--switch-time-mode", "fixed"});
  auto report = protocol::admin::decode_status(ask(R"({"request":"status"})"));
  ASSERT_TRUE(report) << report.error().text;
  EXPECT_EQ(report->pid, first);
  EXPECT_EQ(report->switch_time_mode, "fixed");
  EXPECT_EQ(wait_for_end(start({})), 1);
  EXPECT_NE(said().find("pid " + std::to_string(first)), std::string::npos) << said();
  EXPECT_NE(ask(R"({"request":"shutdown"})").find("true"), std::string::npos);
  EXPECT_EQ(wait_for_end(first), 0);
}

TEST_F(ProgramTest, ExitWhenIdleNeedsNoValue) {
  pid_t pid = start({"--exit-when-idle"});
  EXPECT_NE(ask(R"({"request":"status"})"), "");
  EXPECT_NE(ask(R"({"request":"shutdown"})"), "");
  EXPECT_EQ(wait_for_end(pid), 0) << said();
  EXPECT_EQ(wait_for_end(start({"--exit-when-idle", "50ms"})), 0) << said();
}

TEST_F(ProgramTest, IsKilledAgainAndAgainWhileAHolderKeepsItsLock) {
  TestClient holder(runtime_dir() + protocol::kClientSocket);
  protocol::Register message = test_registration(12ULL << 30);
  for (int i = 0; i < 5; ++i) {
    pid_t pid = start({}, {{"NVSHARE_LOG_LEVEL", "error"}});
    auto registered = holder.join(message);
    ASSERT_TRUE(registered) << said();
    if (i == 0) {
      holder.send(protocol::ReqLock{1});
    } else {
      EXPECT_EQ(registered->client_id, message.client_id);
    }
    ASSERT_TRUE(holder.expect<protocol::LockOk>()) << "round " << i;
    message.client_id = registered->client_id;
    message.has_lock = 1;
    message.memory.resident = message.memory.allocated;
    kill(pid, SIGKILL);
    EXPECT_EQ(wait_for_end(pid), -SIGKILL);
    ASSERT_TRUE(holder.expect_close());
  }
}

}  // namespace
}  // namespace nvshare::scheduler
