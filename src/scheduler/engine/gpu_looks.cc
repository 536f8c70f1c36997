#include "scheduler/engine/gpu_looks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "policy/parts.h"
#include "scheduler/engine/client_measures.h"

namespace nvshare::scheduler {
namespace {

// No context of its own: NVML has not listed the process for so long, though it would.
constexpr policy::Duration kUnlistedGrace = 10'000'000'000;
// A process that has ended is listed no more, and we may not know of its end yet: for so long its memory may be free.
constexpr policy::Duration kEndUnknown = 2'000'000'000;

}  // namespace

GpuLooks::Wanted GpuLooks::wanted(bool awaits_clients) const {
  Wanted wanted;
  // Where limits hold for somebody, programs that are no clients are looked for everywhere; after a restart, clients that are not back.
  const bool looks_everywhere = has_limited(at_.tenants) || awaits_clients;
  for (policy::GpuId id = 0; id < at_.gpus.size(); ++id) {
    const KnownGpu& gpu = at_.gpus[id];
    auto is_here = [&](const auto& entry) { return entry.second.gpu == id; };
    const auto& clients = at_.clients.all();
    if (((looks_everywhere || gpu.looks_due > 0) && gpu.nvml) || std::any_of(clients.begin(), clients.end(), is_here) ||
        at_.departures.watches(id))
      wanted.in_use.push_back(gpu.uuid);
    if (policy::shares_by_limits(at_.policy.state(), id)) wanted.shared_by_limits.push_back(gpu.uuid);
  }
  return wanted;
}

void GpuLooks::sampled(policy::GpuId id, const GpuSample& sample, bool awaits_clients, policy::Instant now) {
  at_.gpus[id].sample = sample;
  const int64_t ours = measure_clients(id, sample, now);
  const bool sees_pids = at_.gpus.nvml_sees_pids();
  const int64_t there = ours - may_be_free(id, sample);  // else what a dead client still has is taken for free, too
  at_.policy.apply(at_.departures.sampled(id, sample, there, sees_pids, at_.clients, at_.settings.policy, now), now);
  if (!policy::shares_by_limits(at_.policy.state(), id)) {
    at_.gpus[id].use.forget();
  } else if (sample.use) {
    compare_use(id, *sample.use, now);
  }
  if (awaits_clients) return;
  see_foreign(id, sample, now);
  at_.gpus[id].looks_due = std::max(at_.gpus[id].looks_due - 1, 0);
}

void GpuLooks::see_foreign(policy::GpuId id, const GpuSample& sample, policy::Instant now) {
  KnownGpu& gpu = at_.gpus[id];
  const bool sees_pids = at_.gpus.nvml_sees_pids();
  int64_t ours = at_.departures.used_by_watched(id, sample);
  ForeignMemoryWatch::Told told;
  for (const auto& [client_id, client] : at_.clients.all()) {
    if (client.gpu != id) continue;
    const int64_t its = used_by(client, sample, sees_pids, at_.settings.policy);
    ours += its;
    told.contexts += std::max<int64_t>(its - client.believed.resident, 0);
    told.moves += client.reports.moves + 1;
    told.leaving += std::min(client.leaving.left(), client.believed.resident);
  }
  const auto as_told = sees_pids ? std::nullopt : std::optional(told);
  if (auto foreign = gpu.foreign.update(sample, ours, gpu.real_total - gpu.total, as_told, may_be_free(id, sample))) {
    spdlog::debug("{}: {} MiB of other programs", at_.gpus.name_of(id), *foreign >> 20);
    at_.policy.apply(policy::ForeignMemory{id, *foreign}, now);
  }
}

// By the last look: what clients that did not come back after a restart have counts before anybody is granted memory.
void GpuLooks::see_foreign(policy::Instant now) {
  for (policy::GpuId id = 0; id < at_.gpus.size(); ++id) {
    if (!at_.gpus[id].sample || at_.gpus[id].total == 0) continue;
    GpuSample last = *at_.gpus[id].sample;
    last.used_before = last.used_after = std::min(last.used_before, last.used_after);
    see_foreign(id, last, now);
  }
}

int64_t GpuLooks::may_be_free(policy::GpuId gpu, const GpuSample& sample) const {
  if (!at_.gpus.nvml_sees_pids()) return 0;  // who is not listed may be there all the same
  int64_t bytes = 0;
  for (const auto& [id, client] : at_.clients.all()) {
    const bool is_new = client.unlisted_since != 0 && sample.taken_at - client.unlisted_since < kEndUnknown;
    if (client.gpu == gpu && is_new) bytes += used_by(client, sample, true, at_.settings.policy);
  }
  return bytes;
}

// Tells the policy what the clients' contexts use; returns what the clients use in all.
int64_t GpuLooks::measure_clients(policy::GpuId gpu, const GpuSample& sample, policy::Instant now) {
  int64_t ours = 0;
  int64_t unexplained = unexplained_memory(sample);
  std::vector<policy::Event> events;
  for (auto& [id, client] : at_.clients.all()) {
    if (client.gpu == gpu && find_process(sample, client.pid) != nullptr) {
      client.seen_by_nvml = true;
      at_.gpus.note_nvml_sees_pids();
    }
  }
  const bool sees_pids = at_.gpus.nvml_sees_pids();
  for (auto& [id, client] : at_.clients.all()) {
    if (client.gpu != gpu) continue;
    see_claims(client, sample, sees_pids, &unexplained);
    if (const policy::Memory before = client.believed, believed = at_.believed.believe(client, client.memory);
        believed.resident != before.resident || believed.unswappable != before.unswappable)
      events.emplace_back(policy::MemoryBelieved{id, believed});
    ours += used_by(client, sample, sees_pids, at_.settings.policy);
  }
  const bool lists_contexts = sees_pids || has_no_contexts(gpu, sample, at_.clients);
  for (auto& [id, client] : at_.clients.all()) {
    if (client.gpu == gpu) measure_overhead(client, sample, lists_contexts, &events);
  }
  at_.policy.apply(events, now);
  return ours;
}

void GpuLooks::measure_overhead(RegisteredClient& client, const GpuSample& sample, bool lists_contexts,
                                std::vector<policy::Event>* events) {
  const ProcessMemory* process = find_process(sample, client.pid);
  if (process == nullptr) {
    if (client.unlisted_since == 0 || !lists_contexts) client.unlisted_since = sample.taken_at;
    const bool has_none = sample.taken_at - client.unlisted_since >= kUnlistedGrace;
    if (has_none && client.overhead_taken != 0) {
      client.overhead_taken = 0;
      client.overhead = OverheadWatch();
      events->emplace_back(policy::ClientOverhead{client.id, 0});
    }
    return;
  }
  client.unlisted_since = 0;
  std::optional<int64_t> overhead = client.overhead.update(process->used, client.believed.resident, client.reports.moves);
  if (client.overhead_taken && !overhead)
    overhead = std::clamp<int64_t>(process->used - client.believed.resident, 0, at_.settings.policy.overhead_default);
  client.overhead_taken.reset();
  if (overhead) events->emplace_back(policy::ClientOverhead{client.id, *overhead});
}

// Only shown, never billed by: utilization_monitor.h.
void GpuLooks::compare_use(policy::GpuId id, const UseSample& sample, policy::Instant now) {
  std::map<int32_t, policy::TenantId> tenant_of;
  for (const auto& [client_id, client] : at_.clients.all()) {
    if (client.gpu == id) tenant_of[client.pid] = client.tenant;
  }
  std::map<policy::TenantId, int64_t> billed;
  for (const policy::GpuView& gpu : policy::view_of_tenants(at_.policy.state(), now)) {
    if (gpu.gpu != id) continue;
    for (const policy::TenantView& tenant : gpu.tenants) billed[tenant.tenant] = tenant.used;
  }
  KnownGpu& gpu = at_.gpus[id];
  if (!sample.unknown.empty() && gpu.use.unknown().empty()) spdlog::info("{}: {}", at_.gpus.name_of(id), sample.unknown);
  const std::vector<UtilizationMonitor::Change> changes = gpu.use.update(sample, tenant_of, billed, now);
  if (!at_.gpus.nvml_sees_pids()) return;  // it has other numbers for processes than we do
  for (const UtilizationMonitor::Change& change : changes) say(id, change);
}

void GpuLooks::say(policy::GpuId id, const UtilizationMonitor::Change& change) const {
  const std::string gpu = at_.gpus.name_of(id);
  const Tenant* tenant = change.tenant ? at_.tenants.find(*change.tenant) : nullptr;
  const std::string who = tenant != nullptr ? fmt::format("tenant {} '{}'", tenant->id, tenant->name) : "programs that are no clients";
  const auto& [nvml, share_billed, differ] = change.shares;
  if (!differ) {
    spdlog::info("{}: {}: {:.0f} % of the GPU's time by NVML, {:.0f} % billed: no longer far apart", gpu, who, nvml, share_billed);
  } else if (tenant == nullptr) {
    spdlog::warn("{}: programs that are no clients have had {:.0f} % of the GPU's time by NVML, for {:.0f} s: clients lack it", gpu, nvml,
                 static_cast<double>(UtilizationMonitor::kPatience) / 1e9);
  } else {
    spdlog::warn("{}: {}: {:.0f} % of the GPU's time by NVML, {:.0f} % billed, for {:.0f} s: {}", gpu, who, nvml, share_billed,
                 static_cast<double>(UtilizationMonitor::kPatience) / 1e9,
                 nvml > share_billed ? "work of its ran outside its turns" : "its turns went unused, or others ran in them");
  }
}

}  // namespace nvshare::scheduler
