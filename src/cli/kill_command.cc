#include "cli/kill_command.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "base/fd.h"
#include "base/parse.h"
#include "cli/paused_tenant.h"
#include "cli/proc.h"
#include "cli/run_command.h"
#include "cli/scheduler_link.h"
#include "cli/start_condition.h"

namespace nvshare::cli {
namespace {

using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

struct Signal {
  const char* name;
  int number;
};
constexpr Signal kSignals[] = {{"TERM", SIGTERM}, {"INT", SIGINT},   {"HUP", SIGHUP},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
                               {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"STOP", SIGSTOP}, {"CONT", SIGCONT}};

// "PID (NAME) STATE PPID ..."; the name may hold anything.
pid_t parent_in(const std::string& stat) {
  const size_t end = stat.rfind(')');
  if (end == std::string::npos || end + 4 > stat.size()) return 0;
  return static_cast<pid_t>(std::strtol(stat.c_str() + end + 4, nullptr, 10));
}

std::map<pid_t, pid_t> parents_of_all() {
  std::map<pid_t, pid_t> parents;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failed)) {
    const auto pid = parse_integer(entry.path().filename().string(), 1, INT32_MAX);
    if (!pid) continue;
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    if (const pid_t parent = parent_in(stat); parent > 0) parents[static_cast<pid_t>(*pid)] = parent;
  }
  return parents;
}

// Process ids mean the same to the scheduler and to us.
bool sees_what_we_see(const StatusReport& status) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(status.pid) + "/comm"), name);
  return name.rfind("nvshare-schedul", 0) == 0;
}

int fail(int code, const std::string& text) {
  fmt::print(stderr, "nvsharectl kill: {}\n", text);
  return code;
}

// Handles first, then a second look: a number that was given to another process meanwhile is in one of the two only.
int signal_all(AdminConnection& admin, const StatusReport& before, uint64_t tenant, int number, const std::string& name) {
  std::map<pid_t, FileDescriptor> handles;
  for (const pid_t pid : processes_of(before, tenant, parents_of_all())) {
    FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (handle) handles.emplace(pid, std::move(handle));
  }
  const auto status = admin.status();
  if (!status) return fail(1, status.error().text);
  size_t reached = 0;
  std::string refused;
  for (const pid_t pid : processes_of(*status, tenant, parents_of_all())) {
    const auto handle = handles.find(pid);
    if (handle == handles.end()) continue;
    if (syscall(SYS_pidfd_send_signal, handle->second.get(), number, nullptr, 0) == 0) {
      ++reached;
    } else if (errno != ESRCH) {
      refused = fmt::format("process {}: {}", pid, strerror(errno));
    }
  }
  if (!refused.empty()) return fail(1, fmt::format("'{}': {}", name, refused));
  if (reached == 0) return fail(1, fmt::format("'{}' has no process that runs", name));
  fmt::print("SIG{} to {} process{} of '{}'\n", sigabbrev_np(number), reached, reached == 1 ? "" : "es", name);
  return 0;
}

}  // namespace

Result<int> parse_signal(const std::string& text) {
  const std::string name = text.rfind("SIG", 0) == 0 ? text.substr(3) : text;
  std::string accepted;
  for (const Signal& one : kSignals) {
    if (name == one.name || name == std::to_string(one.number)) return one.number;
    accepted += (accepted.empty() ? "" : ", ") + std::string(one.name);
  }
  return error_format("there is no signal '%.40s' here; accepted: %s", text.c_str(), accepted.c_str());
}

Result<uint64_t> tenant_meant(const StatusReport& status, const std::string& name) {
  const std::vector<uint64_t> ids = tenants_named(status, name);
  if (ids.size() == 1) return ids.front();
  std::string text;
  for (const TenantReport& tenant : status.tenants) {
    const bool meant = ids.empty() || std::find(ids.begin(), ids.end(), tenant.id) != ids.end();
    if (meant && text.size() < 200) text += (text.empty() ? "" : ", ") + tenant.name + " (" + std::to_string(tenant.id) + ")";
  }
  if (!ids.empty()) return error_format("there are %zu tenants '%.80s': %s; name one by its id", ids.size(), name.c_str(), text.c_str());
  return error_format("there is no tenant '%.80s'; there are: %s", name.c_str(), text.empty() ? "none" : text.c_str());
}

std::vector<pid_t> processes_of(const StatusReport& status, uint64_t tenant, const std::map<pid_t, pid_t>& parents) {
  std::set<pid_t> found;
  pid_t root = 0;
  for (const TenantReport& one : status.tenants) root = one.id == tenant ? one.root : root;
  for (bool grows = root != 0; grows;) {
    grows = false;
    for (const auto& [pid, parent] : parents) {
      const bool is_ours = pid == root || pid == status.pid;
      if (!is_ours && (parent == root || found.contains(parent))) grows = found.insert(pid).second || grows;
    }
  }
  for (const auto& client : status.clients) {
    if (client.tenant == tenant && client.pid > 0) found.insert(client.pid);
  }
  return {found.begin(), found.end()};
}

int kill_command(const std::string& tenant, const std::string& signal) {
  const auto number = parse_signal(signal);
  if (!number) return fail(kExitUsage, number.error().text);
  auto link = find_scheduler();
  if (!link) return fail(1, link.error().text);
  if (!link->admin) return fail(1, link->admin_error);
  const auto status = link->admin->status();
  if (!status) return fail(1, status.error().text);
  if (!has_proc()) return fail(1, kNoProc);
  if (!sees_what_we_see(*status))
    return fail(1, fmt::format("process {}, as the scheduler calls itself, is another one here: it runs in another container, where this "
                               "command has to run, too",
                               status->pid));
  const auto id = tenant_meant(*status, tenant);
  if (!id) return fail(1, id.error().text);
  PausedTenant pause(*link->admin, *id);
  if (*number != SIGSTOP && *number != SIGCONT) {
    if (const auto ok = pause.stop(*status); !ok) {
      fmt::print(stderr, "nvsharectl kill: '{}': {}; other programs of its user under MPS may fail (CUDA error 700)\n", tenant,
                 ok.error().text);
    }
  }
  return signal_all(*link->admin, *status, *id, *number, tenant);
}

}  // namespace nvshare::cli
