// The engine's view of memory that it does not hand out itself: other programs', contexts', the dead's.
#include <fmt/format.h>

#include <algorithm>

#include "policy/parts.h"
#include "scheduler/client_measures.h"
#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

// No context of its own: NVML has not listed the process for so long, though it lists others.
constexpr policy::Duration kUnlistedGrace = 10'000'000'000;

}  // namespace

Engine::Look Engine::to_look_at() const {
  Look look;
  // Where limits hold for somebody, programs that are no clients are looked for everywhere; after a restart, clients that are not back.
  const bool looks_everywhere = has_limited(tenants_) || hold_;
  for (policy::GpuId id = 0; id < gpus_.size(); ++id) {
    auto is_here = [&](const auto& entry) { return entry.second.gpu == id; };
    const bool looks_for_others = looks_everywhere && gpus_[id].nvml;
    if (looks_for_others || std::any_of(clients_.all().begin(), clients_.all().end(), is_here) || departures_.watches(id))
      look.in_use.push_back(gpus_[id].uuid);
    if (policy::shares_by_limits(steps_.state(), id)) look.shared_by_limits.push_back(gpus_[id].uuid);
  }
  return look;
}

void Engine::memory_sampled(const std::vector<GpuSample>& samples, policy::Instant now) {
  for (const GpuSample& sample : samples) {
    const std::optional<policy::GpuId> id = gpus_.find(sample.uuid);
    if (!id) continue;
    if (gpus_[*id].total > 0) sampled(*id, sample, now);
    look_for_bypasses(*id, sample, now);
  }
}

void Engine::sampled(policy::GpuId id, const GpuSample& sample, policy::Instant now) {
  gpus_[id].sample = sample;
  const int64_t ours = measure_clients(id, sample, now);
  apply(departures_.sampled(id, sample, ours, clients_, settings_.policy, now), now);
  if (!policy::shares_by_limits(steps_.state(), id)) {
    gpus_[id].use.forget();
  } else if (sample.use) {
    compare_use(id, *sample.use, now);
  }
  if (!hold_) see_foreign(id, sample, now);  // clients that are not back yet would count as foreign
}

void Engine::see_foreign(policy::GpuId id, const GpuSample& sample, policy::Instant now) {
  KnownGpu& gpu = gpus_[id];
  int64_t ours = departures_.used_by_watched(id, sample);
  for (const auto& [client_id, client] : clients_.all())
    ours += client.gpu == id ? used_by(client, sample, gpus_.nvml_sees_pids(), settings_.policy) : 0;
  if (auto foreign = gpu.foreign.update(sample, ours, gpu.real_total - gpu.total)) {
    spdlog::debug("{}: {} MiB of other programs", gpu.uuid_text, *foreign >> 20);
    apply(policy::ForeignMemory{id, *foreign}, now);
  }
}

// By the last look: what clients that did not come back after a restart have counts before anybody is granted memory.
void Engine::see_foreign(policy::Instant now) {
  for (policy::GpuId id = 0; id < gpus_.size(); ++id) {
    if (!gpus_[id].sample || gpus_[id].total == 0) continue;
    GpuSample last = *gpus_[id].sample;
    last.used_before = last.used_after = std::min(last.used_before, last.used_after);
    see_foreign(id, last, now);
  }
}

