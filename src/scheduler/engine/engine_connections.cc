// The engine's connections: what comes in goes to the client that it is of, what is bad or fails closes that connection only.
#include <cstring>
#include <exception>
#include <utility>

#include "scheduler/clients/tenant_use.h"
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
    void operator()(const AskMps& question) const { engine.ask_mps(connection, question); }
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
    membership_.leave(*client, false, why, now);
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
  if (client) membership_.leave(*client, false, "it sent a bad message", now);
}

// ---- clients ----

void Engine::register_client(ConnectionId connection, const Register& message, policy::Instant now) {
  const uint16_t version = common_version(message.version_min, message.version_max);
  if (version == 0) {
    return refuse(connection,
                  fmt::format("no common version: this scheduler speaks {} to {}, the library {} to {}; install the same release of both",
                              kVersionMin, version_spoken(), message.version_min, message.version_max),
                  now);
  }
  if (message.gpu_total_bytes == 0) return refuse(connection, "bad message: Register holds only its versions", now);
  if (awaits_listing(connection, message)) return;
  const ProcessCgroups::Held cgroups(tenants_.cgroups, connections_.at(connection).peer.pid);
  if (!cgroups.readable()) return refuse(connection, "its cgroups cannot be read, so that nobody knows whose it is", now, true);
  const Result<policy::GpuId> gpu = admission_.gpu_of(message, connections_.at(connection).peer, now);
  if (!gpu) return refuse(connection, gpu.error().text, now);
  const bool holds = absent_.hold().holds();
  if (!holds) absent_.count(now);
  if (!holds) policy_.apply(departures_.hold_absent(gpus_, settings_.policy, now), now);
  if (message.asks_only != 0) return answer_only(connection, message, version, *gpu);

  Connection& of = connections_.at(connection);
  const std::optional<ClientMembership::Replaced> replaced = replace_client(of.peer, *gpu, now);
  if (auto ok = membership_.join({connection, of.peer, *gpu, message, of.client}, replaced, now); !ok)
    return refuse(connection, ok.error().text, now, true);
  if (hooks_.client_joined) hooks_.client_joined(of.peer.uid);
}

// A process has one client per GPU. It comes again when its connection broke and we have not noticed yet.
std::optional<ClientMembership::Replaced> Engine::replace_client(const Peer& peer, policy::GpuId gpu, policy::Instant now) {
  const Client* other = clients_.of_process(peer.pid, gpu);
  if (other == nullptr) return std::nullopt;
  transport_.close(other->connection);
  connections_.erase(other->connection);
  limits_.freeze(true, now);  // what it holds goes to nobody else meanwhile
  const ClientMembership::Replaced replaced{other->claims, other->believed.allocated};
  membership_.leave(other->id, false, "its process registered anew", now);
  return replaced;
}

// A MIG device may have been made since NVML was last asked: that is asked again before its first client is refused.
bool Engine::awaits_listing(ConnectionId connection, const Register& message) {
  if (!gpus_.uses_nvml() || !hooks_.list_gpus) return false;
  Connection& at = connections_.at(connection);
  if (gpus_.lists(uuid_of(message)) || at.listed) return false;
  at.awaits_listing = message;
  hooks_.list_gpus();
  return true;
}

void Engine::gpus_listed(const std::vector<GpuUuid>& mig_devices, policy::Instant now) {
  gpus_.list_mig_devices(mig_devices);
  std::vector<ConnectionId> waiting;
  for (const auto& [id, connection] : connections_) {
    if (connection.awaits_listing) waiting.push_back(id);
  }
  for (const ConnectionId id : waiting) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) continue;  // of a process that came again on another connection
    const Register message = *at->second.awaits_listing;
    at->second.awaits_listing.reset();
    at->second.listed = true;
    register_client(id, message, now);
  }
}

// ---- connections for one question: the answer closes them ----

// It becomes no client: it is told what the GPU would look like to it.
void Engine::answer_only(ConnectionId connection, const Register& message, uint16_t version, policy::GpuId gpu) {
  const Peer& peer = connections_.at(connection).peer;
  const auto total = static_cast<uint64_t>(gpus_[gpu].total);
  const Tenants::Asked tenant = tenants_.ask(peer, gpus_[gpu].uuid_text, gpus_[gpu].total);
  const auto limit = static_cast<uint64_t>(lower_limit(bounded(message.memory_limit), tenant.gpu_memory_limit));
  transport_.send(connection,
                  encode(Registered{version, {}, 0, policy_.epoch(), limit, 0, 0, 0, total, total, NVSHARE_VERSION, 0, {}}, version), {});
  for (const TenantUse& use : use_of(clients_, tenant.id, gpu, gpus_[gpu].total, limit, peer.pid))
    transport_.send(connection, encode(use, version), {});
  transport_.close(connection);
  connections_.erase(connection);
}

// Its connection is for this alone. The second of two questions is not answered: one answer closes the connection.
void Engine::ask_mps(ConnectionId connection, const AskMps& question) {
  Connection& asks = connections_.at(connection);
  if (std::exchange(asks.asked_mps, true)) return;
  if (hooks_.ask_mps) return hooks_.ask_mps(connection, asks.peer, question.group);
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
