// The way to the clients. One thread, the engine's.
#pragma once

#include <spdlog/spdlog.h>

#include <utility>

#include "base/descriptors.h"
#include "policy/policy.h"
#include "protocol/directions.h"
#include "scheduler/clients/clients.h"

namespace nvshare::scheduler {

// The engine's way out. Neither call may call back into the engine.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void send(ConnectionId connection, const protocol::Packet& packet, Descriptors descriptors) = 0;
  // Closes it after what was sent; the engine has forgotten it already.
  virtual void close(ConnectionId connection) = 0;
};

// To registered clients, each in its version of the protocol.
class ClientMessenger {
 public:
  ClientMessenger(const Clients& clients, Transport& transport) : clients_(clients), transport_(transport) {}

  template <typename Payload>
  void send(const RegisteredClient& client, const Payload& payload, Descriptors descriptors = {}) const {
    static_assert(protocol::kIsOneOf<Payload, protocol::SchedulerMessages> || protocol::kIsOneOf<Payload, protocol::OpeningAnswers>);
    const protocol::Packet packet = protocol::encode(payload, client.version);
    if (packet.length == 0) return;  // its version has no such message
    spdlog::debug("client {} <- {}", client.id, protocol::TypeOf<Payload>::name);
    transport_.send(client.connection, packet, std::move(descriptors));
  }
  // What is for a client that is not there goes nowhere.
  template <typename Payload>
  void send_to(policy::ClientId id, const Payload& payload, Descriptors descriptors = {}) const {
    if (const RegisteredClient* client = clients_.find(id)) send(*client, payload, std::move(descriptors));
  }

 private:
  const Clients& clients_;
  Transport& transport_;
};

}  // namespace nvshare::scheduler
