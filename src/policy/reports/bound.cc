#include "policy/gangs/gangs.h"
#include "policy/reports/reports.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {

namespace {

// These depend on what the policy cannot bring about.
bool unbounded(WaitReason reason) { return cannot_have_it_soon(reason) || reason == WaitReason::kLimit || reason == WaitReason::kShare; }

}  // namespace

// A waiter is served in order of last use, so each of the other clients has at most one turn before it (n - 1 turns; whoever joins later
// has been used later). Besides:
// - Waking clients go before the order, until that has cost a waiter one turn limit; the last of them may run one turn more, and the
//   interrupted neighbours load again.
// - A higher priority goes first until the waiter has waited kPromoteTurns turn limits.
// - Gangs tie GPUs together: whoever comes first on any GPU of the group may have to be waited for, on each GPU one turn that began
//   before, and once a member that joins its running gang.
// A turn takes its limit, the loading before it and the drain at its end, for which a neighbour has the grace to answer.
//   bound = slots x (turn limit + load allowance + grace) + kPromoteTurns x turn limit, if somebody has a higher priority
//   slots = n + (n > 1 ? 4 : 0), of all GPUs that gangs tie to this one
std::optional<Duration> waiting_bound(const State& state, ClientId id) {
  const Client* const known = state.find(id);
  if (known == nullptr) return std::nullopt;
  const Client& client = *known;
  if (!client.waits() || unbounded(client.wait.reason) || client.drain.overstay.last_until > client.wait.since) return std::nullopt;
  if (const Gang* gang = gang_of(state, client)) {
    for (const Gang::Member& member : gang->members) {
      const Client& other = *member.is;
      if (other.waits() && (unbounded(other.wait.reason) || other.drain.overstay.last_until > other.wait.since)) return std::nullopt;
    }
  }
  int64_t slots = 0;
  Duration slot = 0;
  Duration promotion = 0;
  for (const GpuId gpu_id : tied_to(state, client.gpu)) {
    const Gpu& gpu = state.gpus.at(gpu_id);
    const auto n = static_cast<int64_t>(gpu.clients.size());
    const Bytes most = std::max<Bytes>(safe_limit(state.config, gpu), 0);
    const Duration limit = turn_limit(state.config, gpu);
    slots += n + (n > 1 ? 4 : 0);
    slot = std::max(slot, limit + load_allowance(gpu, most, most) + state.config.unanswered_grace);
    const bool outranked =
        std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) { return entry.second.priority > client.priority; });
    if (outranked) promotion = std::max(promotion, kPromoteTurns * limit);
  }
  return slots * slot + promotion;
}

}  // namespace nvshare::policy
