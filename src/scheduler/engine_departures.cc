// Memory of clients that have left, or that a restarted scheduler misses: whose process may still have it on the GPU. It counts until NVML
// shows it free, or, where NVML does not see the process, until the process has ended and the driver has had a moment.
#include <algorithm>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

namespace {

// So many processes, and what they left, are looked up at once: /proc is read for each, and nobody is served meanwhile.
constexpr size_t kProcessesLookedUp = 128;
constexpr size_t kLeftLookedUp = 2048;

}  // namespace

// A process comes back whose connection ended: what it left behind is its own, and counts once. That has to change in one step of the
// policy, which would give it to others in between.
std::optional<LeftClient> Engine::take_left(const Peer& peer, policy::GpuId gpu, std::vector<policy::ClientId>* replaced) {
  std::optional<LeftClient> last;
  if (peer.pid == 0) return last;
  for (const policy::ClientId id : left_.of_process(peer.pid, peer.start_time)) {
    if (left_.at(id).gpu != gpu) continue;
    last = left_.at(id);
    departed_.erase(id);
    known_.forget(id);
    replaced->push_back(id);
    left_.erase(id);
  }
  for (const auto& [id, missing] : known_.missing()) {  // of an earlier scheduler
    if (missing.pid != peer.pid || missing.start_time != peer.start_time || missing.gpu != gpus_[gpu].uuid_text) continue;
    departed_.erase(id);
    held_absent_.erase(id);
    replaced->push_back(id);
  }
  return last;
}

bool Engine::is_alive(pid_t pid, uint64_t start_time) const {
  return pid > 0 && start_time != 0 && start_time_if_alive_(pid) == start_time;
}

// What NVML does not watch: of processes that have ended. Of many, some each time.
void Engine::free_left(policy::Instant now) {
  std::vector<std::pair<policy::Instant, policy::ClientId>> freed;
  LivingProcesses living([this](pid_t pid, uint64_t start_time) { return is_alive(pid, start_time); });
  const policy::Instant until = now - settings_.policy.departed_grace;  // later ones may not be free yet
  const LeftClients::ByTime& waiting = left_.waiting();
  auto at = waiting.upper_bound(looked_up_to_);
  for (size_t looked = 0; looked < std::min(waiting.size(), kLeftLookedUp) && living.looked_up() < kProcessesLookedUp; ++looked) {
    if (at == waiting.end() || at->first > until) at = waiting.begin();
    if (at->first > until) break;
    const LeftClient& left = left_.at(at->second);
    if (!living.has(left.pid, left.start_time)) freed.push_back(*at);
    looked_up_to_ = *at++;
  }
  for (const auto& left : freed) {
    const policy::ClientId id = left.second;
    left_.erase(id);
    known_.forget(id);
    apply(policy::ClientMemoryFreed{id}, now);
  }
}

// When free_left looks first; then housekeeping does it.
std::optional<policy::Instant> Engine::looks_at_left_at() const {
  const policy::Duration grace = settings_.policy.departed_grace;
  const auto first = left_.waiting().lower_bound({looked_at_left_ - grace + 1, 0});
  return first != left_.waiting().end() ? std::optional(first->first + grace) : std::nullopt;
}

void Engine::forget_left(policy::Instant now) {
  const policy::Duration grace = std::max(settings_.policy.departed_grace, settings_.policy.watched_grace);
  std::vector<policy::ClientId> over;
  for (const auto& [id, left] : left_.all()) {
    if (now - left.since > grace) over.push_back(id);
  }
  for (const policy::ClientId id : over) {
    if (!departed_.contains(id)) known_.forget(id);
    left_.erase(id);
  }
}

