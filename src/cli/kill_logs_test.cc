#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/fd.h"
#include "cli/kill_command.h"
#include "cli/logs_command.h"

namespace nvshare::cli {
namespace {

protocol::admin::StatusReport one_run() {
  protocol::admin::StatusReport status;
  status.pid = 104;
  auto& run = status.tenants.emplace_back();
  run.id = 7;
  run.name = "train";
  run.root = 100;
  auto& other = status.tenants.emplace_back();
  other.id = 8;
  other.name = "serve";
  for (const auto& [tenant, pid] : {std::pair(7, 103), std::pair(7, 900), std::pair(8, 200)}) {
    auto& client = status.clients.emplace_back();
    client.tenant = static_cast<uint64_t>(tenant);
    client.pid = pid;
  }
  return status;
}

TEST(Kill, ReachesAllThatHangFromARunAndItsClientsElsewhere) {
  // 100 (nvsharectl) -> 101 (sh) -> 102, 103; 103 -> 90, whose number is lower; 900 left the tree; 104 is the scheduler that 100 started.
  const std::map<pid_t, pid_t> parents = {{1, 0},     {100, 1},   {101, 100}, {102, 101}, {103, 101}, {90, 103},
                                          {104, 100}, {105, 104}, {200, 1},   {900, 1},   {901, 1}};
  EXPECT_EQ(processes_of(one_run(), 7, parents), (std::vector<pid_t>{90, 101, 102, 103, 900}));
  EXPECT_EQ(processes_of(one_run(), 8, parents), std::vector<pid_t>{200}) << "of a tenant that is no run, its clients";
  EXPECT_TRUE(processes_of(one_run(), 9, parents).empty());
}

TEST(Kill, TakesSignalsByNameOrNumberAndTheOneTenantThatIsMeant) {
  EXPECT_EQ(*parse_signal("TERM"), SIGTERM);
  EXPECT_EQ(*parse_signal("SIGKILL"), SIGKILL);
  EXPECT_EQ(*parse_signal("2"), SIGINT);
  for (const char* wrong : {"", "SIG", "term", "0", "99", "SEGV"}) EXPECT_FALSE(parse_signal(wrong)) << wrong;

  protocol::admin::StatusReport status = one_run();
  EXPECT_EQ(*tenant_meant(status, "train"), 7u);
  EXPECT_EQ(*tenant_meant(status, "8"), 8u);
  const auto unknown = tenant_meant(status, "tram");
  ASSERT_FALSE(unknown);
  EXPECT_NE(std::string(unknown.error().text).find("train (7), serve (8)"), std::string::npos) << unknown.error().text;
  status.tenants[1].name = "train";
  const auto several = tenant_meant(status, "train");
  ASSERT_FALSE(several);
  EXPECT_NE(std::string(several.error().text).find("name one by its id"), std::string::npos) << several.error().text;
}

TEST(Logs, AreShownByWhatHasThem) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(*log_viewer("/run/user/1/nvshare/scheduler.log", 9, {20, true}),
            (Words{"tail", "-n", "20", "-f", "--", "/run/user/1/nvshare/scheduler.log"}));
  EXPECT_EQ(*log_viewer("socket:[123]", 9, {50, false}), (Words{"journalctl", "--no-pager", "_PID=9", "-n", "50"}));
  char in_memory[] = "/dev/shm/nvshare-log-XXXXXX";
  const FileDescriptor file(mkstemp(in_memory));
  ASSERT_TRUE(file);
  EXPECT_EQ(*log_viewer(in_memory, 9, {20, false}), (Words{"tail", "-n", "20", "--", in_memory}));
  unlink(in_memory);
  for (const char* lost : {"pipe:[5]", "/dev/pts/3", "/dev/null", "", "anon_inode:[x]"}) {
    const auto viewer = log_viewer(lost, 9, {});
    ASSERT_FALSE(viewer) << lost;
    EXPECT_NE(std::string(viewer.error().text).find("process 9"), std::string::npos) << viewer.error().text;
  }
}

}  // namespace
}  // namespace nvshare::cli
