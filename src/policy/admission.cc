#include <tuple>

#include "policy/concerns.h"

namespace nvshare::policy {
namespace {

// How many clients share the GPU these days.
int64_t sharers(const Gpu& gpu, Instant now) {
  return std::count_if(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) {
    const Client& client = entry.second;
    return client.holds_lock() || client.waits() || (client.turns > 0 && now - client.last_used < kShareWindow);
  });
}

// It comes back after a pause of its own, and had less than half of its fair share of the time that it was here.
bool wakes_up(const Gpu& gpu, const Client& client, Instant now) {
  if (!client.left_early) return false;
  const Duration entitled = std::min(kShareWindow, now - client.joined_at) / std::max<int64_t>(sharers(gpu, now), 1);
  return client.usage.recent(now) < entitled / 2;
}

// Waking clients go before those that wait, until that has cost one of these a whole turn.
bool wakers_may_pass(const Context& context, const Gpu& gpu) {
  const Duration limit = turn_limit(context.config(), gpu);
  return std::none_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) {
    return entry.second.waits() && !entry.second.woke && gpu.time_passing - entry.second.passed_at_start >= limit;
  });
}

// Its context, and others that came after an older lock holder, take what that one needs: the older one ends first.
bool crowds_out(const Context& context, const Gpu& gpu, const Client& comer) {
  const Config& config = context.config();
  const auto takes = [&](const Client& client) {
    return immovable(client) + (config.memory_reserve_percent ? 0 : overhead_of(config, client));
  };
  return std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) {
    const Client& older = entry.second;
    if (!older.holds_lock() || older.joined > comer.joined) return false;
    Bytes beside_comer = ceiling(config, gpu, older);  // and those who came before the comer
    Bytes beside_older = beside_comer;                 // those who came before the older one
    for (const auto& [id, other] : gpu.clients) {
      if (other.joined > comer.joined) beside_comer += takes(other);
      if (other.joined > older.joined) beside_older += takes(other);
    }
    return need(older) > beside_comer && need(older) <= beside_older;
  });
}

// The first of the waiting that does not fit now, but will by somebody's leaving.
struct Head {
  ClientId client = 0;
  Switch plan;
};

// May the comer, which fits now, go before the head? Only if the head's turn does not begin later for it.
bool may_pass(const Context& context, const Gpu& gpu, const Head& head, Client& comer) {
  if (room_if(context.state, gpu, {{head.client, comer.id}, &head.plan.leavers}, context.now).fits()) return true;
  if (comer.drain.failures > 0 || comer.failed_drains > 0 || comer.unanswered_drops > 0) return false;
  // Not beside the head, so only until then, and only if that is worth the loading and takes nothing from the head.
  const Room room = room_if(context.state, gpu, {.comers = {comer.id}, .dropping_released = false}, context.now);
  Bytes elsewhere = 0;
  for (const auto& [id, client] : gpu.clients) {
    if (!client.holds_lock() && id != head.client && id != comer.id) elsewhere += movable(client, context.now);
  }
  if (room.shortfall > elsewhere) return false;
  const Duration load = swap_time(gpu, room.shortfall, need(comer) - comer.memory.resident);
  if (head.plan.at - context.now <= load * (1 + context.config().switch_time_multiplier)) return false;
  comer.due_cap = head.plan.at;
  return true;
}

// It would not fit if all lock holders who answer left.
WaitReason why_not_even_alone(const Context& context, const Gpu& gpu, const Client& client) {
  if (need(client) > ceiling(context.config(), gpu, client)) return WaitReason::kNeverFits;
  std::set<ClientId> leavers;
  for (const auto& [id, other] : gpu.clients) {
    if (other.stays()) leavers.insert(id);
  }
  if (room_if(context.state, gpu, {.comers = {client.id}, .leavers = &leavers, .departed_freed = true}, context.now).fits())
    return WaitReason::kDeparted;
  const Obstacle obstacle = room_if(context.state, gpu, {{client.id}, &leavers}, context.now).obstacle;
  return obstacle == Obstacle::kHostMemory ? WaitReason::kHostMemory : WaitReason::kStuck;
}

}  // namespace

