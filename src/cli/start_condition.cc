#include "cli/start_condition.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/units.h"
#include "protocol/short_names.h"

namespace nvshare::cli {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

std::string tenant_name(const StatusReport& status, uint64_t id) {
  const auto at = std::find_if(status.tenants.begin(), status.tenants.end(), [&](const TenantReport& one) { return one.id == id; });
  return at == status.tenants.end() || at->name.empty() ? std::to_string(id) : at->name;
}

// Empty: nobody uses it.
std::string use_of(const StatusReport& status, size_t index) {
  const ClientReport* longest = nullptr;
  size_t waiting = 0;
  for (const ClientReport& client : status.clients) {
    if (client.gpu != status.gpus[index].uuid || client.state == "idle") continue;
    if (client.state == "waiting") {
      ++waiting;
    } else if (longest == nullptr || client.since_ns > longest->since_ns) {
      longest = &client;
    }
  }
  if (longest == nullptr && waiting == 0) return {};
  std::string text = fmt::format("GPU {}: ", index);
  if (longest != nullptr)
    text += fmt::format("'{}' has it, {} for {}", tenant_name(status, longest->tenant), longest->state, format_duration(longest->since_ns));
  if (waiting > 0) text += fmt::format("{}{} wait{}", longest != nullptr ? "; " : "", waiting, waiting == 1 ? "s" : "");
  return text;
}

}  // namespace

std::vector<uint64_t> tenants_named(const StatusReport& status, const std::string& name) {
  std::vector<uint64_t> ids;
  for (const TenantReport& tenant : status.tenants) {
    const bool is_job = tenant.job != 0 && name == "job=" + std::to_string(tenant.job);
    if (std::to_string(tenant.id) == name || is_job) return {tenant.id};  // whatever others call themselves
    const bool is_called_so = tenant.name == name && !name.starts_with("job=");
    if (is_called_so || protocol::is_short_name(tenant.kind, tenant.name, name)) ids.push_back(tenant.id);
  }
  return ids;
}

bool has_ended(const StatusReport& status, uint64_t tenant) {
  const auto at = std::find_if(status.tenants.begin(), status.tenants.end(), [&](const TenantReport& one) { return one.id == tenant; });
  if (at == status.tenants.end()) return true;
  return at->clients == 0 && at->root == 0 && at->kind != "job";
}

std::string missing_for(const StatusReport& status, const StartCondition& condition) {
  for (const uint64_t tenant : condition.ended) {
    if (!has_ended(status, tenant)) return fmt::format("the end of '{}'", tenant_name(status, tenant));
  }
  if (!condition.free_gpu) return {};
  std::string used;
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    const bool counts =
        condition.gpus.empty() || std::find(condition.gpus.begin(), condition.gpus.end(), status.gpus[i].uuid) != condition.gpus.end();
    if (!counts) continue;
    const std::string use = use_of(status, i);
    if (use.empty() && condition.gpus.empty()) return {};
    if (!use.empty()) used += (used.empty() ? "" : ", ") + use;
  }
  return used.empty() ? used : "a free GPU (" + used + ")";
}

}  // namespace nvshare::cli
