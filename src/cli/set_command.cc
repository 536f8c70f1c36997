#include "cli/set_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/parse.h"
#include "cli/own_client.h"
#include "cli/run_command.h"
#include "cli/scheduler_link.h"
#include "cli/start_condition.h"

namespace nvshare::cli {

namespace admin = protocol::admin;

constexpr char kAccepted[] =
    "accepted: core=PERCENT of each GPU's time, 1 to 100 (none), ceiling=PERCENT, which raises nobody's share, memory=BYTES, such as "
    "memory=8Gi (or none), priority=-100..100 (0 by "
    "default), sharing=together, turns, auto or node (as the setting says), paused=yes or no";

Result<admin::SetRequest> parse_changes(const std::vector<std::string>& words) {
  admin::SetRequest request;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    if (i == 0 && word.starts_with("job=")) {
      if (auto job = parse_integer(std::string_view(word).substr(4), 1, UINT32_MAX); !job)
        return error_format("job: %.100s; accepted: the number of a Slurm job, such as job=123", job.error().text);
      request.tenant = word;
      continue;
    }
    if (i == 0 && equals == std::string::npos) {
      request.tenant = word;
      continue;
    }
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? std::string() : word.substr(equals + 1);
    if (equals == std::string::npos || name.empty() || value.empty())
      return error_format("'%.40s' is not NAME=VALUE; %s", word.c_str(), kAccepted);
    if (request.tenant.empty()) {
      if (name == "core" || name == "ceiling" || name == "memory" || name == "priority" || name == "paused")
        return error_format("%s needs a tenant before it: nvsharectl set TENANT %s", name.c_str(), word.c_str());
      request.settings[name] = value;
    } else if (name == "core" || name == "ceiling") {
      auto percent = value == "none" ? Result<int64_t>(100) : parse_integer(value, 1, 100);
      if (!percent) return error_format("%s: %.100s; %s", name.c_str(), percent.error().text, kAccepted);
      (name == "core" ? request.gpu_core_limit : request.gpu_core_ceiling) = static_cast<int32_t>(*percent);
    } else if (name == "memory") {
      auto bytes = value == "none" ? Result<uint64_t>(0) : parse_bytes(value);
      if (!bytes) return error_format("memory: %.100s; %s", bytes.error().text, kAccepted);
      request.gpu_memory_limit = static_cast<int64_t>(*bytes);
    } else if (name == "priority") {
      auto priority = parse_integer(value, admin::kPriorityMin, admin::kPriorityMax);
      if (!priority) return error_format("priority: %.100s; %s", priority.error().text, kAccepted);
      request.priority = static_cast<int32_t>(*priority);
    } else if (name == "sharing") {
      if (!admin::is_sharing_word(value))
        return error_format("sharing: '%.40s' is not together, turns, auto or node; %s", value.c_str(), kAccepted);
      request.sharing = value;
    } else if (name == "paused") {
      if (value != "yes" && value != "no") return error_format("paused: '%.40s' is not yes or no; %s", value.c_str(), kAccepted);
      request.paused = value == "yes";
    } else {
      return error_format("'%.80s' is no limit of a tenant; %s", name.c_str(), kAccepted);
    }
  }
  const bool any_limit = request.gpu_core_limit || request.gpu_core_ceiling || request.gpu_memory_limit || request.priority ||
                         request.paused || request.sharing;
  if (!request.tenant.empty() && !any_limit) {
    return error_format("nothing to set for tenant '%.80s'; %s", request.tenant.c_str(), kAccepted);
  }
  return request;
}

namespace {

int fail(const char* command, int code, const char* text) {
  fmt::print(stderr, "nvsharectl {}: {}\n", command, text);
  return code;
}

int ask(const char* command, const admin::SetRequest& request) {
  auto link = find_scheduler();
  if (!link) return fail(command, 1, link.error().text);
  if (!link->admin) return fail(command, 1, link->admin_error.c_str());
  const auto line = link->admin->ask(request);
  if (!line) return fail(command, 1, line.error().text);
  if (const auto ok = admin::decode_ok(*line); !ok) return fail(command, 1, ok.error().text);
  return 0;
}

}  // namespace

int set_command(const std::vector<std::string>& words) {
  const auto request = parse_changes(words);
  if (!request) return fail("set", kExitUsage, request.error().text);
  return ask("set", *request);
}

int pause_command(const std::string& tenant, bool pauses) {
  admin::SetRequest request;
  request.tenant = tenant;
  request.paused = pauses;
  return ask(pauses ? "pause" : "resume", request);
}

// Whoever may not administer the scheduler may still end turns of its own tenants.
int release_command(const std::string& tenant) {
  auto link = find_scheduler();
  if (!link) return fail("release", 1, link.error().text);
  if (link->admin) {
    admin::SetRequest request;
    request.tenant = tenant;
    request.release = true;
    return ask("release", request);
  }
  const auto status = ask_own(link->runtime_directory);
  if (!status) return fail("release", 1, status.error().text);
  const std::vector<uint64_t> ids = tenants_named(*status, tenant);
  if (ids.empty()) return fail("release", 1, fmt::format("'{}' is no tenant of yours; 'nvsharectl status' shows them", tenant).c_str());
  for (const uint64_t id : ids) {
    if (const auto ok = release_own(link->runtime_directory, id); !ok) return fail("release", 1, ok.error().text);
  }
  return 0;
}

}  // namespace nvshare::cli
