#include "cli/logs_command.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "cli/proc.h"
#include "cli/run_command.h"
#include "cli/scheduler_link.h"

namespace nvshare::cli {
namespace {

int fail(const std::string& text) {
  fmt::print(stderr, "nvsharectl logs: {}\n", text);
  return 1;
}

std::string target_of(const std::string& link) {
  char path[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  return length <= 0 ? std::string() : std::string(path, static_cast<size_t>(length));
}

bool is_file(const std::string& path) {  // as those of /dev/shm are
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

int become(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return fail(fmt::format("cannot run {}: {}", words[0], strerror(errno)));
}

// Of a scheduler that has ended, or that is not ours to ask.
int show_without_scheduler(const LogsOptions& options, const std::string& why) {
  if (const auto file = own_log()) {
    fmt::print(stderr, "nvsharectl logs: {}; {} is of the one before\n", why, *file);
    if (const auto viewer = log_viewer(*file, 0, options)) return become(*viewer);
  }
  return fail(fmt::format("{}; of a service: journalctl -u nvshare-scheduler", why));
}

}  // namespace

Result<std::vector<std::string>> log_viewer(const std::string& output, int pid, const LogsOptions& options) {
  const std::string lines = std::to_string(options.lines);
  std::vector<std::string> words;
  if (output.rfind("socket:", 0) == 0) {
    words = {"journalctl", "--no-pager", "_PID=" + std::to_string(pid), "-n", lines};
  } else if (output.rfind("pipe:", 0) == 0) {
    return error_format("the scheduler (process %d) writes to the program that started it: of a container, 'kubectl logs' or 'docker logs'",
                        pid);
  } else if ((output.rfind("/dev/", 0) == 0 && !is_file(output)) || output.empty() || output.front() != '/') {
    return error_format("the scheduler (process %d) writes to %.150s, which nobody can read again; accepted: a file, or the journal", pid,
                        output.empty() ? "something that is not ours to look at" : output.c_str());
  } else {
    words = {"tail", "-n", lines};
  }
  if (options.follow) words.emplace_back("-f");
  if (words[0] == "tail") words.insert(words.end(), {"--", output});
  return words;
}

int logs_command(const LogsOptions& options) {
  auto link = find_scheduler();
  if (!link) return show_without_scheduler(options, link.error().text);
  if (!link->admin) return fail(link->admin_error);
  const auto status = link->admin->status();
  if (!status) return fail(status.error().text);
  if (!has_proc()) return fail(kNoProc);
  const auto viewer = log_viewer(target_of("/proc/" + std::to_string(status->pid) + "/fd/2"), status->pid, options);
  if (!viewer) return fail(viewer.error().text);
  return become(*viewer);
}

}  // namespace nvshare::cli
