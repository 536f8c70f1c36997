#include "scheduler/clients/departures.h"

#include <algorithm>

#include "scheduler/tenants/living_processes.h"

namespace nvshare::scheduler {

namespace {

// So many processes, and what they left, are looked up at once: /proc is read for each, and nobody is served meanwhile.
constexpr size_t kProcessesLookedUp = 128;
constexpr size_t kLeftLookedUp = 2048;

}  // namespace

std::optional<LeftClient> Departures::take(const Peer& peer, policy::GpuId gpu, const std::string& uuid,
                                           std::vector<policy::ClientId>* replaced) {
  std::optional<LeftClient> last;
  if (peer.pid == 0) return last;
  for (const policy::ClientId id : left_.of_process(peer.pid, peer.start_time)) {
    if (left_.at(id).gpu != gpu) continue;
    last = left_.at(id);
    watched_.erase(id);
    known_.forget(id);
    replaced->push_back(id);
    left_.erase(id);
  }
  for (const auto& [id, missing] : known_.missing()) {  // of an earlier scheduler
    if (missing.pid != peer.pid || missing.start_time != peer.start_time || missing.gpu != uuid) continue;
    watched_.erase(id);
    held_absent_.erase(id);
    replaced->push_back(id);
  }
  return last;
}

std::vector<policy::Event> Departures::look_up(const policy::Config& config, policy::Instant now) {
  std::vector<policy::ClientId> freed;
  LivingProcesses living(is_alive_);
  const policy::Instant until = now - config.departed_grace;  // later ones may not be free yet
  const LeftClients::ByTime& waiting = left_.waiting();
  auto at = waiting.upper_bound(looked_up_to_);
  for (size_t looked = 0; looked < std::min(waiting.size(), kLeftLookedUp) && living.looked_up() < kProcessesLookedUp; ++looked) {
    if (at == waiting.end() || at->first > until) at = waiting.begin();
    if (at->first > until) break;
    const LeftClient& left = left_.at(at->second);
    if (!living.has(left.pid, left.start_time)) freed.push_back(at->second);
    looked_up_to_ = *at++;
  }
  std::vector<policy::Event> events;
  for (const policy::ClientId id : freed) {
    left_.erase(id);
    known_.forget(id);
    events.emplace_back(policy::ClientMemoryFreed{id});
  }
  return events;
}

std::optional<policy::Instant> Departures::next_deadline(const policy::Config& config) const {
  const policy::Duration grace = config.departed_grace;
  const auto first = left_.waiting().lower_bound({looked_at_left_ - grace + 1, 0});
  return first != left_.waiting().end() ? std::optional(first->first + grace) : std::nullopt;
}

std::vector<policy::Event> Departures::deadline_reached(const policy::Config& config, policy::Instant now) {
  if (const auto at = next_deadline(config); !at || *at > now) return {};
  looked_at_left_ = now;
  return look_up(config, now);
}

void Departures::forget_old(const policy::Config& config, policy::Instant now) {
  const policy::Duration grace = std::max(config.departed_grace, config.watched_grace);
  std::vector<policy::ClientId> over;
  for (const auto& [id, left] : left_.all()) {
    if (now - left.since > grace) over.push_back(id);
  }
  for (const policy::ClientId id : over) {
    if (!watched_.contains(id)) known_.forget(id);
    left_.erase(id);
  }
}

std::vector<policy::Event> Departures::sampled(policy::GpuId gpu, const GpuSample& sample, int64_t ours, bool sees_pids,
                                               const Clients& clients, const policy::Config& config, policy::Instant now) {
  auto is_client = [&](int32_t pid) {
    return std::any_of(clients.all().begin(), clients.all().end(), [&](const auto& entry) { return entry.second.pid == pid; });
  };
  int64_t explained = ours;
  for (const ProcessMemory& process : sample.processes) {
    if (sees_pids && !is_client(process.pid)) explained += process.used;  // else it may be the departed, by another number
  }
  const int64_t unexplained = std::min(sample.used_before, sample.used_after) - explained;
  std::vector<policy::ClientId> freed;
  std::vector<policy::Event> events;
  for (auto& [id, departed] : watched_) {
    // What was looked at before the death says nothing about it.
    if (departed.gpu != gpu || sample.taken_at <= departed.since) continue;
    const ProcessMemory* process = find_process(sample, departed.pid);
    const bool listed = process != nullptr;
    if (listed) departed.listed_at = now;
    const int64_t used = listed ? std::max<int64_t>(process->used - config.overhead_default, 0) : 0;
    if (used > departed.held || (listed && now - departed.held_at > config.watched_grace / 2)) {
      departed.held = used;
      departed.held_at = now;
      events.emplace_back(policy::MemoryHeld{id, gpu, used});  // of a process that lives on: the policy would forget it
    }
    const bool is_gone = !listed && unexplained <= departed.resident / 2;
    if (is_gone || now - departed.listed_at > config.departed_grace) freed.push_back(id);
  }
  for (const policy::ClientId id : freed) {
    watched_.erase(id);
    if (!held_absent_.contains(id)) known_.forget(id);
    events.emplace_back(policy::ClientMemoryFreed{id});
  }
  return events;
}

std::vector<policy::Event> Departures::hold_absent(const Gpus& gpus, const policy::Config& config, policy::Instant now) {
  std::vector<policy::Event> events;
  for (const auto& [id, missing] : known_.missing()) {
    const std::optional<policy::GpuId> place = gpus.find(missing.gpu);
    if (!place || gpus[*place].total == 0 || held_absent_.contains(id) || !is_alive_(missing.pid, missing.start_time)) continue;
    held_absent_.insert(id);
    const KnownGpu& gpu = gpus[*place];
    const ProcessMemory* process = gpu.sample ? find_process(*gpu.sample, missing.pid) : nullptr;
    const int64_t seen = process != nullptr ? process->used - config.overhead_default : 0;
    const int64_t held = std::max(missing.on_gpu, seen);
    if (gpu.nvml) watched_[id] = {missing.pid, *place, now, held, held, now, now};
    events.emplace_back(policy::MemoryHeld{id, *place, held});
  }
  for (auto at = absent_ended_.begin(); at != absent_ended_.end();) {
    const auto [id, since] = *at;
    const KnownClient ended = known_.ended().at(id);
    const std::optional<policy::GpuId> place = gpus.find(ended.gpu);
    const bool is_free = now - since >= config.departed_grace || (place && gpus[*place].nvml);
    if (!is_free && (!place || gpus[*place].total == 0)) {
      ++at;
      continue;
    }
    at = absent_ended_.erase(at);
    if (is_free) {
      known_.forget(id);
      continue;
    }
    left_.put(id, {ended.pid, ended.start_time, *place, since, {}, 0, true});
    events.emplace_back(policy::MemoryHeld{id, *place, ended.on_gpu});
  }
  return events;
}

bool Departures::forget_absent(policy::ClientId id) {
  known_.forget(id);
  return held_absent_.erase(id) > 0 && !watched_.contains(id);
}

void Departures::absent_ended(policy::ClientId id, const Gpus& gpus, policy::Instant now) {
  const bool is_held = held_absent_.erase(id) > 0;
  if (watched_.contains(id)) {  // NVML shows when its memory is free
    known_.forget(id);
  } else if (const std::optional<policy::GpuId> place = gpus.find(known_.ended().at(id).gpu); is_held && place) {
    const KnownClient& ended = known_.ended().at(id);
    left_.put(id, {ended.pid, ended.start_time, *place, now, {}, 0, true});
  } else {
    absent_ended_.emplace(id, now);
  }
}

bool Departures::watches(policy::GpuId gpu) const {
  return std::any_of(watched_.begin(), watched_.end(), [&](const auto& entry) { return entry.second.gpu == gpu; });
}

bool Departures::watches(pid_t pid, policy::GpuId gpu) const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [&](const auto& entry) { return entry.second.pid == pid && entry.second.gpu == gpu; });
}

int64_t Departures::used_by_watched(policy::GpuId gpu, const GpuSample& sample) const {
  int64_t used = 0;
  for (const auto& [id, departed] : watched_) {
    const ProcessMemory* process = departed.gpu == gpu ? find_process(sample, departed.pid) : nullptr;
    if (process != nullptr) used += process->used;
  }
  return used;
}

std::set<policy::GpuId> Departures::gpus() const {
  std::set<policy::GpuId> gpus;
  for (const auto& [id, departed] : watched_) gpus.insert(departed.gpu);
  for (const auto& [id, left] : left_.all()) gpus.insert(left.gpu);
  return gpus;
}

}  // namespace nvshare::scheduler
