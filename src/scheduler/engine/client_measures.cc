#include "scheduler/engine/client_measures.h"

#include <algorithm>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kUnseenPart = 16;  // of the GPU: so much the contexts take at most that one tenant's clients are said to have

// Whose many registrations count together: a tenant's, or a user's, who can make any number of tenants.
bool are_of_same_owner(const RegisteredClient& a, const RegisteredClient& b, const Tenants& tenants) {
  const auto is_contained = [&](const RegisteredClient& client) {
    const Tenant* tenant = tenants.find(client.tenant);
    return tenant != nullptr && (tenant->kind == "pod" || tenant->kind == "container");
  };
  if (a.tenant == b.tenant) return true;
  return a.uid != 0 && a.uid == b.uid && !is_contained(a) && !is_contained(b);
}

}  // namespace

bool has_no_contexts(policy::GpuId gpu, const GpuSample& sample, const Clients& clients) {
  if (!sample.processes.empty()) return false;
  int64_t ours = 0;
  for (const auto& [id, client] : clients.all()) ours += client.gpu == gpu ? client.believed.resident : 0;
  return std::min(sample.used_before, sample.used_after) - ours < ForeignMemoryWatch::kStep;
}

int64_t used_by(const RegisteredClient& client, const GpuSample& sample, bool nvml_sees_pids, const policy::Config& config) {
  if (const ProcessMemory* process = find_process(sample, client.pid)) return process->used;
  const int64_t resident = client.believed.resident;
  const bool has_context = !nvml_sees_pids && resident > 0;
  return resident + (has_context ? client.overhead_taken.value_or(config.overhead_default) : 0);  // as the policy counts it
}

void see_claims(RegisteredClient& client, const GpuSample& sample, bool nvml_sees_pids, int64_t* unexplained) {
  if (!nvml_sees_pids) return client.claims.seen(sample.used_after);
  const ProcessMemory* process = find_process(sample, client.pid);
  const int64_t listed = process != nullptr ? process->used : 0;
  if (client.backend == protocol::Backend::kManaged) return client.claims.seen(listed + *unexplained);  // that need not be in its figure
  if (process != nullptr) return client.claims.seen(listed);
  const auto resident = static_cast<int64_t>(std::min<uint64_t>(client.memory.resident, INT64_MAX));
  *unexplained -= client.claims.not_listed(resident, *unexplained);
}

std::optional<int64_t> overhead_of_newcomer(const RegisteredClient& client, const KnownGpu& gpu, const Clients& clients,
                                            const Tenants& tenants, const policy::Config& config) {
  if (!gpu.nvml) return std::nullopt;
  const int64_t usual = config.overhead_default;
  const int64_t most = std::max(gpu.total / kUnseenPart, 2 * usual);
  int64_t taken = 0;
  for (const auto& [id, other] : clients.all()) {
    const bool counts = other.gpu == client.gpu && id != client.id && !other.seen_by_nvml && are_of_same_owner(client, other, tenants);
    if (counts) taken += other.overhead_taken.value_or(usual);
  }
  if (taken + usual <= most) return std::nullopt;
  return std::max<int64_t>(most - taken, 0);
}

}  // namespace nvshare::scheduler
