// Processes of limited tenants that use a GPU past the library: found among those that NVML lists, named, and perhaps answered.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
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
  if (hold_ || !(gpus_.nvml_sees_pids() || is_first) || !bypass_.is_due(gpu, now)) return;
  const auto is_ours = [&](pid_t pid) {
    return clients_.of_process(pid, gpu) != nullptr || departures_.watches(pid, gpu) ||
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

// What the pod's owner is told, who sees its pod's events (`kubectl describe pod`), not the node's logs and status.
void Engine::note_bypass(const BypassWatch::Process& process, policy::GpuId gpu, policy::Instant now) {
  if (process.pod.empty()) return;
  notices_.add(process.pod, "NotShared",
               fmt::format("process {} ({}) uses {} past nvshare, {} MiB of its memory: no limit holds for it, and it takes no turns. Its "
                           "container has no libnvshare.so, or the program goes around it",
                           process.pid, process.program, gpus_[gpu].uuid_text, process.used >> 20),
               now);
}

// Turns of tenants with such a process end, and none begins until it has ended or the setting says that they may go on.
void Engine::refuse_turns(policy::Instant now) {
  const bool refuses = settings_.bypass == Bypass::kRefuseTurns;
  for (const policy::TenantId id : bypass_.refuse(refuses ? bypass_.tenants() : std::set<policy::TenantId>())) {
    const Tenant* tenant = tenants_.find(id);
    if (tenant == nullptr || tenant->clients == 0 || tenant->suspended_in_force()) continue;  // no change for the policy
    apply(policy::TenantSuspended{id, bypass_.refuses(id)}, now);
  }
}

}  // namespace nvshare::scheduler
