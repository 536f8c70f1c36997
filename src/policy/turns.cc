#include <tuple>

#include "policy/concerns.h"

namespace nvshare::policy {

// In KiB, so that no product overflows for any GPU or host that can exist.
static Duration time_to_move(Bytes bytes, Bytes bandwidth) {
  const Bytes per_second = std::max<Bytes>((bandwidth > 0 ? bandwidth : kBandwidthAssumed) >> 10, 1);
  return (std::max<Bytes>(bytes, 0) >> 10) * (kSecond / 1000) / per_second * 1000;
}

Duration swap_time(const Gpu& gpu, Bytes out, Bytes in) {
  return std::max(time_to_move(out, gpu.bandwidth_out), time_to_move(in, gpu.bandwidth_in));  // both directions work at once
}

static Duration quantum_of(const Config& config, Duration cost) { return cost * config.switch_time_multiplier; }

Duration switch_time(const Config& config, Duration cost) {
  if (config.switch_time_mode == SwitchTimeMode::kFixed) return config.switch_time_fixed;
  return std::clamp(quantum_of(config, cost), config.switch_time_min, std::max(config.switch_time_min, config.switch_time_max));
}

Duration turn_limit(const Config& config, const Gpu& gpu) {
  const Bytes most = std::max<Bytes>(safe_limit(config, gpu), 0);
  return switch_time(config, swap_time(gpu, most, most));
}

Duration load_allowance(const Gpu& gpu, Bytes out, Bytes in) { return 2 * swap_time(gpu, out, in) + kLoadGrace; }

// A turn begins when loading has ended, at the latest when its allowance is over.
static Instant turn_began(const Client& client) { return client.turn_start.value_or(client.granted_at + client.load_allowance); }

Instant turn_due(const Client& client, Duration length, Duration quantum) {
  const Instant began = turn_began(client);
  return std::max(began - client.turn_carried + length, began + std::min(length, quantum));
}

Instant growth_due(const Config& config, const Client& client, Duration cost) {
  return turn_due(client, switch_time(config, cost), quantum_of(config, cost));
}

// When it may be dropped for the comer.
static Instant due_for_switch(const Context& context, const Client& client, const Switch& plan, bool wakes, bool load_is_stuck) {
  const Duration quantum = quantum_of(context.config(), plan.cost);
  Instant due = turn_due(client, switch_time(context.config(), plan.cost), quantum);
  // Work that earlier interruptions were not charged for counts: a short one, just before, does not make a second waker wait anew.
  if (wakes) due = std::min(due, turn_began(client) + std::max<Duration>(quantum - client.earned, 0));
  if (client.due_cap) due = std::min(due, *client.due_cap);
  if (client.idle_since || (client.state == ClientState::kLoading && load_is_stuck)) due = context.now;
  return client.drain.failures > 0 ? std::max(due, client.drain.retry_at) : due;
}

bool drain_is_doubtful(const Client& client, Instant now) {
  return client.drain.failures >= kDoubtful || client.state == ClientState::kUnresponsive ||
         (client.state == ClientState::kDropping && now - client.drop_sent_at >= kSlowDrain);
}

static std::optional<Switch> plan_with(const Context& context, const Gpu& gpu, const Client& comer, bool wakes, bool doubtful_too) {
  const State& state = context.state;
  const Bytes in = charge(comer) - comer.memory.resident;
  const bool load_is_stuck = !room_if(state, gpu, {}, context.now).fits();
  Switch plan;
  plan.cost = swap_time(gpu, in, in);

  std::vector<std::tuple<Instant, int, ClientId>> candidates;  // first who may be dropped first
  for (const auto& [id, client] : gpu.clients) {
    if (client.stays() && (doubtful_too || !drain_is_doubtful(client, context.now)))
      candidates.emplace_back(due_for_switch(context, client, plan, wakes, load_is_stuck), client.priority, id);
  }
  std::sort(candidates.begin(), candidates.end());

  const auto fits = [&] { return room_if(state, gpu, {{comer.id}, &plan.leavers}, context.now).fits(); };
  for (auto candidate = candidates.begin(); candidate != candidates.end() && !fits(); ++candidate)
    plan.leavers.insert(std::get<2>(*candidate));
  if (!fits()) return std::nullopt;
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {  // spare whom a later one made unnecessary
    const ClientId id = std::get<2>(*candidate);
    if (plan.leavers.erase(id) && !fits()) plan.leavers.insert(id);
  }

  plan.cost = swap_time(gpu, room_if(state, gpu, {{comer.id}, &plan.leavers}, context.now).shortfall, in);
  plan.quantum = quantum_of(context.config(), plan.cost);
  plan.at = context.now;
  for (const ClientId id : plan.leavers)
    plan.at = std::max(plan.at, due_for_switch(context, gpu.clients.at(id), plan, wakes, load_is_stuck));
  for (const ClientId id : plan.leavers) {
    if (due_for_switch(context, gpu.clients.at(id), plan, false, load_is_stuck) > plan.at) plan.interrupted.insert(id);
    plan.doubtful |= drain_is_doubtful(gpu.clients.at(id), context.now);
  }
  const bool counts_on_doubtful = std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) {
    return entry.second.state == ClientState::kDropping && drain_is_doubtful(entry.second, context.now);
  });
  if (counts_on_doubtful)
    plan.doubtful |= !room_if(state, gpu, {.comers = {comer.id}, .leavers = &plan.leavers, .dropping_released = false}, context.now).fits();
  return plan;
}

