// How clients share GPUs where memory fits: which are attached to an MPS daemon, and where programs are told to find it (mps_service.h);
// which take turns; which are measured.
#include <utility>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

constexpr uint16_t kTellsProgress = 3;  // the first version that has Progress

// Its connection is for this alone. The second of two questions is not answered: one answer closes the connection.
void Engine::ask_mps(ConnectionId connection) {
  Connection& asks = connections_.at(connection);
  if (std::exchange(asks.asked_mps, true)) return;
  if (hooks_.ask_mps) return hooks_.ask_mps(connection, asks.peer);
  answer_mps(connection, MpsGroup{});
}

void Engine::answer_mps(ConnectionId connection, const MpsGroup& answer) {
  if (!connections_.contains(connection)) return;
  transport_.send(connection, encode(answer), {});
  transport_.close(connection);
  connections_.erase(connection);
}

void Engine::mps_seen(uid_t user, const std::set<pid_t>& attached, policy::Instant now) {
  for (auto& [id, client] : clients_.all()) {
    if (client.uid != user) continue;
    const bool is = attached.contains(client.pid);
    if (std::exchange(client.mps, is) == is) continue;
    spdlog::debug("client {} (pid {}): {} MPS", id, client.pid, is ? "under" : "no longer under");
  }
  tell_shares(now);
}

void Engine::tell_shares(policy::Instant now) {
  for (auto& [id, client] : clients_.all()) tell_share(client, now);
}

// Programs on one MPS server run at the same time, but where turns are measured to get more done.
void Engine::tell_share(Client& client, policy::Instant now) {
  const Tenant* tenant = tenants_.find(client.tenant);
  const Sharing sharing = (tenant != nullptr ? sharing_of(tenant->sharing_in_force()) : std::nullopt).value_or(settings_.sharing);
  const uint64_t group = client.mps ? uint64_t{client.uid} + 1 : sharing == Sharing::kTurns ? policy::share_group_of(client.tenant) : 0;
  const bool measured = sharing == Sharing::kAuto && client.version >= kTellsProgress;
  if (group == client.share_group && measured == client.measured) return;
  client.share_group = group;
  client.measured = measured;
  apply(policy::ClientShares{client.id, group, measured}, now);
}

void Engine::ask_progress(const policy::SendAskProgress& action) {
  messenger_.send_to(action.client, AskProgress{action.question, static_cast<uint8_t>(action.counts), {}});
}

void Engine::take_progress(const Client& client, const Progress& message, policy::Instant now) {
  apply(policy::ClientProgressed{client.id, message.question, message.submissions}, now);
}

}  // namespace nvshare::scheduler
