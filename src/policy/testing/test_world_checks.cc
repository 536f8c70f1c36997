// What the world holds the policy to, at every step.
#include <algorithm>
#include <sstream>
#include <tuple>

#include "policy/parts.h"
#include "policy/testing/test_world.h"

namespace nvshare::policy::testing {

// What all could have resident without hearing from the policy again.
void World::check_promises() {
  for (const auto& [gpu, total] : gpus_) {
    Bytes sum = 0;
    for (const auto& [id, player] : players_) {
      if (player.gpu != gpu || !player.alive) continue;
      Bytes most = std::max({player.memory.resident, player.has_lock ? player.budget : 0, player.prefetch_budget});
      for (const auto& [grant, budget] : player.budgets_in_flight) {
        if (grant > player.grant || (player.has_lock && grant == player.grant)) most = std::max(most, budget);
      }
      sum += most;
    }
    for (const auto& [id, left] : not_freed_) sum += left.first == gpu ? left.second : 0;
    if (sum > std::max(ledger_.safe_limit(gpu), ledger_.promised(gpu))) {
      fail("GPU " + std::to_string(gpu) + ": " + std::to_string(sum >> 20) + " MiB could become resident");
    }
  }
}

static auto fields_of(const ClientGlimpse& client) {
  const Memory& memory = client.memory;
  return std::tuple(client.gpu, client.tenant, client.state, client.in_turn, client.turns, memory.allocated, memory.resident,
                    memory.unswappable, client.swapped_out_total, client.swapped_in_total, client.held);
}

// What a step changes of a client it shows among those that it touched.
void World::check_glimpses() {
  std::vector<ClientGlimpse> clients;
  glimpse_touched(*state_, clients);
  for (const ClientGlimpse& client : clients) glimpsed_[client.client] = client;
  glimpse(*state_, clients);
  for (const ClientGlimpse& client : clients) {
    const auto at = glimpsed_.find(client.client);
    const bool same = at != glimpsed_.end() && fields_of(at->second) == fields_of(client);
    if (!same) fail("client " + std::to_string(client.client) + " changed, and was not touched");
  }
}

void World::check_waits() {
  bool all_drain = true;  // nobody waits, or is shown as waiting, for who does not
  for (const GpuView& gpu : view(*state_, now_)) {
    for (const ClientView& client : gpu.clients) all_drain = all_drain && client.failed_drains_in_row < 2;
  }
  for (const GpuView& gpu : view(*state_, now_)) {
    for (const ClientView& client : gpu.clients) {
      if (client.state != ClientState::kWaiting) {
        waits_.erase(client.client);
        continue;
      }
      Wait& wait = waits_.try_emplace(client.client, Wait{client.since, 0, false}).first->second;
      if (wait.excused) wait = Wait{now_, 0, false};  // the wait without a bound lasted until now
      const std::optional<Duration> bound = waiting_bound(*state_, client.client);
      if (!bound) {
        if (expect_bounded && all_drain)
          fail("client " + std::to_string(client.client) + " waits without a bound, for " + client.waiting_for);
        wait.excused = true;
        continue;
      }
      wait.bound = std::max(wait.bound, *bound);
      if (now_ - wait.since > wait.bound) {
        fail("client " + std::to_string(client.client) + " has waited for " + std::to_string((now_ - wait.since) / kSec) +
             " s, the bound was " + std::to_string(wait.bound / kSec) + " s");
      }
    }
  }
}

std::map<ClientId, ClientState> World::states() const {
  std::map<ClientId, ClientState> all;
  for (const GpuView& gpu : view(*state_, now_)) {
    for (const ClientView& client : gpu.clients) all[client.client] = client.state;
  }
  return all;
}

// A gang whose turn begins gets all that it waited for.
void World::check_gangs(const std::map<ClientId, ClientState>& before) {
  struct Seen {
    bool held = false, holds = false, left_out = false;
  };
  std::map<TenantId, Seen> gangs;
  for (const GpuView& gpu : view(*state_, now_)) {
    for (const ClientView& client : gpu.clients) {
      if (client.gang_gpus == 0) continue;
      const auto was = before.find(client.client);
      Seen& seen = gangs[client.tenant];
      seen.held |= was == before.end() || (was->second != ClientState::kIdle && was->second != ClientState::kWaiting);
      seen.holds |= client.state == ClientState::kLoading || client.state == ClientState::kRunning;
      seen.left_out |= client.state == ClientState::kWaiting && was != before.end() && was->second == ClientState::kWaiting;
    }
  }
  for (const auto& [tenant, seen] : gangs) {
    if (!seen.held && seen.holds && seen.left_out) fail("tenant " + std::to_string(tenant) + " got a part of the GPUs that it waits for");
  }
}

// Somebody runs or something moves, or nobody could be helped.
void World::check_progress() {
  bool gangs = false, any_moves = false;
  for (const GpuView& gpu : view(*state_, now_)) {
    for (const ClientView& client : gpu.clients) {
      gangs |= client.gang_gpus > 0;
      any_moves |= client.state == ClientState::kRunning || client.state == ClientState::kLoading || client.evicting;
    }
  }
  for (const GpuView& gpu : view(*state_, now_)) {
    bool moves = gpu.departed > 0, waits = false, feasible = false;
    for (const ClientView& client : gpu.clients) {
      const Player& player = players_.at(client.client);
      moves |= client.evicting || (client.state == ClientState::kRunning && client.waiting_for.empty()) ||
               client.state == ClientState::kDropping || client.state == ClientState::kUnresponsive ||
               (client.state == ClientState::kLoading && player.moving) || player.prefetch_budget > 0;
      waits |= !client.waiting_for.empty();
      // Could it run if all others gave up the lock?
      Bytes can_move = 0, others = 0;
      for (const ClientView& other : gpu.clients) {
        if (other.client == client.client) continue;
        others += other.memory.resident;
        can_move += players_.at(other.client).swappable ? other.memory.resident - other.memory.unswappable : 0;
      }
      if (host_total_) can_move = std::min(can_move, host_free());
      const bool grows = client.state == ClientState::kRunning && !client.waiting_for.empty();  // has to get it, or be refused
      feasible |= grows || (client.state != ClientState::kIdle && client.memory.allocated + others - can_move <= gpu.safe_limit);
    }
    auto& [stands_still, since] = stands_still_.try_emplace(gpu.gpu, false, now_).first->second;
    if (!stands_still) since = now_;
    moves |= gangs && any_moves;  // a gang may keep one GPU for the sake of another
    stands_still = !moves && waits && feasible;
    if (stands_still && now_ - since > 60 * kSec) fail("GPU " + std::to_string(gpu.gpu) + " stands still while a client could run");
  }
}

ClientView World::view_of(ClientId id) const {
  for (const GpuView& gpu : view(*state_, now_)) {
    for (const ClientView& client : gpu.clients) {
      if (client.client == id) return client;
    }
  }
  return {};
}

GpuView World::gpu_view(GpuId gpu) const {
  for (const GpuView& candidate : view(*state_, now_)) {
    if (candidate.gpu == gpu) return candidate;
  }
  return {};
}

bool World::all_finished() const {
  return std::all_of(players_.begin(), players_.end(),
                     [](const auto& entry) { return !entry.second.alive || entry.second.phases.empty(); });
}

void World::fail(const std::string& what) {
  if (!broken_) broken_ = what;
}

std::string World::describe() const {
  std::ostringstream out;
  out << broken_.value_or("all is well") << "\nat " << (now_ - 1000 * kSec) / kMs << " ms, step " << steps_;
  for (const GpuView& gpu : view(*state_, now_)) {
    out << "\nGPU " << gpu.gpu << ": safe limit " << (gpu.safe_limit >> 20) << " MiB, departed " << (gpu.departed >> 20);
    if (host_total_) out << ", host room " << (host_free() >> 20);
    for (const ClientView& c : gpu.clients) {
      out << "\n  " << c.client << " " << name_of(c.state) << " priority " << c.priority << " since " << (c.since - 1000 * kSec) / kMs
          << " allocated " << (c.memory.allocated >> 20) << " resident " << (c.memory.resident >> 20) << " unswappable "
          << (c.memory.unswappable >> 20) << " budget " << (c.budget >> 20) << " tenant " << c.tenant << " gang " << c.gang_gpus
          << " failed drains " << c.failed_drains << (c.drainable ? "" : " undrainable") << (c.evicting ? " evicting" : "")
          << (c.waiting_for.empty() ? "" : " waits for " + c.waiting_for);
    }
  }
  for (const auto& [id, p] : players_) {
    if (!p.alive || !p.joined) continue;
    out << "\nplayer " << id << (p.has_lock ? " lock" : "") << (p.requested ? " requested" : "") << (p.loaded ? " loaded" : "")
        << (p.dropping ? " dropping" : "") << (p.moving ? " moving" : "") << (p.growing ? " growing" : "") << " grant " << p.grant
        << " resident " << (p.memory.resident >> 20) << " budget " << (p.budget >> 20);
    for (const auto& [grant, budget] : p.budgets_in_flight) out << " coming " << grant << ":" << (budget >> 20);
  }
  out << "\nlast actions:";
  for (const std::string& line : history_) out << "\n  " << line;
  return out.str();
}

}  // namespace nvshare::policy::testing
