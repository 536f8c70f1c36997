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

bool is_memory_limit(uint64_t bytes) { return bytes == 0 || (bytes >= 1 << 20 && bytes <= uint64_t{admin::kMemoryMost}); }

namespace {

// Within what an Error holds, with what was given.
constexpr char kAccepted[] =
    "accepted: core=PERCENT, ceiling=PERCENT, memory=BYTES, priority=-100..100, sharing=together, turns, auto or node, paused=yes or no";
constexpr char kOfSchedulerAccepted[] = "accepted of the scheduler: SETTING=VALUE, such as switch_time_min=5";
constexpr char kPercentAccepted[] = "1 to 100 percent of each GPU's time, or none";

Error not_accepted(const std::string& name, const std::string& value, const char* accepted) {
  return error_format("%s: '%.60s' is not accepted; accepted: %s", name.c_str(), value.c_str(), accepted);
}

// `name` is what a tenant has. False: there is no such thing.
Result<bool> set_of_tenant(admin::SetRequest& request, const std::string& name, const std::string& value) {
  const auto once = [&](auto& field, auto given) -> Result<bool> {
    if (field) return error_format("%s is given twice; accepted: once", name.c_str());
    field = std::move(given);
    return true;
  };
  if (name == "core" || name == "ceiling") {
    const auto percent = value == "none" ? Result<int64_t>(100) : parse_integer(value, 1, 100);
    if (!percent) return not_accepted(name, value, kPercentAccepted);
    return once(name == "core" ? request.gpu_core_limit : request.gpu_core_ceiling, static_cast<int32_t>(*percent));
  }
  if (name == "memory") {
    const auto bytes = value == "none" ? Result<uint64_t>(0) : parse_bytes(value);
    if (!bytes || !is_memory_limit(*bytes)) return not_accepted(name, value, "1Mi to 1024Ti, such as memory=8Gi, or none");
    return once(request.gpu_memory_limit, static_cast<int64_t>(*bytes));
  }
  if (name == "priority") {
    const auto priority = parse_integer(value, admin::kPriorityMin, admin::kPriorityMax);
    if (!priority) return not_accepted(name, value, "-100..100, 0 by default");
    return once(request.priority, static_cast<int32_t>(*priority));
  }
  if (name == "sharing") {
    if (!admin::is_sharing_word(value)) return not_accepted(name, value, "together, turns, auto or node, as the setting says");
    return once(request.sharing, value);
  }
  if (name != "paused") return false;
  if (value != "yes" && value != "no") return not_accepted(name, value, "yes or no");
  return once(request.paused, value == "yes");
}

}  // namespace

Result<void> check_job(const std::string& tenant) {
  if (!tenant.starts_with("job=")) return {};
  if (auto job = parse_integer(std::string_view(tenant).substr(4), 1, UINT32_MAX); !job)
    return error_format("job: %.100s; accepted: the number of a Slurm job, such as job=123", job.error().text);
  return {};
}

Result<admin::SetRequest> parse_changes(const std::vector<std::string>& words) {
  admin::SetRequest request;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    if (i == 0 && word.starts_with("job=")) {
      if (auto job = check_job(word); !job) return job.error();
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
      return error_format("'%.40s' is not NAME=VALUE; %s", word.c_str(), request.tenant.empty() ? kOfSchedulerAccepted : kAccepted);
    if (request.tenant.empty()) {
      if (name == "core" || name == "ceiling" || name == "memory" || name == "priority" || name == "paused")
        return error_format("%s needs a tenant before it: nvsharectl set TENANT %.80s", name.c_str(), word.c_str());
      if (!request.settings.emplace(name, value).second) return error_format("%.80s is given twice; accepted: once", name.c_str());
    } else {
      const auto known = set_of_tenant(request, name, value);
      if (!known) return known.error();
      if (!*known) return error_format("'%.40s' is no limit of a tenant; %s", name.c_str(), kAccepted);
    }
  }
  const bool any_limit = request.gpu_core_limit || request.gpu_core_ceiling || request.gpu_memory_limit || request.priority ||
                         request.paused || request.sharing;
  if (!request.tenant.empty() && !any_limit) {
    return error_format("nothing to set for tenant '%.40s', and no SETTING=VALUE of the scheduler; %s", request.tenant.c_str(), kAccepted);
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