std::vector<ClientId> waiting_order(const Context& context, const Gpu& gpu) {
  const bool wakers_pass = wakers_may_pass(context, gpu);
  const Duration promote_after = kPromoteTurns * turn_limit(context.config(), gpu);
  int highest = 0;
  for (const auto& [id, client] : gpu.clients) highest = std::max(highest, client.priority);

  std::vector<std::tuple<int, int, Instant, uint64_t, ClientId>> order;
  for (const auto& [id, client] : gpu.clients) {
    if (!client.waits()) continue;
    const int priority = context.now - client.waiting_since >= promote_after ? highest : client.priority;
    order.emplace_back(-priority, client.woke && wakers_pass ? 0 : 1, client.last_used, client.arrival, id);
  }
  std::sort(order.begin(), order.end());
  std::vector<ClientId> ids;
  for (const auto& entry : order) ids.push_back(std::get<4>(entry));
  return ids;
}

void request_lock(Context& context, Gpu& gpu, Client& client) {
  if (client.holds_lock() || client.waits()) return;
  client.woke = wakes_up(gpu, client, context.now);
  client.arrival = context.state.next_arrival++;
  client.waiting_since = context.now;
  client.passed_at_start = gpu.time_passing;
  client.waited_for_memory = false;
  client.reason = client.reason_noted = WaitReason::kNone;
  set_state(client, ClientState::kWaiting, context.now);
}

void grant(Context& context, Gpu& gpu, Client& client) {
  const Bytes in = need(client) - client.memory.resident;
  client.load_allowance = load_allowance(gpu, room_if(context.state, gpu, {{client.id}}, context.now).shortfall, in);
  client.loads = in > 0;
  if (client.waited_for_memory) {
    ++gpu.switches;
    if (client.woke) client.passing_since = context.now;
  }
  client.grant = context.state.next_grant++;
  client.budget = client.budget_told = client.memory.resident;
  client.budget_dirty = true;
  client.slack_declined = false;
  client.granted_at = context.now;
  client.woke = client.left_early = client.waited_for_memory = false;
  client.reason = WaitReason::kNone;
  ++client.turns;
  set_state(client, ClientState::kLoading, context.now);
  start_running(context, gpu);
}

void admit(Context& context, Gpu& gpu) {
  const bool wakers_pass = wakers_may_pass(context, gpu);
  std::optional<Head> head;
  for (const ClientId id : waiting_order(context, gpu)) {
    Client& client = gpu.clients.at(id);
    if (client.eviction) {
      client.reason = WaitReason::kEviction;
      if (!head) head = Head{id, {{}, context.now, 0, {}}};
      continue;
    }
    if (crowds_out(context, gpu, client)) {
      client.reason = WaitReason::kCrowding;
      continue;
    }
    if (room_if(context.state, gpu, {.comers = {id}, .dropping_released = false}, context.now).fits()) {
      if (!head || may_pass(context, gpu, *head, client)) {
        grant(context, gpu, client);
      } else {
        client.reason = WaitReason::kQueue;
      }
      continue;
    }
    client.waited_for_memory = true;
    if (head) {
      client.reason = WaitReason::kQueue;
      continue;
    }
    if (!gpu.departed.empty() && room_if(context.state, gpu, {.comers = {id}, .departed_freed = true}, context.now).fits()) {
      client.reason = WaitReason::kDeparted;
      head = Head{id, {{}, context.now, 0, {}}};
      continue;
    }
    const std::optional<Switch> plan = plan_switch(context, gpu, client, client.woke && wakers_pass);
    if (!plan) {
      client.reason = why_not_even_alone(context, gpu, client);
      continue;
    }
    if (!plan->doubtful) head = Head{id, *plan};
    client.reason = plan->leavers.empty() ? WaitReason::kDrain : WaitReason::kTurn;
    if (plan->doubtful) client.reason = WaitReason::kStuck;
    gpu.switch_cost = plan->cost;
    if (plan->at > context.now) {
      context.wake(gpu, plan->at);
      continue;
    }
    for (const ClientId leaver : plan->leavers) {
      gpu.clients.at(leaver).interrupted = plan->interrupted.contains(leaver);
      gpu.clients.at(leaver).interruption = plan->quantum;
      ask_to_drop(context, gpu, gpu.clients.at(leaver));
    }
    if (!plan->leavers.empty() && !plan->doubtful) client.reason = WaitReason::kDrain;
  }
}

}  // namespace nvshare::policy
