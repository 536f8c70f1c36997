// The engine's connections: what comes in goes to the client that it is of, what is bad or fails closes that connection only.
#include <cstring>
#include <exception>

#include "scheduler/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

namespace {

Refused refused_because(const std::string& reason, bool barred) {
  Refused message{};
  message.barred = barred ? 1 : 0;
  std::strncpy(message.reason, reason.c_str(), sizeof message.reason - 1);
  return message;
}

}  // namespace

void Engine::connected(ConnectionId connection, Peer peer) { connections_[connection] = Connection{std::move(peer), std::nullopt}; }

void Engine::received(ConnectionId connection, std::span<const std::byte> packet, policy::Instant now, Descriptors descriptors) {
  try {
    receive(connection, packet, now, std::move(descriptors));
  } catch (const std::exception& problem) {
    give_up(connection, problem.what(), now);
  }
}

void Engine::give_up(ConnectionId connection, const char* problem, policy::Instant now) {
  auto at = connections_.find(connection);
  if (at == connections_.end()) return warnings_.warn("gave up", now, "an error of the scheduler's own: {}; it goes on", problem);
  const Peer& peer = at->second.peer;
  warnings_.warn("gave up", now, "an error of the scheduler's own while it served pid {} (user {}, {}): {}; that connection is closed",
                 peer.pid, peer.uid, short_name_of(peer.pid), problem);
  transport_.close(connection);
  disconnected(connection, "the scheduler could not serve it", now);
}

void Engine::receive(ConnectionId connection, std::span<const std::byte> packet, policy::Instant now, Descriptors descriptors) {
  auto at = connections_.find(connection);
  if (at == connections_.end()) return;
  Result<MessageType> type = decode_type(packet);
  if (!type) return refuse(connection, std::string("bad message: ") + type.error().text, now);
  if (auto ok = check_descriptors(*type, descriptors.count()); !ok)
    return refuse(connection, std::string("bad message: ") + ok.error().text, now);
  if (at->second.client) {
    if (auto ok = check_version(packet, clients_.at(*at->second.client).version); !ok)
      return refuse(connection, std::string("bad message: ") + ok.error().text, now);
  }
  if (at->second.client) return dispatch(*clients_.find(*at->second.client), *type, packet, now, std::move(descriptors));
  if (!contains(OpeningMessages{}, *type))
    return refuse(connection, std::string("the first message must be Register, not ") + name_of(*type), now);
  struct Opening {
    Engine& engine;
    const ConnectionId connection;
    const policy::Instant now;
    void operator()(const AskMps&) const { engine.ask_mps(connection); }
    void operator()(const AskOwn& question) const { engine.answer_own(connection, question, now); }
    void operator()(const Register& message) const {
      if (!engine.connections_.at(connection).asked_mps) return engine.register_client(connection, message, now);
      engine.refuse(connection, "a connection that asked for MPS is for that alone", now);
    }
  };
  const Result<void> handled = protocol::dispatch(OpeningMessages{}, *type, packet, Opening{*this, connection, now});
  if (!handled) refuse(connection, std::string("bad message: ") + handled.error().text, now);
}

void Engine::disconnected(ConnectionId connection, const char* why, policy::Instant now) {
  auto at = connections_.find(connection);
  if (at == connections_.end()) return;
  std::optional<policy::ClientId> client = at->second.client;
  connections_.erase(at);
  if (!client) return;
  try {
    leave(*client, false, why, now);
  } catch (const std::exception& problem) {
    warnings_.warn("gave up", now, "an error of the scheduler's own while client {} left: {}; it goes on", *client, problem.what());
  }
}

void Engine::refuse(ConnectionId connection, const std::string& reason, policy::Instant now, bool barred) {
  Connection& refused = connections_.at(connection);
  const std::string& whose = refused.peer.account;
  warnings_.warn_of(whose.empty() ? "root" : whose, "refused " + std::to_string(refused.peer.pid), now, "refused pid {} (user {}, {}): {}",
                    refused.peer.pid, refused.peer.uid, short_name_of(refused.peer.pid), reason);
  transport_.send(connection, encode(refused_because(reason, barred), kVersionMin), {});
  transport_.close(connection);
  std::optional<policy::ClientId> client = refused.client;
  connections_.erase(connection);
  if (client) leave(*client, false, "it sent a bad message", now);
}

}  // namespace nvshare::scheduler
