#include "cli/doctor/bundle.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "cli/doctor/collect.h"
#include "cli/doctor/scrubber.h"
#include "cli/logs_command.h"
#include "cli/output_file.h"
#include "cli/scheduler_link.h"
#include "cli/version_command.h"

extern char** environ;

namespace nvshare::cli::doctor {
namespace {

constexpr int kLogLines = 1000;
constexpr size_t kLogBytesMax = size_t{512} << 10;
constexpr std::string_view kOwnVariables[] = {"NVSHARE_", "CUDA_", "NVIDIA_", "SLURM_NVSHARE", "LD_PRELOAD=", "LD_LIBRARY_PATH="};
constexpr std::string_view kKnownPrograms[] = {"python", "java", "julia", "nvidia-", "nvshare"};

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool is_known(const std::string& program) {
  return std::any_of(std::begin(kKnownPrograms), std::end(kKnownPrograms),
                     [&](std::string_view known) { return program.starts_with(known); });
}

Scrubber scrubber_for(const BundleParts& parts) {
  Scrubber scrubber;
  for (const std::string& host : parts.hidden_hosts) scrubber.hide(host, "host");
  for (const std::string& user : parts.hidden_users) scrubber.hide(user, "user");
  for (const auto& gpu : parts.status.gpus) scrubber.hide(gpu.uuid, "GPU");
  for (const auto& tenant : parts.status.tenants) {
    scrubber.hide(tenant.user, "user");
    scrubber.hide(tenant.partition, "partition");
    if (!is_known(tenant.name)) scrubber.hide(tenant.name, "tenant");
  }
  for (const auto& client : parts.status.clients) {
    if (!is_known(client.program)) scrubber.hide(client.program, "program");
  }
  return scrubber;
}

// The line after which a part begins, and the part.
std::string part(const char* title, const std::string& text) {
  return fmt::format("==== {}\n{}{}", title, text, text.empty() || text.back() != '\n' ? "\n" : "");
}

std::string end_of_log(const std::string& output, int pid) {
  const auto viewer = log_viewer(output, pid, {kLogLines, false});
  if (!viewer) return viewer.error().text;
  std::string command;
  for (const std::string& word : *viewer) {
    command += command.empty() ? "'" : " '";
    for (const char c : word) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += "'";
  }
  auto text = output_of(command).value_or("cannot be read: " + command + " failed");
  return text.size() > kLogBytesMax ? text.substr(text.size() - kLogBytesMax) : text;
}

std::string log_of(int pid) {
  char path[PATH_MAX] = {};
  const std::string link = "/proc/" + std::to_string(pid) + "/fd/2";
  if (readlink(link.c_str(), path, sizeof path - 1) <= 0) return fmt::format("{} cannot be read: {}", link, strerror(errno));
  return end_of_log(path, pid);
}

void ask_scheduler(BundleParts& parts) {
  auto link = find_scheduler();
  if (!link || !link->admin) {
    parts.status_error = link ? link->admin_error : std::string(link.error().text);
    if (const auto last = own_log()) parts.log = end_of_log(*last, 0);
    return;
  }
  auto line = link->admin->ask(protocol::admin::StatusRequest{});
  auto status = line ? protocol::admin::decode_status(*line) : Result<protocol::admin::StatusReport>(line.error());
  if (!status) {
    parts.status_error = status.error().text;
    return;
  }
  parts.status = *status;
  parts.status_line = *line;
  const auto trace = link->admin->ask(protocol::admin::TraceRequest{});
  parts.trace_line = trace ? *trace : std::string();
  parts.log = log_of(status->pid);
}

}  // namespace

std::string bundle_of(const BundleParts& parts) {
  const Scrubber scrubber = scrubber_for(parts);
  std::string variables, files;
  for (const std::string& variable : parts.environment) variables += scrubber.text(variable) + "\n";
  for (const auto& [path, text] : parts.settings) files += "-- " + path + "\n" + scrubber.text(text) + "\n";
  std::string text = part("nvshare bug report: names are numbers, keys and addresses are taken out. Please read it before you send it", "");
  text += part("releases", scrubber.text(parts.releases));
  text += part("machine", scrubber.text(parts.machine));
  text += part("doctor", scrubber.text(draw(parts.findings)));
  text += part("variables", variables);
  text += part("settings", files);
  text += part("status", parts.status_line.empty() ? scrubber.text(parts.status_error) : scrubber.json(parts.status_line));
  text += part("trace of the last minute", parts.trace_line.empty() ? "none" : scrubber.json(parts.trace_line));
  text += part("log of the scheduler", scrubber.text(parts.log));
  return text;
}

BundleParts collect_bundle(const std::vector<Finding>& findings) {
  BundleParts parts;
  parts.findings = findings;
  parts.releases = text_of(look_for_releases());
  utsname names{};
  if (uname(&names) == 0) {
    parts.machine = fmt::format("{} {} {}\n", names.sysname, names.release, names.machine);
    parts.hidden_hosts = {names.nodename, std::string(names.nodename).substr(0, std::string(names.nodename).find('.'))};
  }
  parts.machine += content_of("/etc/os-release");
  if (const passwd* user = getpwuid(getuid()); user != nullptr && getuid() != 0) parts.hidden_users.emplace_back(user->pw_name);
  for (const char* name : {"USER", "LOGNAME", "SUDO_USER"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::string_view(value) != "root") parts.hidden_users.emplace_back(value);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (std::any_of(std::begin(kOwnVariables), std::end(kOwnVariables), [&](std::string_view own) { return text.starts_with(own); }))
      parts.environment.emplace_back(text);
  }
  for (const char* file : {"/etc/nvshare/scheduler.toml", "/etc/nvshare/client.conf", "/etc/slurm/nvshare.conf"}) {
    if (access(file, R_OK) == 0) parts.settings.emplace_back(file, content_of(file));
  }
  ask_scheduler(parts);
  return parts;
}

Result<void> write_bundle(const std::string& file, const std::string& text) { return write_new_output(file, text); }

}  // namespace nvshare::cli::doctor
