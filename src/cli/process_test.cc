#include "cli/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace nvshare::cli {
namespace {

int run_shell(const std::string& script, Environment environment = current_environment()) {
  auto status = run_and_forward_signals({"sh", "-c", script}, environment);
  EXPECT_TRUE(status) << status.error().text;
  return status ? exit_code_of(*status) : -1;
}

TEST(Process, TheExitCodeIsTheProgramsOrThatOfItsSignal) {
  EXPECT_EQ(run_shell("exit 0"), 0);
  EXPECT_EQ(run_shell("exit 42"), 42);
  EXPECT_EQ(run_shell("kill -9 $$"), 128 + SIGKILL);
  EXPECT_EQ(run_shell("kill -TERM $$"), 128 + SIGTERM);
}

TEST(Process, TheEnvironmentIsTheOneGiven) {
  Environment environment = current_environment();
  environment["NVSHARE_TEST_VALUE"] = "a b=c";
  EXPECT_EQ(run_shell("test \"$NVSHARE_TEST_VALUE\" = 'a b=c'", environment), 0);
  environment.erase("NVSHARE_TEST_VALUE");
  EXPECT_EQ(run_shell("test -z \"$NVSHARE_TEST_VALUE\"", environment), 0);
}

TEST(Process, AProgramThatIsNotThereIsAnErrorThatNamesIt) {
  auto status = run_and_forward_signals({"/nonexistent/program"}, current_environment());
  ASSERT_FALSE(status);
  EXPECT_NE(std::string(status.error().text).find("/nonexistent/program"), std::string::npos);
}

// The program says by a file that its handler is in place, and leaves its wait by the signal alone. The sender is a process: a thread of
// ours would be a thread to which the kernel may deliver the signal.
TEST(Process, SignalsSentToUsReachTheProgram) {
  const std::string ready = "/tmp/nvshare-process-test-" + std::to_string(getpid());
  const pid_t self = getpid();
  const pid_t sender = fork();
  ASSERT_GE(sender, 0);
  if (sender == 0) {
    for (int tries = 0; tries < 6000 && access(ready.c_str(), F_OK) != 0; ++tries) usleep(5000);
    kill(self, SIGUSR1);
    _exit(0);
  }
  const int code = run_shell("trap 'exit 7' USR1; : > " + ready + "; for i in $(seq 600); do sleep 0.05; done");
  EXPECT_EQ(waitpid(sender, nullptr, 0), sender);
  unlink(ready.c_str());
  EXPECT_EQ(code, 7);
}

}  // namespace
}  // namespace nvshare::cli
