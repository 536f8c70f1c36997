#include "scheduler/engine/engine_messages.h"

#include <cstdio>
#include <utility>

#include "scheduler/engine/reports.h"

namespace nvshare::scheduler {

using namespace protocol;

void Engine::dispatch(Client& client, MessageType type, std::span<const std::byte> packet, policy::Instant now, Descriptors descriptors) {
  const ConnectionId connection = client.connection;
  if (!contains(ClientMessages{}, type))
    return refuse(connection, std::string("bad message: a registered client may not send ") + name_of(type), now);
  const Result<void> handled = protocol::dispatch(ClientMessages{}, type, packet, Incoming{*this, client, now, descriptors});
  if (!handled) refuse(connection, std::string("bad message: ") + handled.error().text, now);
}

// ---- turns ----

void Engine::Incoming::operator()(const ReqLock&) const { engine.request_lock(client.id, now); }

void Engine::Incoming::operator()(const LockReleased& message) const {
  if (!is_of_this_epoch(message.grant)) {  // this scheduler did not grant it
    engine.reports_.take(client, message.memory, now);
    return;
  }
  const auto reason = static_cast<ReleaseReason>(message.reason);
  if (reason == ReleaseReason::kNotDrained) {
    engine.reports_.take(client, message.memory, now);
    return engine.apply(policy::DrainFailed{client.id, message.grant.grant}, now);
  }
  // First who comes next: the GPU stands idle.
  client.claims.released();
  engine.apply(policy::LockReleased{client.id, message.grant.grant, engine.believed_.believe(client, message.memory),
                                    reason == ReleaseReason::kEarly, policy::Duration{message.idle_us} * 1000,
                                    static_cast<policy::Duration>(message.used_ns), message.submissions},
               now);
  engine.reports_.take(client, message.memory, now);
}

void Engine::Incoming::operator()(const LockPaused& message) const {
  if (!is_of_this_epoch(message.grant)) return;
  engine.apply(policy::LockPaused{client.id, message.grant.grant, static_cast<policy::Duration>(message.used_ns), message.submissions},
               now);
}

void Engine::Incoming::operator()(const LockResumed& message) const {
  if (is_of_this_epoch(message.grant)) engine.apply(policy::LockResumed{client.id, message.grant.grant}, now);
}

void Engine::Incoming::operator()(const Drained& message) const {
  if (is_of_this_epoch(message.grant)) engine.apply(policy::Drained{client.id, message.grant.grant, message.attempt}, now);
}

void Engine::Incoming::operator()(const EndsSoon& message) const {
  if (is_of_this_epoch(message.grant)) engine.apply(policy::EndsSoon{client.id, message.grant.grant, message.attempt}, now);
}

void Engine::Incoming::operator()(const Progress& message) const {
  engine.apply(policy::ClientProgressed{client.id, message.question, message.submissions}, now);
}

// ---- memory ----

void Engine::Incoming::operator()(const MemUpdate& message) const {
  engine.reports_.take(client, message.memory, now);
  engine.change_memory({client.id, engine.believed_.believe(client, message.memory), bounded(message.budget), message.budget_sequence,
                        bounded(message.wanted), message.request},
                       now);
}

void Engine::Incoming::operator()(const SwapProgress& message) const { engine.take_swap(client, message, now); }

// ---- what people see ----

void Engine::Incoming::operator()(const AskWhyWaiting& message) const {
  WhyWaiting answer{message.question, {}};
  snprintf(answer.text, sizeof answer.text, "%s", waiting_sentence(engine.parts(), client.id, now).c_str());
  engine.messenger_.send(client, answer);
}

void Engine::Incoming::operator()(const About& message) const { client.release = printable(message.release); }
void Engine::Incoming::operator()(const KeepsMemory& message) const { client.keeps_memory = printable(message.why); }

// ---- memory handed from process to process ----

void Engine::Incoming::operator()(const Import& message) const {
  engine.exports_.import(client, engine.connections_.at(client.connection).peer.account, message, now);
}
void Engine::Incoming::operator()(const Exported& message) const { engine.exports_.exported(client, message, std::move(descriptors)); }
void Engine::Incoming::operator()(const ImportClosed& message) const { engine.exports_.import_closed(client, message); }
void Engine::Incoming::operator()(const ExportEnded& message) const { engine.exports_.export_ended(client, message); }

// ---- host memory ----

void Engine::Incoming::operator()(const ArenaRequest& message) const { engine.host_.request(client, message, now); }
void Engine::Incoming::operator()(const ArenaReturned& message) const { engine.host_.returned(client, message, now); }
void Engine::Incoming::operator()(const ArenaShrunk& message) const { engine.host_.shrunk(client, message, now); }
void Engine::Incoming::operator()(const ArenaHeld& message) const { engine.host_.held(client, message, now); }

// ---- the tenant's memory limit ----

void Engine::Incoming::operator()(const AskHeadroom& message) const { engine.limits_.ask(client, message, now); }
void Engine::Incoming::operator()(const HeadroomReturned& message) const { engine.limits_.returned(client, message, now); }
void Engine::Incoming::operator()(const HeadroomTaken& message) const { engine.limits_.taken(client, message, now); }

}  // namespace nvshare::scheduler
