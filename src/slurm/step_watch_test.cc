// A real Slurm's signals are in test/slurm.
#include "slurm/step_watch.h"

#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "protocol/paths.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

// No scheduler answers there: what was to be told lies in files.
class StepWatchTest : public testing::Test {
 protected:
  StepWatchTest() {
    std::string name = "/tmp/nvs-step-watch-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) folder_ = name;
  }
  ~StepWatchTest() override { std::filesystem::remove_all(folder_); }

  std::vector<admin::JobRequest> told() const {
    std::vector<admin::JobRequest> requests;
    const std::filesystem::path jobs = folder_ + protocol::kJobsFolder;
    if (!std::filesystem::exists(jobs)) return requests;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(jobs)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());  // by their time
    for (const auto& file : files) {
      std::string line;
      std::ifstream stream(file);
      std::getline(stream, line);
      auto request = admin::decode_request(line);
      EXPECT_TRUE(request) << line;
      if (request) requests.push_back(std::get<admin::JobRequest>(*request));
    }
    return requests;
  }

  std::string folder_;
};

TEST_F(StepWatchTest, SigtermTellsThatTheJobEnds) {
  StepWatch(7, folder_, getpid()).take(SIGTERM);
  ASSERT_EQ(told().size(), 1u);
  EXPECT_EQ(told()[0].job, 7u);
  EXPECT_TRUE(told()[0].ends);
  EXPECT_FALSE(told()[0].gone);
  EXPECT_FALSE(told()[0].suspended);
}

TEST_F(StepWatchTest, AStoppedJobIsPausedUntilItGoesOn) {
  StepWatch watch(7, folder_, getpid());
  for (const int signal : {SIGCONT, SIGUSR1, SIGINT, SIGHUP}) watch.take(signal);
  EXPECT_TRUE(told().empty()) << "Slurm sends SIGCONT before SIGTERM, too, and users what they like";
  watch.take(SIGTSTP);
  ASSERT_EQ(told().size(), 1u);
  EXPECT_EQ(told()[0].suspended, true);
  watch.take(SIGCONT);
  watch.take(SIGCONT);
  ASSERT_EQ(told().size(), 2u);
  EXPECT_EQ(told()[1].suspended, false);
}

// ---- a program that ends while it is continued, and whose number goes to another process ----

constexpr pid_t kFailed = -1;

// With that number, which only root may choose. It waits for ever.
pid_t fork_as(pid_t number) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<uint64_t>(&number);
  arguments.set_tid_size = 1;
  const auto pid = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
  for (; pid == 0;) pause();
  return pid;
}

void say(int pipe, pid_t pid) { (void)!write(pipe, &pid, sizeof pid); }

// A program of the job's that SIGTSTP has stopped; once it goes on it is another one of the same number. Says the number, each time.
[[noreturn]] void change_places(int said) {
  pid_t pid = fork();
  for (; pid == 0;) pause();
  kill(pid, SIGSTOP);
  waitpid(pid, nullptr, WUNTRACED);
  usleep(50'000);  // they start at different clock ticks
  say(said, pid);
  waitpid(pid, nullptr, WCONTINUED);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  say(said, fork_as(pid));
  for (;;) pause();
}

pid_t heard(int pipe) {
  pid_t pid = kFailed;
  return read(pipe, &pid, sizeof pid) == sizeof pid ? pid : kFailed;
}

// A scheduler that knows one client, of that job.
[[noreturn]] void answer_of_client(int listener, uint32_t job, pid_t client) {
  admin::StatusReport status;
  auto& tenant = status.tenants.emplace_back();
  tenant.id = 1;
  tenant.job = job;
  auto& one = status.clients.emplace_back();
  one.pid = client;
  one.tenant = 1;
  one.resident = 1;
  const std::string line = admin::encode(status);
  char request[4096];
  for (;;) {
    const int connection = accept(listener, nullptr, nullptr);
    while (read(connection, request, sizeof request) > 0) (void)!write(connection, line.data(), line.size());
    close(connection);
  }
}

TEST_F(StepWatchTest, ANumberThatAnotherProcessHasMeanwhileIsLeftAlone) {
  std::filesystem::create_directory(folder_ + "/admin");
  sockaddr_un address{AF_UNIX, {}};
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s%s", folder_.c_str(), protocol::kAdminSocket);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t job = fork();
  if (job == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    change_places(said[1]);
  }
  const pid_t program = heard(said[0]);
  const pid_t scheduler = fork();
  if (scheduler == 0) answer_of_client(listener, 7, program);
  StepWatch(7, folder_, getpid()).take(SIGTSTP);
  const pid_t other = heard(said[0]);
  usleep(100'000);  // a signal arrives by and by
  const auto state = state_of_process(other);
  for (const pid_t pid : {other, job, scheduler}) {
    if (pid > 0) kill(pid, SIGKILL);
  }
  waitpid(job, nullptr, 0);
  waitpid(scheduler, nullptr, 0);
  for (const int one : {listener, said[0], said[1]}) close(one);
  if (other == kFailed) GTEST_SKIP() << "numbers of processes cannot be chosen here";
  ASSERT_EQ(other, program);
  ASSERT_TRUE(state);
  EXPECT_FALSE(state->stopped);
}

TEST(StepWatchProcesses, AreToldByStateAndParents) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_TRUE(descends_from(child, getpid()));
  EXPECT_TRUE(descends_from(getpid(), getpid()));
  EXPECT_FALSE(descends_from(getpid(), child));
  EXPECT_FALSE(state_of_process(child)->stopped);
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_TRUE(state_of_process(child)->stopped);
  EXPECT_EQ(state_of_process(child)->parent, getpid());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(state_of_process(child));
}

}  // namespace
}  // namespace nvshare::slurm