// Tells the policy what the clients' contexts use; returns what the clients use in all.
int64_t Engine::measure_clients(policy::GpuId gpu, const GpuSample& sample, policy::Instant now) {
  int64_t ours = 0;
  int64_t unexplained = unexplained_memory(sample);
  std::vector<policy::Event> events;
  for (auto& [id, client] : clients_.all()) {
    if (client.gpu == gpu && find_process(sample, client.pid) != nullptr) {
      client.seen_by_nvml = true;
      gpus_.note_nvml_sees_pids();
    }
  }
  for (auto& [id, client] : clients_.all()) {
    if (client.gpu != gpu) continue;
    see_claims(client, sample, gpus_.nvml_sees_pids(), &unexplained);
    if (const policy::Memory before = client.believed, believed = believe(client, client.memory);
        believed.resident != before.resident || believed.unswappable != before.unswappable)
      events.emplace_back(policy::MemoryBelieved{id, believed});
    ours += used_by(client, sample, gpus_.nvml_sees_pids(), settings_.policy);
    const ProcessMemory* process = find_process(sample, client.pid);
    if (process == nullptr) {
      if (client.unlisted_since == 0) client.unlisted_since = sample.taken_at;
      const bool has_none =
          (gpus_.nvml_sees_pids() || !lists_others(sample, clients_)) && sample.taken_at - client.unlisted_since >= kUnlistedGrace;
      if (has_none && client.overhead_taken != 0) {
        client.overhead_taken = 0;
        client.overhead = OverheadWatch();
        events.emplace_back(policy::ClientOverhead{id, 0});
      }
      continue;
    }
    client.unlisted_since = 0;
    std::optional<int64_t> overhead = client.overhead.update(process->used, client.believed.resident, client.reports);
    if (client.overhead_taken && !overhead)
      overhead = std::clamp<int64_t>(process->used - client.believed.resident, 0, settings_.policy.overhead_default);
    client.overhead_taken.reset();
    if (overhead) events.emplace_back(policy::ClientOverhead{id, *overhead});
  }
  for (const policy::Event& event : events) apply(event, now);
  return ours;
}

void Engine::keep_accounts(policy::Instant now) {
  const auto has_accounts = [](const auto& entry) { return !entry.second.accounts.empty(); };
  bool any_is_shared = false;
  for (policy::GpuId id = 0; id < gpus_.size(); ++id) any_is_shared = any_is_shared || policy::shares_by_limits(steps_.state(), id);
  if (!any_is_shared && std::none_of(tenants_.all().begin(), tenants_.all().end(), has_accounts)) return;
  for (const policy::GpuView& gpu : policy::view_of_tenants(steps_.state(), now)) {
    const std::string& uuid = gpus_[gpu.gpu].uuid_text;
    const bool is_shared = policy::shares_by_limits(steps_.state(), gpu.gpu);
    for (const auto& [key, known] : tenants_.all()) {
      Tenant* tenant = tenants_.find(known.id);
      const auto account = std::ranges::lower_bound(gpu.tenants, known.id, {}, &policy::TenantView::tenant);
      if (is_shared && account != gpu.tenants.end() && account->tenant == known.id) {
        tenant->accounts[uuid] = {now - account->since_joined, account->debt, account->used, account->throttled_time};
      } else {
        tenant->accounts.erase(uuid);
      }
    }
  }
  tenants_.save();
}

// What an earlier scheduler had on it.
void Engine::take_over_account(policy::TenantId id, policy::GpuId gpu, policy::Instant now) {
  Tenant* tenant = tenants_.find(id);
  if (tenant == nullptr) return;
  const auto former = tenant->former_accounts.find(gpus_[gpu].uuid_text);
  if (former == tenant->former_accounts.end()) return;
  const KeptAccount account = former->second;
  tenant->former_accounts.erase(former);
  if (account.joined_at > now) return;  // by the clock of another boot
  apply(policy::AccountKept{id, gpu, account.joined_at, account.debt, account.used, account.throttled_time}, now);
}

// Only shown, never billed by: utilization_monitor.h.
void Engine::compare_use(policy::GpuId id, const UseSample& sample, policy::Instant now) {
  std::map<int32_t, policy::TenantId> tenant_of;
  for (const auto& [client_id, client] : clients_.all()) {
    if (client.gpu == id) tenant_of[client.pid] = client.tenant;
  }
  std::map<policy::TenantId, int64_t> billed;
  for (const policy::GpuView& gpu : policy::view_of_tenants(steps_.state(), now)) {
    if (gpu.gpu != id) continue;
    for (const policy::TenantView& tenant : gpu.tenants) billed[tenant.tenant] = tenant.used;
  }
  KnownGpu& gpu = gpus_[id];
  if (!sample.unknown.empty() && gpu.use.unknown().empty()) spdlog::info("{}: {}", gpu.uuid_text, sample.unknown);
  const std::vector<UtilizationMonitor::Change> changes = gpu.use.update(sample, tenant_of, billed, now);
  if (!gpus_.nvml_sees_pids()) return;  // it has other numbers for processes than we do
  for (const UtilizationMonitor::Change& change : changes) {
    const Tenant* tenant = change.tenant ? tenants_.find(*change.tenant) : nullptr;
    const std::string who = tenant != nullptr ? fmt::format("tenant {} '{}'", tenant->id, tenant->name) : "programs that are no clients";
    const auto& [nvml, share_billed, differ] = change.shares;
    if (!differ) {
      spdlog::info("{}: {}: {:.0f} % of the GPU's time by NVML, {:.0f} % billed: no longer far apart", gpu.uuid_text, who, nvml,
                   share_billed);
    } else if (tenant == nullptr) {
      spdlog::warn("{}: programs that are no clients have had {:.0f} % of the GPU's time by NVML, for {:.0f} s: clients lack it",
                   gpu.uuid_text, nvml, static_cast<double>(UtilizationMonitor::kPatience) / 1e9);
    } else {
      spdlog::warn("{}: {}: {:.0f} % of the GPU's time by NVML, {:.0f} % billed, for {:.0f} s: {}", gpu.uuid_text, who, nvml, share_billed,
                   static_cast<double>(UtilizationMonitor::kPatience) / 1e9,
                   nvml > share_billed ? "work of its ran outside its turns" : "its turns went unused, or others ran in them");
    }
  }
}

