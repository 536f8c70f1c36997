#include "e2e/harness/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace nvshare::e2e {
namespace {

constexpr int kExecFailed = 126;

// In the child between fork and exec: only what is async-signal-safe.
[[noreturn]] void become(int log, pid_t parent, char* const* arguments, char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExecFailed);
  int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execve(arguments[0], arguments, environment);
  _exit(kExecFailed);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

Child::Child(Spec spec) : spec_(std::move(spec)) {
  std::vector<std::string> environment;
  for (const auto& [name, value] : spec_.environment) environment.push_back(name + "=" + value);
  std::vector<char*> argument_pointers = pointers(spec_.command);
  std::vector<char*> environment_pointers = pointers(environment);
  FileDescriptor log(open(spec_.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(log.get(), parent, argument_pointers.data(), environment_pointers.data());
  if (pid_ < 0) {
    std::perror("fork");
    std::abort();
  }
  setpgid(pid_, pid_);  // whoever comes first
  pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

Child::~Child() { kill_family(); }

void Child::reap() {
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return;
  ended_at_ns_ = now_ns();
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::optional<int> Child::wait(Duration patience) {
  if (status_) return status_;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  if (poll(&ended, 1, static_cast<int>(milliseconds)) == 1) reap();
  return status_;
}

bool Child::running() { return !wait(Duration(0)); }

void Child::signal(int number) const {
  if (!status_) kill(pid_, number);
}

void Child::kill_family() {
  kill(-pid_, SIGKILL);  // the group may live on after its leader
  if (!status_) reap();
}

std::string Child::log() const {
  std::ifstream stream(spec_.log_file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace nvshare::e2e
