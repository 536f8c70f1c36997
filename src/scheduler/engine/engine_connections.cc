// The engine's connections: what comes in goes to the client that it is of, what is bad or fails closes that connection only.
#include <cstring>
#include <exception>
#include <utility>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"

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

// ---- connections for one question: the answer closes them ----

// Its connection is for this alone. The second of two questions is not answered: one answer closes the connection.
void Engine::ask_mps(ConnectionId connection) {
  Connection& asks = connections_.at(connection);
  if (std::exchange(asks.asked_mps, true)) return;
  if (hooks_.ask_mps) return hooks_.ask_mps(connection, asks.peer);
  answer_mps(connection, MpsGroup{});
}

void Engine::answer_mps(ConnectionId connection, const MpsGroup& answer) {
  if (connections_.contains(connection)) answer_and_close(connection, encode(answer));
}

// What a process is told of its own tenants, and their turns that it ends.
void Engine::answer_own(ConnectionId connection, const AskOwn& question, policy::Instant now) {
  const Peer& peer = connections_.at(connection).peer;
  if (const Result<void> ok = own_questions_.asked(peer.account, now); !ok) return refuse(connection, ok.error().text, now);
  const std::set<policy::TenantId> own = own_questions_.tenants_of(peer);
  if (static_cast<OwnWish>(question.wish) == OwnWish::kRelease) {
    const Tenant* tenant = own.contains(question.tenant) ? tenants_.find(question.tenant) : nullptr;
    if (tenant == nullptr) return refuse(connection, fmt::format("{} is no tenant of yours", question.tenant), now);
    orders_.release(*tenant, now);
  }
  const std::string line = admin::encode(own_report(parts(), peer.pid, own, now));
  Result<FileDescriptor> memory = sealed(line);
  if (!memory) return refuse(connection, memory.error().text, now);
  Descriptors descriptors;
  descriptors.add(std::move(*memory));
  answer_and_close(connection, encode(OwnReport{line.size()}), std::move(descriptors));
}

void Engine::answer_and_close(ConnectionId connection, const Packet& answer, Descriptors descriptors) {
  transport_.send(connection, answer, std::move(descriptors));
  transport_.close(connection);
  connections_.erase(connection);
}

void Engine::not_delivered(ConnectionId connection, const Packet& packet, policy::Instant now) {
  const auto at = connections_.find(connection);
  Client* client = at != connections_.end() && at->second.client ? clients_.find(*at->second.client) : nullptr;
  const Result<MessageType> type = decode_type(packet.span());
  if (client == nullptr || !type) return;
  warnings_.warn("not delivered", now, "client {} ({}): {} could not be passed on, as the kernel takes no more descriptors; it is told so",
                 client->id, client->program, protocol::name_of(*type));
  if (*type == MessageType::kArenaSegment) {
    if (auto segment = decode<ArenaSegment>(packet.span())) host_.cannot_hand_over(*client, *segment, now);
  } else if (*type == MessageType::kImported) {
    Imported failed{};
    if (auto imported = decode<Imported>(packet.span())) failed.request = imported->request;
    failed.status = static_cast<uint8_t>(ExportStatus::kFailed);
    messenger_.send(*client, failed);
  }
}

}  // namespace nvshare::scheduler
