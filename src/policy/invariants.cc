#include "policy/concerns.h"

namespace nvshare::policy {
namespace {

std::optional<std::string> check(const State& state, const Gpu& gpu, const Client& client) {
  const auto broken = [&](const char* what) { return "client " + std::to_string(client.id) + " (" + name_of(client.state) + "): " + what; };
  const bool holder = client.stays() || client.state == ClientState::kDropping || client.state == ClientState::kUnresponsive;
  if (holder != client.holds_lock()) return broken("its state and its grant do not agree");
  if (holder && client.budget < client.memory.resident) return broken("more is resident than its budget");
  if (holder && client.eviction) return broken("memory is moved out of a lock holder");
  if (!holder && client.growth) return broken("waits for memory without the lock");
  if ((client.state == ClientState::kPaused) != (client.paused_since && client.stays())) return broken("pauses, or does not?");
  if (client.paused_since && client.turn_start) return broken("is billed for a pause");
  if (client.state == ClientState::kPaused) {
    if (!gpu.wake_at) return broken("pauses and nobody watches");
    for (const auto& [id, other] : gpu.clients) {
      if (id != client.id && (other.stays() || other.waits())) return broken("pauses beside others");
    }
  }
  if (client.budget_dirty) return broken("a budget was not sent");
  if (holder && client.keeps_place) return broken("keeps a place beside its lock");
  if (client.keeps_place && !gang_of(state, client)) return broken("keeps a place and is in no gang");
  if (client.keeps_place && client.eviction) return broken("moves out and keeps its place");
  if (client.memory.allocated < client.memory.resident) return broken("more is resident than allocated");
  if (client.is_held() && client.state != ClientState::kDropping) return broken("was told to hold on and does not leave");
  if (client.state == ClientState::kDropping && !gpu.wake_at) return broken("is dropping and nobody watches");
  if (client.waits() && client.reason == WaitReason::kNone) return broken("waits for no reason");
  if (client.reason == WaitReason::kTurn && client.waits() && !gpu.wake_at) return broken("waits for a turn that has no end");
  const bool for_quota = client.reason == WaitReason::kLimit || client.reason == WaitReason::kShare;
  const bool moves = std::any_of(gpu.clients.begin(), gpu.clients.end(),
                                 [](const auto& entry) { return entry.second.holds_lock() || entry.second.eviction.has_value(); });
  if (client.waits() && for_quota && !gpu.wake_at && !moves && gang_of(state, client) == nullptr)
    return broken("waits for its share and nobody watches");
  const auto at = state.gpu_of.find(client.id);
  if (at == state.gpu_of.end() || at->second != gpu.id) return broken("is not where the index says");
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_invariants(const State& state) {
  if (state.broken) return state.broken;
  size_t clients = 0;
  for (const auto& [id, gpu] : state.gpus) {
    clients += gpu.clients.size();
    for (const auto& [client_id, client] : gpu.clients) {
      if (auto broken = check(state, gpu, client)) return broken;
    }
  }
  if (clients != state.gpu_of.size()) return "the index holds clients that left";
  return std::nullopt;
}

}  // namespace nvshare::policy