std::optional<Switch> plan_switch(const Context& context, const Gpu& gpu, const Client& comer, bool wakes) {
  if (std::optional<Switch> plan = plan_with(context, gpu, comer, wakes, false)) return plan;
  return plan_with(context, gpu, comer, wakes, true);
}

void ask_to_drop(Context& context, Gpu& gpu, Client& client) {
  send_budget(context, gpu, client);  // first: the drop may be the first that it hears of this grant
  set_state(client, ClientState::kDropping, context.now);
  client.drop_sent_at = context.now;
  ++client.drops;
  context.actions.push_back(SendDrop{client.id, client.grant});
  context.wake(gpu, context.now + context.config().unanswered_grace);
}

// The work that the dearest switch on this GPU asks for: more cannot be saved up.
static Duration earned_most(const Config& config, const Gpu& gpu) {
  const Bytes most = std::max<Bytes>(safe_limit(config, gpu), 0);
  return quantum_of(config, swap_time(gpu, most, most));
}

void end_turn(Context& context, Gpu& gpu, Client& client, bool by_choice) {
  const Instant now = context.now;
  const Instant worked_until = client.idle_since.value_or(now);
  const Duration ran = client.turn_start ? std::max<Duration>(worked_until - *client.turn_start, 0) : 0;
  if (client.turn_start) client.usage.add(*client.turn_start, worked_until);
  by_choice |= client.idle_since.has_value();
  const Duration earned = std::min(client.earned + ran, earned_most(context.config(), gpu)) - client.interruption;
  client.earned = by_choice ? 0 : std::max<Duration>(earned, 0);
  if (client.interrupted && !by_choice) {
    client.turn_carried += ran;  // comes back in its old place, for the rest of its turn
  } else {
    client.turn_carried = 0;
    client.last_used = now;
  }
  if (client.passing_since) gpu.time_passing += now - *client.passing_since;

  client.grant = 0;
  client.budget = 0;
  client.budget_dirty = false;
  client.turn_start.reset();
  client.due_cap.reset();
  client.passing_since.reset();
  client.growth.reset();
  client.interrupted = false;
  client.interruption = 0;
  client.idle_since.reset();
  client.left_early = by_choice;
  client.drain.succeeded();
  client.load.succeeded();
  client.contention_waiters = client.contention_memory_waiters = 0;
  set_state(client, ClientState::kIdle, now);
}

void drain_failed(Context& context, Client& client) {
  if (client.state != ClientState::kDropping && client.state != ClientState::kUnresponsive) return;
  client.drain.failed(context.now);
  client.interrupted = false;
  ++client.failed_drains;
  if (client.drain.failures == kUndrainable) {
    context.note(Note::Level::kWarning, client.id,
                 "its GPU work does not end when asked to: it keeps its memory, neighbours that fit go on");
  }
  set_state(client, client.turn_start ? ClientState::kRunning : ClientState::kLoading, context.now);
}

void start_running(Context& context, Gpu& gpu) {
  for (auto& [id, client] : gpu.clients) {
    if (client.state != ClientState::kLoading || client.loads || client.memory.resident < client.memory.allocated) continue;
    client.turn_start = context.now;
    set_state(client, ClientState::kRunning, context.now);
  }
}

void watch_answers(Context& context, Gpu& gpu) {
  for (auto& [id, client] : gpu.clients) {
    if (client.stays() && client.drain.failures > 0) context.wake(gpu, client.drain.retry_at);
    if (client.state != ClientState::kDropping) continue;
    context.wake(gpu, client.drop_sent_at + kSlowDrain);
    const Instant until = client.drop_sent_at + context.config().unanswered_grace;
    context.wake(gpu, until);
    if (context.now < until) continue;
    set_state(client, ClientState::kUnresponsive, context.now);
    ++client.unanswered_drops;
    context.note(Note::Level::kWarning, id,
                 "has not answered a request to drop the lock for " + std::to_string(context.config().unanswered_grace / kSecond) +
                     " s; its memory stays counted, neighbours that fit go on beside it");
  }
}

}  // namespace nvshare::policy
