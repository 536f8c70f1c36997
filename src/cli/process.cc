#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/fd.h"

namespace nvshare::cli {
namespace {

constexpr std::array kForwarded = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

// Blocks the signals that we pass on, and their defaults with it, for as long as it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&blocked_);
    sigaddset(&blocked_, SIGCHLD);
    for (int number : kForwarded) sigaddset(&blocked_, number);
    sigprocmask(SIG_BLOCK, &blocked_, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() {
    // What came for a program that has ended by now is not for us.
    const timespec at_once{};
    while (sigtimedwait(&blocked_, nullptr, &at_once) > 0) {
    }
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  const sigset_t& blocked() const { return blocked_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t blocked_{};
  sigset_t before_{};
};

std::vector<char*> pointers(const std::vector<std::string>& lines) {
  std::vector<char*> out;
  out.reserve(lines.size() + 1);
  for (const std::string& line : lines) out.push_back(const_cast<char*>(line.c_str()));
  out.push_back(nullptr);
  return out;
}

// In the child: only async-signal-safe calls. `failure` takes errno where exec fails; exec itself closes it.
[[noreturn]] void become(const Spawn& spawn, char* const* argv, char* const* envp, pid_t parent, int failure) {
  if (spawn.own_session) setsid();
  if (spawn.dies_with_us) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it ended before we asked
  }
  if (spawn.no_input) {
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);
  }
  if (spawn.output >= 0) {
    dup2(spawn.output, STDOUT_FILENO);
    dup2(spawn.output, STDERR_FILENO);
  }
  if (spawn.mask != nullptr) sigprocmask(SIG_SETMASK, spawn.mask, nullptr);
  execvpe(argv[0], argv, envp);
  const int why = errno;
  (void)!write(failure, &why, sizeof why);
  _exit(127);
}

// Returns the child's wait status.
Result<int> wait_forwarding(pid_t child, int signals, const Meanwhile& meanwhile) {
  auto again_ms = static_cast<int>(meanwhile.first_ms);
  while (true) {
    int status = 0;
    pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0) return error_format("cannot wait for process %d: %s", child, strerror(errno));
    pollfd next{signals, POLLIN, 0};
    if (meanwhile.act && poll(&next, 1, again_ms) == 0) {
      again_ms = static_cast<int>(meanwhile.act());
      continue;
    }
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) {
      if (errno == EINTR) continue;
      return error_format("cannot read signals: %s", strerror(errno));
    }
    // The terminal's signals (from the kernel) go to the whole foreground process group: the program has had its own already.
    if (static_cast<int>(info.ssi_signo) != SIGCHLD && info.ssi_code <= 0) kill(child, static_cast<int>(info.ssi_signo));
  }
}

}  // namespace

Result<pid_t> spawn(const Spawn& spawn) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return error_format("cannot make a pipe: %s", strerror(errno));
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  const std::vector<std::string> lines = flatten(spawn.environment);
  const std::vector<char*> envp = pointers(lines);
  const std::vector<char*> argv = pointers(spawn.argv);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return error_format("cannot start a process: %s", strerror(errno));
  if (pid == 0) become(spawn, argv.data(), envp.data(), parent, writer.get());
  writer.reset();
  int why = 0;
  ssize_t n = 0;
  do {
    n = read(reader.get(), &why, sizeof why);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof why)) return pid;
  waitpid(pid, nullptr, 0);
  return error_format("cannot run %s: %s", spawn.argv[0].c_str(), strerror(why));
}

int exit_code_of(int wait_status) { return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status); }

Result<int> run_and_forward_signals(const std::vector<std::string>& argv, const Environment& environment, const Meanwhile& meanwhile) {
  const BlockedSignals guard;
  FileDescriptor signals(signalfd(-1, &guard.blocked(), SFD_CLOEXEC));
  if (!signals) return error_format("cannot watch signals: %s", strerror(errno));

  Spawn program;
  program.argv = argv;
  program.environment = environment;
  program.mask = &guard.before();
  auto pid = spawn(program);
  if (!pid) return pid.error();
  return wait_forwarding(*pid, signals.get(), meanwhile);
}

}  // namespace nvshare::cli
