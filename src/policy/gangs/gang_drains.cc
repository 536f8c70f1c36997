// How the members of a gang come to an end together. A collective's kernel waits for its partners on other GPUs: whoever stops one member
// between two halves keeps the other from ever draining. So nobody leaves before all have drained:
//
// - All are asked at once (DrainStep::kTogether). Each closes its gate, and tells when its work has ended (kDrained).
// - When all have told, all are told to give the lock up.
// - When some have and others have not, 30 ms later, these most likely wait for what those hold back at their gates. Those that have
//   drained go on (kCatchingUp) until the others have drained as well, and are asked again; so do those that drain meanwhile, as of
//   several members each may be at another place. They may have begun another collective meanwhile; then it is the others' turn to
//   catch up. Each time that takes the luck of a moment, not of a whole turn. A member that has drained before, with nobody going on for
//   it, is given twice as long as that took: two whose own work takes longer than 30 ms to end would else go on for each other's sake for
//   ever.
// - When one gives its drain up, or this goes on for too long, all go on and keep what they have.
#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

struct GangDrain {
  std::vector<Client*> asked, drained, catching_up;
};

bool is_leaving(const Client& client) { return client.state == ClientState::kDropping && client.drain.step != DrainStep::kAlone; }

GangDrain drain_of(const Gang& gang) {
  GangDrain drain;
  for (const Gang::Member& member : gang.members) {
    Client& client = *member.is;
    if (!is_leaving(client)) continue;
    if (client.drain.step == DrainStep::kTogether) drain.asked.push_back(&client);
    if (client.drain.step == DrainStep::kDrained) drain.drained.push_back(&client);
    if (client.drain.step == DrainStep::kCatchingUp) drain.catching_up.push_back(&client);
  }
  return drain;
}

void keep(Context& context, Client& client) { context.actions.push_back(SendKeep{client.id, client.grant}); }

void settle_drain(Context& context, Gang& gang) {
  State& state = context.state;
  const GangDrain drain = drain_of(gang);
  if (drain.asked.empty()) {
    // A member that is not answering at all (kUnresponsive) is not waited for.
    if (drain.catching_up.empty()) {
      for (Client* client : drain.drained)
        send_drop(context, state.gpus.at(client->gpu), *client, DrainStep::kAlone, "all of its gang have drained");
    }
    for (Client* client : drain.catching_up)
      send_drop(context, state.gpus.at(client->gpu), *client, DrainStep::kTogether, "others of its gang have caught up");
    return;
  }
  for (const auto* held : {&drain.drained, &drain.catching_up}) {
    for (const Client* client : *held) {
      for (const Client* other : drain.asked) {
        context.wake(state.gpus.at(client->gpu), other->drain.asked_at + context.config().unanswered_grace);
      }
    }
  }
  if (drain.drained.empty()) return;
  Instant until = 0;
  for (const Client* client : drain.drained) until = std::max(until, client->drain.drained_at + kCatchUpAfter);
  for (const Client* client : drain.asked) {
    until = std::max(until, client->drain.asked_at + std::min(2 * client->drain.took, kCatchUpAfterMost));
  }
  if (context.now < until) {
    for (const Client* client : drain.drained) context.wake(state.gpus.at(client->gpu), until);
    return;
  }
  if (++gang.catch_ups > kCatchUps) {
    for (Client* client : drain.asked) {
      client->drain.backoff.failed(context.now, kDrainBackoffMax);
      ++client->totals.failed_drains;
      note_overstay(context, *client);
    }
    return gang_goes_on(context, *drain.asked.front());
  }
  for (Client* client : drain.drained) {
    client->drain.step = DrainStep::kCatchingUp;
    resume_turn(context, *client);
    keep(context, *client);
  }
}

}  // namespace

void take_drained(Context& context, Client& client, const Drained& event) {
  const bool expected = client.state == ClientState::kDropping || client.state == ClientState::kUnresponsive;
  if (!expected || client.drain.step != DrainStep::kTogether || client.grant != event.grant || client.drain.attempt != event.attempt)
    return;
  if (client.state == ClientState::kUnresponsive) set_state(client, ClientState::kDropping, context.now);
  client.drain.step = DrainStep::kDrained;
  client.drain.drained_at = context.now;
  const Gang* gang = gang_of(context.state, client);
  if (gang != nullptr && drain_of(*gang).catching_up.empty()) client.drain.took = context.now - client.drain.asked_at;
}

void settle_gang_drains(Context& context, const Gpus& gpus) {
  if (context.state.asked_together.empty() && context.state.gangs.empty()) return;
  const std::set<std::pair<GpuId, ClientId>> asked = context.state.asked_together;
  for (const auto& [gpu_id, client_id] : asked) {
    Gpu& gpu = context.state.gpus.at(gpu_id);
    const auto client = gpu.clients.find(client_id);
    // Nothing ties it to the others any more.
    if (client != gpu.clients.end() && client->second.drain.is_held() && gang_of(context.state, client->second) == nullptr)
      send_drop(context, gpu, client->second, DrainStep::kAlone, "it is in no gang any more");
    if (client == gpu.clients.end() || client->second.drain.step == DrainStep::kAlone)
      context.state.asked_together.erase({gpu_id, client_id});
  }
  std::map<GangId, Gang*> draining;  // no other gang has anything to settle
  for (const auto& [gpu_id, client_id] : context.state.asked_together) {
    Gang* const gang = gang_of(context.state, context.state.gpus.at(gpu_id).clients.at(client_id));
    if (gang != nullptr && is_settled_with(*gang, gpus)) draining[gang->id] = gang;
  }
  for (const auto& [id, gang] : draining) settle_drain(context, *gang);
}

Instant drain_retry_at(const State& state, const Client& client) {
  Instant retry_at = client.drain.backoff.retry_at;
  if (const Gang* gang = gang_of(state, client)) {
    for (const Gang::Member& member : gang->members) retry_at = std::max(retry_at, member.is->drain.backoff.retry_at);
  }
  return retry_at;
}

bool cannot_drain(const Gang& gang) {
  return std::any_of(gang.members.begin(), gang.members.end(), [&](const Gang::Member& member) {
    const Client& client = *member.is;
    return client.stays() && client.drain.backoff.failures > 0;
  });
}

void gang_goes_on(Context& context, const Client& client) {
  const Gang* gang = gang_of(context.state, client);
  if (gang == nullptr) return;
  for (const Gang::Member& member : gang->members) {
    Client& other = *member.is;
    if (!is_leaving(other)) continue;
    other.drain.step = DrainStep::kAlone;
    other.turn.interrupted = false;
    resume_turn(context, other);
    set_state(other, other.turn.start ? ClientState::kRunning : ClientState::kLoading, context.now);
    keep(context, other);
  }
}

}  // namespace nvshare::policy
