#include "policy/turns/turns.h"

#include <utility>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/memory/memory.h"
#include "policy/sharing/sharing.h"

namespace nvshare::policy {

// In KiB, so that no product overflows, whatever clients say. Nothing is taken to need more than a day.
static Duration time_to_move(Bytes bytes, Bytes bandwidth) {
  constexpr Duration kDay = 86'400 * kSecond;
  constexpr Bytes kKibMost = Bytes{1} << 42;
  const Bytes per_second = std::max(bandwidth > 0 ? bandwidth : kBandwidthAssumed, kBandwidthLeast) >> 10;
  const Bytes kib = std::clamp<Bytes>(bytes >> 10, 0, kKibMost);
  return std::min(kib * (kSecond / 1000) / per_second * 1000, kDay);
}

Duration swap_time(const Gpu& gpu, Bytes out, Bytes in) {
  return std::max(time_to_move(out, gpu.link.out()), time_to_move(in, gpu.link.in()));  // both directions work at once
}

static Duration quantum_of(const Config& config, Duration cost) { return cost * config.switch_time_multiplier; }

Duration switch_time(const Config& config, Duration cost) {
  if (config.switch_time_mode == SwitchTimeMode::kFixed) return config.switch_time_fixed;
  return std::clamp(quantum_of(config, cost), config.switch_time_min, std::max(config.switch_time_min, config.switch_time_max));
}

Duration turn_limit(const Config& config, const Gpu& gpu) {
  const Bytes most = std::max<Bytes>(safe_limit(config, gpu), 0);
  std::optional<LongestTurn>& known = gpu.switches.longest;
  if (!known || known->memory != most || known->out != gpu.link.out() || known->in != gpu.link.in())
    known = {most, gpu.link.out(), gpu.link.in(), switch_time(config, swap_time(gpu, most, most))};
  return known->length;
}

Duration load_allowance(const Gpu& gpu, Bytes out, Bytes in) { return 2 * swap_time(gpu, out, in) + kLoadGrace; }

void Turn::end() {
  start.reset();
  due_cap.reset();
  passing_since.reset();
  without_room = 0;
  interrupted = false;
  interruption = 0;
  idle_since.reset();
  pause.since.reset();
  load.succeeded();
}

void Overstay::end(Instant now) {
  if (too_long) last_until = now + std::min(now - since, kLastFor);
  too_long = false;
  since = until = 0;
}

TurnTerms terms_of(const Config& config, Duration cost, bool wakes) {
  return {switch_time(config, cost), quantum_of(config, cost), wakes, false};
}

// Its turns may be shorter than all others', but no shorter than what they load is worth.
static Duration own_length(const State& state, TenantId tenant, Duration length, Duration quantum) {
  const auto turns = state.turns.find(tenant);
  if (turns == state.turns.end() || turns->second.most <= 0) return length;
  return std::min(length, std::max(turns->second.most, quantum));
}

Instant growth_due(const Context& context, const Client& client, Duration cost) {
  TurnTerms terms = terms_of(context.config(), cost, false);
  terms.length = own_length(context.state, client.tenant, terms.length, terms.quantum);
  if (const Gang* gang = gang_of(context.state, client)) return gang_due(context, *gang, terms);
  return client.turn.due(terms.length, terms.quantum);
}

std::optional<Instant> end_of_turn(const State& state, const Gpu& gpu, const Client& client) {
  if (client.state != ClientState::kRunning || gang_of(state, client) != nullptr) return std::nullopt;
  const TurnTerms terms = terms_of(state.config, gpu.switches.cost, false);
  return client.turn.due(own_length(state, client.tenant, terms.length, terms.quantum), terms.quantum);
}

// When it may be dropped for the comers.
Instant drop_due(const Context& context, const Client& client, TurnTerms terms) {
  terms.length = own_length(context.state, client.tenant, terms.length, terms.quantum);
  const bool stuck = client.state == ClientState::kLoading && terms.load_is_stuck;
  if (const Gang* gang = gang_of(context.state, client)) return gang_due(context, *gang, {terms.length, terms.quantum, terms.wakes, stuck});
  Instant due = client.turn.due(terms.length, terms.quantum);
  // Work that earlier interruptions were not charged for counts: a short one, just before, does not make a second waker wait anew.
  // Nobody ends a last turn early: of two that end, one would keep the other from it for ever.
  if (terms.wakes && !client.last_turn.runs)
    due = std::min(due, client.turn.began() + std::max<Duration>(terms.quantum - client.past.earned, 0));
  if (client.turn.due_cap) due = std::min(due, *client.turn.due_cap);
  if (client.turn.idle_since || client.turn.unproven || stuck) due = context.now;
  return client.drain.backoff.failures > 0 ? std::max(due, client.drain.backoff.retry_at) : due;
}

bool drain_is_doubtful(const State& state, const Client& client, Instant now) {
  // A gang's drain fails whenever it meets the members at different places: that says less than a single client's.
  const int doubtful = gang_of(state, client) ? kUndrainable : kDoubtful;
  return client.drain.backoff.failures >= doubtful || client.state == ClientState::kUnresponsive ||
         (client.state == ClientState::kDropping && now - client.drain.asked_at >= kSlowDrain);
}

// One that lies is as one that does not follow: others' turns begin beside its work, and it is asked again. Only on an MPS server: where
// the driver switches between programs, an overlap costs what the wait would have (docs/adr/0021).
void take_ends_soon(Client& client, const EndsSoon& event) {
  const bool on_server = client.share.group != 0 && client.share.group < share_group_of(0);
  if (on_server && client.state == ClientState::kDropping && client.drain.tells_end && client.grant == event.grant &&
      client.drain.attempt == event.attempt)
    client.drain.ends_soon = true;
}

void send_drop(Context& context, Gpu& gpu, Client& client, DrainStep step, const char* why) {
  if (context.config().explains) context.note(Note::Level::kDebug, client.id, std::string("DropLock: ") + why);
  client.drain.step = step;
  client.drain.ends_soon = false;
  if (step == DrainStep::kTogether) context.state.asked_together.insert({gpu.id, client.id});
  client.drain.asked_at = context.now;
  // In turns for which no memory moves. Where no overlap is allowed, the message has this thread awake when the release comes.
  const bool in_turns = gpu.share_turn.group || (gpu.quota.limited && gpu.quota.mode != GpuMode::kRotation);
  client.drain.tells_end = step == DrainStep::kAlone && in_turns;
  context.actions.push_back(
      SendDrop{client.id, client.grant, step == DrainStep::kTogether, ++client.drain.attempt, client.drain.tells_end});
  context.wake(gpu, context.now + context.config().unanswered_grace);
}

static void ask_to_drop_as(DrainStep step, Context& context, Gpu& gpu, Client& client, const char* why) {
  send_budget(context, gpu, client);  // first: the drop may be the first that it hears of this grant
  if (!client.growth) forget_unmet(client);
  set_state(client, ClientState::kDropping, context.now);
  client.totals.drops += !client.turn.pause.since;  // who pauses is interrupted in nothing
  send_drop(context, gpu, client, step, why);
}

void ask_one_to_drop(Context& context, Gpu& gpu, Client& client, const char* why) {
  ask_to_drop_as(DrainStep::kAlone, context, gpu, client, why);
}

void ask_to_drop(Context& context, Gpu& gpu, Client& client, const char* why) {
  if (!client.takes_place()) return;  // left with its gang a moment ago
  Gang* gang = gang_of(context.state, client);
  if (gang == nullptr) return ask_one_to_drop(context, gpu, client, why);
  gang->interrupted = client.turn.interrupted;
  gang->catch_ups = 0;
  const std::vector<Client*> members = stays_together(context.state, client);
  const auto holders = std::count_if(members.begin(), members.end(), [](const Client* member) { return member->stays(); });
  for (Client* member : members) {
    member->turn.interrupted = client.turn.interrupted;
    member->turn.interruption = client.turn.interruption;
    if (member->place.kept) {
      member->place.leaves = true;
      note_place(*member);
    } else {
      ask_to_drop_as(holders > 1 ? DrainStep::kTogether : DrainStep::kAlone, context, context.state.gpus.at(member->gpu), *member, why);
    }
  }
}

// The work that the dearest switch on this GPU asks for: more cannot be saved up.
static Duration earned_most(const Config& config, const Gpu& gpu) {
  const Bytes most = std::max<Bytes>(safe_limit(config, gpu), 0);
  return quantum_of(config, swap_time(gpu, most, most));
}

static Duration overstay_most(const State& state, const Client& client) {
  return gang_of(state, client) != nullptr ? kGangOverstayMost : kOverstayMost;
}

void note_overstay(Context& context, Client& client) {
  const bool in_row = client.drain.overstay.since != 0 && client.drain.asked_at - client.drain.overstay.until <= 2 * kBackoffMax;
  if (!in_row) client.drain.overstay.since = client.drain.asked_at;
  client.drain.overstay.until = context.now;
  if (client.drain.overstay.too_long || context.now - client.drain.overstay.since < overstay_most(context.state, client)) return;
  client.drain.overstay.too_long = true;
  context.note(Note::Level::kWarning, client.id,
               "has kept the GPU for " + std::to_string((context.now - client.drain.overstay.since) / kSecond) +
                   " s against requests to give it up: from now on it comes after everybody else");
}

void end_turn(Context& context, Gpu& gpu, Client& client, const LockReleased& event) {
  const Instant now = context.now;
  client.drain.overstay.end(now);
  bool by_choice = event.early;
  const Duration idle = std::clamp<Duration>(event.idle, 0, now - client.turn.start.value_or(now));
  const Instant worked_until = client.turn.idle_since.value_or(now - idle);
  if (client.growth || client.stays()) note_unmet(context, client);
  growth_ends(client, now);
  // To wait until there is room for an allocation is no use of the GPU.
  const Instant worked_from = client.turn.start.value_or(now) + client.turn.without_room;
  const Duration ran = std::max<Duration>(worked_until - worked_from, 0);
  client.past.usage.add(worked_from, worked_until);
  by_choice |= client.turn.idle_since.has_value();
  learn_drain(context, gpu, client);
  learn_overlap(context, gpu, client, event.used, event.work);
  quota_turn_ended(context, gpu, client, by_choice, event.used);
  note_share_turn(context, gpu, client, by_choice, worked_until);
  const Duration earned = std::min(client.past.earned + ran, earned_most(context.config(), gpu)) - client.turn.interruption;
  client.past.earned = by_choice ? 0 : std::max<Duration>(earned, 0);
  if (client.turn.interrupted && !by_choice) {
    client.turn.carried += ran;  // comes back in its old place, for the rest of its turn
  } else {
    client.turn.carried = 0;
    client.past.last_used = now;
  }
  if (client.turn.passing_since) gpu.switches.passing += now - *client.turn.passing_since;
  if (client.last_turn.runs) {
    // Given up by its own choice it goes on later: writing down what was copied from the GPU leaves that idle.
    client.last_turn.ran += now - client.turn.granted_at;  // loading included, so that many short ones are no way to have more
    client.last_turn.due = (by_choice || client.turn.interrupted) && client.last_turn.ran < turn_limit(context.config(), gpu);
    client.last_turn.runs = false;
  }

  client.grant = 0;
  client.budget.bytes = 0;
  client.budget.dirty = false;
  quota_pause_ended(context, gpu, client);
  client.turn.end();
  client.past.left_early = by_choice;
  client.past.released_at = now;
  client.drain.backoff.succeeded();
  client.drain.step = DrainStep::kAlone;
  client.sent.grant_ends();
  set_state(client, ClientState::kIdle, now);
  keep_place(context, client);
}

void drain_failed(Context& context, Client& client) {
  if (client.state != ClientState::kDropping && client.state != ClientState::kUnresponsive) return;
  resume_turn(context, client);  // if it had paused: it goes on now
  client.drain.backoff.failed(context.now, kDrainBackoffMax);
  const Duration held_up = std::min(2 * (context.now - client.drain.asked_at), kBackoffMax);
  client.drain.backoff.retry_at = std::max(client.drain.backoff.retry_at, context.now + held_up);
  client.turn.interrupted = false;
  ++client.totals.failed_drains;
  note_overstay(context, client);
  if (client.drain.backoff.failures == kUndrainable) {
    context.note(Note::Level::kWarning, client.id,
                 "its GPU work does not end when asked to: it keeps its memory, neighbours that fit go on");
  }
  const bool together = client.drain.step != DrainStep::kAlone;
  client.drain.step = DrainStep::kAlone;
  set_state(client, client.turn.start ? ClientState::kRunning : ClientState::kLoading, context.now);
  if (!together) return;
  // It too: another request may have crossed its message, so that it is draining again.
  context.actions.push_back(SendKeep{client.id, client.grant});
  gang_goes_on(context, client);
}

void start_running(Context& context, Gpu& gpu) {
  each_while_changing(gpu.unsettled, [&](Client* client) {  // it may be settled then
    if (client->state != ClientState::kLoading || client->turn.loads || client->memory.resident < client->memory.allocated) return;
    client->turn.start = context.now;
    set_state(*client, ClientState::kRunning, context.now);
  });
}

void watch_answers(Context& context, Gpu& gpu) {
  const auto late = gpu.queue.late.lower_bound({context.now + 1, 0});
  if (late != gpu.queue.late.end()) context.wake(gpu, late->first);
  for (const auto& [id, unsettled] : gpu.unsettled) {
    Client& client = *unsettled;
    if (client.stays() && client.drain.backoff.failures > 0) context.wake(gpu, client.drain.backoff.retry_at);
    if (client.state == ClientState::kUnresponsive && !client.drain.overstay.too_long) {
      note_overstay(context, client);
      if (!client.drain.overstay.too_long) context.wake(gpu, client.drain.overstay.since + overstay_most(context.state, client));
    }
    if (client.state != ClientState::kDropping) continue;
    if (client.drain.is_held()) continue;  // it is ours to answer
    context.wake(gpu, client.drain.asked_at + kSlowDrain);
    const Instant until = client.drain.asked_at + context.config().unanswered_grace;
    context.wake(gpu, until);
    if (context.now < until) continue;
    set_state(client, ClientState::kUnresponsive, context.now);
    ++client.totals.unanswered_drops;
    context.note(Note::Level::kWarning, id,
                 "has not answered a request to drop the lock for " + std::to_string(context.config().unanswered_grace / kSecond) +
                     " s; its memory stays counted, neighbours that fit go on beside it");
  }
}

}  // namespace nvshare::policy
