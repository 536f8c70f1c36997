// For tests: nvshare-scheduler as people and service managers start it, in a folder of its own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "protocol/paths.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {

class ProgramTest : public testing::Test {
 protected:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  // Starts it in this test's folder, its standard error into a file, or into `log_to` where that is a descriptor. `before`: last in the
  // child.
  pid_t start(std::vector<std::string> arguments, const Variables& variables = {}, int log_to = -1, void (*before)() = nullptr) {
    arguments.insert(arguments.begin(), NVSHARE_SCHEDULER_PROGRAM);
    pid_t pid = fork();
    if (pid != 0) return pid;
    setenv("NVSHARE_RUNTIME_DIR", (folder_.path() + "/run").c_str(), 1);
    setenv("NVSHARE_LOCK_DIR", (folder_.path() + "/lock").c_str(), 1);
    setenv("NVSHARE_NVML", "off", 1);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    if (log_to >= 0 ? dup2(log_to, STDERR_FILENO) < 0 : std::freopen(log().c_str(), "w", stderr) == nullptr) _exit(99);
    if (before != nullptr) before();
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    execv(raw[0], raw.data());
    _exit(98);
  }

  static int wait_for_end(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::string said() const {
    std::ifstream stream(log());
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  std::string log() const { return folder_.path() + "/log"; }
  std::string runtime_dir() const { return folder_.path() + "/run"; }
  std::string ask(const char* request) const { return ask_admin(runtime_dir(), request); }

  TestFolder folder_;
};

}  // namespace nvshare::scheduler
