#include "policy/concerns.h"

namespace nvshare::policy {

// A waiter is served in order of last use, so each of the other clients has at most one turn before it (n - 1 turns; whoever joins later
// has been used later). Besides:
// - Waking clients go before the order, until that has cost a waiter one turn limit; the last of them may run one turn more, and the
//   interrupted neighbours load again.
// - A higher priority goes first until the waiter has waited kPromoteTurns turn limits.
// A turn takes its limit, the loading before it and the drain at its end, for which a neighbour has the grace to answer.
//   bound = slots x (turn limit + load allowance + grace) + kPromoteTurns x turn limit, if somebody has a higher priority
//   slots = n + (n > 1 ? 4 : 0)
std::optional<Duration> waiting_bound(const State& state, ClientId id) {
  const auto at = state.gpu_of.find(id);
  if (at == state.gpu_of.end()) return std::nullopt;
  const Gpu& gpu = state.gpus.at(at->second);
  const Client& client = gpu.clients.at(id);
  if (!client.waits()) return std::nullopt;
  switch (client.reason) {
    case WaitReason::kNone:
    case WaitReason::kQueue:
    case WaitReason::kTurn:
    case WaitReason::kDrain:
    case WaitReason::kDeparted:
    case WaitReason::kEviction:
      break;
    case WaitReason::kHostMemory:  // these depend on what the policy cannot bring about
    case WaitReason::kNeverFits:
    case WaitReason::kStuck:
    case WaitReason::kCrowding:
      return std::nullopt;
  }
  const auto n = static_cast<int64_t>(gpu.clients.size());
  const Bytes most = std::max<Bytes>(safe_limit(state.config, gpu), 0);
  const Duration limit = turn_limit(state.config, gpu);
  const Duration slot = limit + load_allowance(gpu, most, most) + state.config.unanswered_grace;
  const bool outranked =
      std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) { return entry.second.priority > client.priority; });
  return (n + (n > 1 ? 4 : 0)) * slot + (outranked ? kPromoteTurns * limit : 0);
}

}  // namespace nvshare::policy
