// Who is attached to an MPS daemon, and where programs are told to find it (mps_service.h).
#include <utility>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

// Its connection is for this alone. The second of two questions is not answered: one answer closes the connection.
void Engine::ask_mps(ConnectionId connection) {
  Connection& asks = connections_.at(connection);
  if (std::exchange(asks.asked_mps, true)) return;
  if (ask_mps_) return ask_mps_(connection, asks.peer);
  answer_mps(connection, MpsGroup{});
}

void Engine::answer_mps(ConnectionId connection, const MpsGroup& answer) {
  if (!connections_.contains(connection)) return;
  transport_.send(connection, encode(answer), {});
  transport_.close(connection);
  connections_.erase(connection);
}

void Engine::mps_seen(uid_t user, const std::set<pid_t>& attached, policy::Instant now) {
  std::vector<policy::ClientShares> changed;
  for (auto& [id, client] : clients_) {
    if (client.uid != user) continue;
    const bool is = attached.contains(client.pid);
    if (std::exchange(client.mps, is) == is) continue;
    spdlog::debug("client {} (pid {}): {} MPS", id, client.pid, is ? "under" : "no longer under");
    changed.push_back({id, is ? uint64_t{user} + 1 : 0});
  }
  for (const policy::ClientShares& event : changed) apply(event, now);
}

}  // namespace nvshare::scheduler
