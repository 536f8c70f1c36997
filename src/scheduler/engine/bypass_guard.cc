#include "scheduler/engine/bypass_guard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/printable.h"

namespace nvshare::scheduler {
namespace {

// The machine's first PID namespace, whose numbers are NVML's (PROC_PID_INIT_INO of the kernel).
bool is_in_first_pid_namespace() {
  char name[64] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return std::string_view(name, length > 0 ? static_cast<size_t>(length) : 0) == "pid:[4026531836]";
}

}  // namespace

std::vector<BypassWatch::Process> BypassGuard::strangers(policy::GpuId gpu, const GpuSample& sample) {
  const auto is_ours = [&](pid_t pid) {
    return at_.clients.of_process(pid, gpu) != nullptr || at_.departures.watches(pid, gpu) ||
           std::any_of(at_.known.missing().begin(), at_.known.missing().end(), [&](const auto& entry) { return entry.second.pid == pid; });
  };
  std::vector<BypassWatch::Process> found;
  for (const ProcessMemory& process : sample.processes) {
    const uint64_t start_time = is_ours(process.pid) ? 0 : start_time_of(process.pid);
    if (start_time == 0) continue;
    if (auto tenant = at_.tenants.limited(process.pid)) {
      const std::string program = printable(short_name_of(process.pid).c_str());
      found.push_back({process.pid, start_time, program, tenant->name, tenant->id, process.used, tenant->pod});
    }
  }
  return found;
}

void BypassGuard::sampled(policy::GpuId gpu, const GpuSample& sample, policy::Instant now) {
  static const bool is_first = is_in_first_pid_namespace();
  if (!(at_.gpus.nvml_sees_pids() || is_first) || !watch_.is_due(gpu, now)) return;
  const std::string name = at_.gpus.name_of(gpu);
  for (const BypassWatch::Change& change : watch_.update(gpu, strangers(gpu, sample), now)) {
    const BypassWatch::Process& process = change.process;
    if (change.began) {
      spdlog::warn("pid {} ({}) of tenant '{}' uses {} past nvshare: {} MiB of its memory, without limits{}", process.pid, process.program,
                   process.tenant, name, process.used >> 20,
                   at_.settings.bypass == Bypass::kRefuseTurns ? "; the tenant gets no turns meanwhile" : "");
      note(process, gpu, now);
    } else {
      spdlog::info("pid {} ({}) of tenant '{}' no longer uses {} past nvshare", process.pid, process.program, process.tenant, name);
    }
  }
  refuse_turns(now);
}

// What the pod's owner is told, who sees its pod's events (`kubectl describe pod`), not the node's logs and status.
void BypassGuard::note(const BypassWatch::Process& process, policy::GpuId gpu, policy::Instant now) {
  if (process.pod.empty()) return;
  at_.notices.add(
      process.pod, "NotShared",
      fmt::format("process {} ({}) uses {} past nvshare, {} MiB of its memory: no limit holds for it, and it takes no turns. Its "
                  "container has no libnvshare.so, or the program goes around it",
                  process.pid, process.program, at_.gpus.name_of(gpu), process.used >> 20),
      now);
}

void BypassGuard::refuse_turns(policy::Instant now) {
  const bool refuses = at_.settings.bypass == Bypass::kRefuseTurns;
  for (const policy::TenantId id : watch_.refuse(refuses ? watch_.tenants() : std::set<policy::TenantId>())) {
    const Tenant* tenant = at_.tenants.find(id);
    if (tenant == nullptr || tenant->clients == 0 || tenant->suspended_in_force()) continue;  // no change for the policy
    at_.policy.apply(policy::TenantSuspended{id, watch_.refuses(id)}, now);
  }
}

}  // namespace nvshare::scheduler
