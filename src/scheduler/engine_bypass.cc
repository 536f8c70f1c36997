// Processes of limited tenants that use a GPU past the library: found among those that NVML lists, named, and perhaps answered.
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

// The machine's first PID namespace, whose numbers are NVML's (PROC_PID_INIT_INO of the kernel).
bool is_in_first_pid_namespace() {
  char name[64] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return std::string_view(name, length > 0 ? static_cast<size_t>(length) : 0) == "pid:[4026531836]";
}

}  // namespace

void Engine::look_for_bypasses(policy::GpuId gpu, const GpuSample& sample, policy::Instant now) {
  static const bool is_first = is_in_first_pid_namespace();
  if (hold_ || !(nvml_sees_pids_ || is_first) || !bypass_.is_due(gpu, now)) return;
  const auto is_ours = [&](pid_t pid) {
    const auto is_it = [&](const auto& entry) { return entry.second.pid == pid && entry.second.gpu == gpu; };
    return std::any_of(clients_.begin(), clients_.end(), is_it) || std::any_of(departed_.begin(), departed_.end(), is_it) ||
           std::any_of(known_.missing().begin(), known_.missing().end(), [&](const auto& entry) { return entry.second.pid == pid; });
  };
  std::vector<BypassWatch::Process> found;
  for (const ProcessMemory& process : sample.processes) {
    const uint64_t start_time = is_ours(process.pid) ? 0 : start_time_of(process.pid);
    if (start_time == 0) continue;
    if (auto tenant = tenants_.limited(process.pid)) {
      const std::string program = printable(short_name_of(process.pid).c_str());
      found.push_back({process.pid, start_time, program, tenant->name, tenant->id, process.used, tenant->pod});
    }
  }
  for (const BypassWatch::Change& change : bypass_.update(gpu, found, now)) {
    const BypassWatch::Process& process = change.process;
    if (change.began) {
      spdlog::warn("pid {} ({}) of tenant '{}' uses {} past nvshare: {} MiB of its memory, without limits{}", process.pid, process.program,
                   process.tenant, gpus_[gpu].uuid_text, process.used >> 20,
                   settings_.bypass == Bypass::kRefuseTurns ? "; the tenant gets no turns meanwhile" : "");
      note_bypass(process, gpu, now);
    } else {
      spdlog::info("pid {} ({}) of tenant '{}' no longer uses {} past nvshare", process.pid, process.program, process.tenant,
                   gpus_[gpu].uuid_text);
    }
  }
  refuse_turns(now);
}

// Turns of tenants with such a process end, and none begins until it has ended or the setting says that they may go on.
void Engine::refuse_turns(policy::Instant now) {
  std::set<policy::TenantId> refused;
  if (settings_.bypass == Bypass::kRefuseTurns) refused = bypass_.tenants();
  refused.swap(bypassed_);
  std::set<policy::TenantId> changed;
  std::set_symmetric_difference(refused.begin(), refused.end(), bypassed_.begin(), bypassed_.end(), std::inserter(changed, changed.end()));
  for (const policy::TenantId id : changed) {
    const Tenant* tenant = tenants_.find(id);
    if (tenant == nullptr || tenant->clients == 0 || tenant->paused_in_force()) continue;  // no change for the policy
    apply(policy::TenantPaused{id, bypassed_.contains(id)}, now);
  }
}

void Engine::report_bypasses(protocol::admin::StatusReport* report, policy::Instant now) const {
  for (const auto& [gpu, processes] : bypass_.seen()) {
    for (const auto& [key, seen] : processes) {
      if (!seen.told) continue;
      const BypassWatch::Process& process = seen.process;
      report->bypasses.push_back({process.pid, process.program, process.tenant, gpus_[gpu].uuid_text, process.used, now - seen.since,
                                  bypassed_.contains(process.id)});
    }
  }
}

}  // namespace nvshare::scheduler