void Engine::log_note(const policy::Note& note) const {
  auto level = spdlog::level::debug;
  switch (note.level) {
    case policy::Note::Level::kDebug:
      level = spdlog::level::debug;
      break;
    case policy::Note::Level::kInfo:
      level = spdlog::level::info;
      break;
    case policy::Note::Level::kWarning:
      level = spdlog::level::warn;
      break;
  }
  if (!spdlog::should_log(level)) return;
  std::string about;
  if (note.gpu && *note.gpu < gpus_.size()) about = gpus_[*note.gpu].uuid_text + ": ";
  const RegisteredClient* client = clients_.find(note.client);
  const policy::TenantId tenant = client != nullptr ? client->tenant : note.tenant;
  std::string name;
  if (const Tenant* known = tenants_.find(tenant)) name = fmt::format("tenant {} '{}'", tenant, known->name);
  if (client != nullptr) {
    about += fmt::format("client {} ({}, {}): ", note.client, client->program, name);
  } else if (note.client != 0) {
    about += fmt::format("client {}: ", note.client);
  } else if (!name.empty()) {
    about += name + ": ";
  }
  spdlog::log(level, "{}{}", about, note.text);
}

void Engine::take_swap(Client& client, const protocol::SwapProgress& message, policy::Instant now) {
  using protocol::SwapDirection;
  const int64_t resident_before = bounded(client.memory.resident);
  const int64_t used_more = remember(client, message.memory, now);
  const bool in_segments = client.backend != protocol::Backend::kManaged;
  warn_of_swap(client, message, now);
  const auto direction = static_cast<SwapDirection>(message.direction);
  apply(policy::SwapProgressed{client.id, direction == SwapDirection::kOut, message.finished != 0, message.failed != 0, message.id,
                               bounded(message.copied), static_cast<int64_t>(message.elapsed_ns), believe(client, message.memory),
                               bounded(message.unchanged), direction == SwapDirection::kAhead,
                               in_segments ? std::optional(used_more) : std::nullopt},
        now);
  note_prefetched(client, message);
  if (in_segments) {
    host_.note_reckoned(client.tenant, used_more);
  } else {
    host_.note_moved(client.tenant, std::abs(bounded(client.memory.resident) - resident_before));
  }
  update_host_memory(now);
}

void Engine::warn_of_swap(const Client& client, const protocol::SwapProgress& message, policy::Instant now) {
  if (message.failed != 0 && message.direction != static_cast<uint8_t>(protocol::SwapDirection::kAhead)) {
    warnings_.warn_of(client.lines_of, "failed swap " + std::to_string(client.id), now,
                      "client {} ({}): moving memory {} failed after {} MiB; the rest stays", client.id, client.program,
                      message.direction == 0 ? "out" : "in", message.moved >> 20);
  }
  if (message.mistaken != 0) {
    warnings_.warn_of(client.lines_of, "mistaken " + std::to_string(client.id), now,
                      "client {} ({}): memory that it took to be unchanged was not; nothing was lost, and from now on it copies all",
                      client.id, client.program);
  }
}

}  // namespace nvshare::scheduler
