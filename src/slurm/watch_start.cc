#include "slurm/watch_start.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

namespace nvshare::slurm {
namespace {

constexpr char kProgram[] = "nvshare-slurm-step";

// The folder that this code was loaded from, with its '/'.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&start_watch), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string file = info.dli_fname;
  return file.substr(0, file.rfind('/') + 1);
}

// Slurm signals what is in the task's cgroup: of version 1 the freezer's, else that of version 2.
void join_cgroup_of(pid_t task, pid_t pid) {
  std::ifstream lines("/proc/" + std::to_string(task) + "/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t names = line.find(':'), path = line.find(':', names + 1);
    if (path == std::string::npos) continue;
    const std::string controllers = line.substr(names + 1, path - names - 1), folder = line.substr(path + 1);
    if (folder == "/" || (!controllers.empty() && controllers != "freezer")) continue;
    for (const char* mount : {"/sys/fs/cgroup/freezer", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      if ((std::string_view(mount).ends_with("freezer")) != (controllers == "freezer")) continue;
      std::ofstream(mount + folder + "/cgroup.procs") << pid << std::flush;
    }
  }
}

// Between fork and exec in a process of several threads: system calls alone.
[[noreturn]] void become(const char* program, char* const* arguments, pid_t parent, pid_t group) {
  setpgid(0, group);  // Slurm signals batch scripts by their process group
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) dup2(null, fd);
  // The tasks' pipes among them: slurmstepd waits for their end.
  if (syscall(SYS_close_range, 3, ~0U, 0) != 0) {
    for (int fd = 3; fd < 65536; ++fd) close(fd);
  }
  execv(program, arguments);
  _exit(1);
}

}  // namespace

Result<pid_t> start_watch(uint32_t job, const std::string& runtime_dir, int suspend_time, pid_t task) {
  const std::string program = own_folder() + kProgram;
  if (access(program.c_str(), X_OK) != 0) return error_format("%.150s cannot be started: %s", program.c_str(), std::strerror(errno));
  std::string number = std::to_string(job), folder = runtime_dir, seconds = std::to_string(suspend_time), name = kProgram;
  char* const arguments[] = {name.data(), number.data(), folder.data(), seconds.data(), nullptr};
  const pid_t parent = getpid(), group = getpgid(task);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // kept over exec: no signal ends it before it waits for them
  const pid_t pid = fork();
  if (pid == 0) become(program.c_str(), arguments, parent, group);
  const int problem = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return error_format("cannot fork: %s", std::strerror(problem));
  join_cgroup_of(task, pid);
  return pid;
}

}  // namespace nvshare::slurm