// The driver takes a dead process off its list before all of its memory is free again, so both are looked at. `ours`: what the living
// clients use.
void Engine::free_departed(policy::GpuId gpu, const GpuSample& sample, int64_t ours, policy::Instant now) {
  auto is_client = [&](int32_t pid) {
    return std::any_of(clients_.begin(), clients_.end(), [&](const auto& entry) { return entry.second.pid == pid; });
  };
  int64_t explained = ours;
  for (const ProcessMemory& process : sample.processes) {
    if (!is_client(process.pid)) explained += process.used;
  }
  const int64_t unexplained = std::min(sample.used_before, sample.used_after) - explained;
  std::vector<policy::ClientId> freed;
  std::vector<policy::MemoryHeld> stays;  // of a process that lives on: the policy would forget it
  for (auto& [id, departed] : departed_) {
    // What was looked at before the death says nothing about it.
    if (departed.gpu != gpu || sample.taken_at <= departed.since) continue;
    const ProcessMemory* process = find_process(sample, departed.pid);
    const bool listed = process != nullptr;
    if (listed) departed.listed_at = now;
    const int64_t used = listed ? std::max<int64_t>(process->used - settings_.policy.overhead_default, 0) : 0;
    if (used > departed.held || (listed && now - departed.held_at > settings_.policy.watched_grace / 2)) {
      departed.held = used;
      departed.held_at = now;
      stays.push_back({id, gpu, used});
    }
    const bool is_gone = !listed && unexplained <= departed.resident / 2;
    if (is_gone || now - departed.listed_at > settings_.policy.departed_grace) freed.push_back(id);
  }
  for (const policy::MemoryHeld& held : stays) apply(held, now);
  for (policy::ClientId client : freed) {
    departed_.erase(client);
    if (!held_absent_.contains(client)) known_.forget(client);
    apply(policy::ClientMemoryFreed{client}, now);
  }
}

// It may be stopped, and goes on with what it holds: that is nobody else's of its tenant meanwhile.
void Engine::count_absent(policy::Instant now) {
  for (const auto& [id, known] : known_.missing()) {
    const Tenant* tenant = tenants_.find(known.tenant);
    const auto gpu =
        std::find_if(gpus_.begin(), gpus_.end(), [&uuid = known.gpu](const Gpu& of) { return of.uuid_text == uuid && of.total > 0; });
    if (tenant == nullptr || gpu == gpus_.end() || ledger_.knows(id)) continue;
    spdlog::info("client {} of the previous scheduler (pid {}) is not back: what it may have of tenant {}'s memory stays counted", id,
                 known.pid, tenant->id);
    perform(
        ledger_.join({id, tenant->id, static_cast<policy::GpuId>(gpu - gpus_.begin()), known.own_limit, tenant->memory_limit_on(known.gpu),
                      known.charged, known.lease, true, part_of(*tenant, known.pid, tenants_.cgroups)},
                     now),
        now);
  }
}

void Engine::forget_absent(policy::Instant now) {
  std::vector<std::pair<policy::ClientId, policy::TenantId>> ended;
  for (const auto& [id, known] : known_.missing()) {
    // Or it runs another program now, which is a client of its own.
    const bool is_another = std::any_of(clients_.begin(), clients_.end(), [&, &missing = known](const auto& entry) {
      return entry.second.pid == missing.pid && gpus_[entry.second.gpu].uuid_text == missing.gpu;
    });
    if (is_another || !is_alive(known.pid, known.start_time)) ended.emplace_back(id, known.tenant);
  }
  for (const auto& [id, tenant] : ended) {
    known_.forget(id);
    if (Tenant* its = tenants_.find(tenant)) its->is_awaited_no_more();
    perform(ledger_.leave(id, now), now);
    if (held_absent_.erase(id) > 0 && !departed_.contains(id)) apply(policy::ClientMemoryFreed{id}, now);
  }
  if (ended.empty()) return;
  tenants_.prune();
  tenants_.save();
  if (hold_ && known_.missing().empty()) end_hold(now);
}

// After a restart nobody has been granted anything yet that a missing client may have: it may be stopped, in the middle of its load, or
// have grown while no scheduler was there, as the last look says.
void Engine::hold_absent(policy::Instant now) {
  for (const auto& [id, known] : known_.missing()) {
    const auto gpu =
        std::find_if(gpus_.begin(), gpus_.end(), [&uuid = known.gpu](const Gpu& of) { return of.uuid_text == uuid && of.total > 0; });
    if (gpu == gpus_.end() || held_absent_.contains(id) || !is_alive(known.pid, known.start_time)) continue;
    held_absent_.insert(id);
    const auto place = static_cast<policy::GpuId>(gpu - gpus_.begin());
    const ProcessMemory* process = gpu->sample ? find_process(*gpu->sample, known.pid) : nullptr;
    const int64_t seen = process != nullptr ? process->used - settings_.policy.overhead_default : 0;
    const int64_t held = std::max(known.on_gpu, seen);
    if (gpu->nvml) departed_[id] = {known.pid, place, now, held, held, now, now};
    apply(policy::MemoryHeld{id, place, held}, now);
  }
}

}  // namespace nvshare::scheduler
