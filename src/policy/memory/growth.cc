#include <limits>
#include <tuple>
#include <utility>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/memory/memory.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

void refuse(Context& context, Client& client, const std::string& why) {
  context.note(Note::Level::kWarning, client.id,
               "out of memory: it has " + mib(client.memory.allocated) + " and asks for " + mib(client.growth->wanted) + " more; " + why);
  context.actions.push_back(SendMemory{client.id, client.growth->request, false, client.budget.bytes, ++client.budget.sequence});
  growth_ends(client, context.now);
}

// It waits for memory, or another of its gang does (for an allocation, or for its turn), and what it has submitted has not ended in several
// attempts: most likely that work waits for what comes after. It neither goes on nor leaves before there is memory.
bool is_locked_in(const State& state, const Client& client) {
  const auto waits = [](const Client& one) { return one.growth && !one.growth->satisfied; };
  const Gang* gang = gang_of(state, client);
  if (gang == nullptr) return waits(client) && client.drain.backoff.failures >= kUndrainable;
  bool any_waits = false;
  int failures = 0;
  for (const Gang::Member& member : gang->members) {
    const Client& one = *member.is;
    any_waits |= waits(one) || one.waits();
    failures = std::max(failures, one.drain.backoff.failures);
  }
  return any_waits && failures >= kUndrainable;
}

// Those that take a place there, which are lock holders where there are no gangs.
template <typename Look>
void each_in_place(const State& state, const Gpu& gpu, Look look) {
  if (state.gangs.empty()) {
    for (const auto& [grant, client] : gpu.holders) {
      if (client->stays()) look(*client);
    }
    return;
  }
  for (const Client* client : in_place(gpu)) look(*client);
}

// Lock holders to end so that the rest fits together; empty if no choice leaves anybody who fits.
std::set<ClientId> choose_to_end(const Context& context, const Gpu& gpu) {
  // First who goes first: who has the lock by its own word only, who can, low priority, then the longest turn.
  std::vector<std::tuple<bool, int, Instant, const Client*>> order;
  std::set<ClientId> leavers;
  each_in_place(context.state, gpu, [&](const Client& client) {
    const int priority = client.turn.unproven ? std::numeric_limits<int>::min() : client.priority;
    order.emplace_back(is_locked_in(context.state, client) && !client.turn.unproven, priority, client.turn.due(0, 0), &client);
    leavers.insert(client.id);
  });
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tuple(std::get<0>(a), std::get<1>(a), std::get<2>(a), std::get<3>(a)->id) <
           std::tuple(std::get<0>(b), std::get<1>(b), std::get<2>(b), std::get<3>(b)->id);
  });
  RoomCount count(context.state, gpu, {{}, &leavers}, context.now);
  const auto spare = [&](const Client& client) {
    if (leavers.erase(client.id) > 0) count.stays(client);
  };
  const auto end = [&](const Client& client) {
    if (leavers.insert(client.id).second) count.leaves(client);
  };
  for (auto kept = order.rbegin(); kept != order.rend(); ++kept) {
    const Client& keeper = *std::get<3>(*kept);
    const Gang* const gang = gang_of(context.state, keeper);
    const auto change_kept = [&](const auto& change) {
      if (gang == nullptr) return change(keeper);
      for (const auto& entry : order) {
        if (gang_of(context.state, *std::get<3>(entry)) == gang) change(*std::get<3>(entry));
      }
    };
    change_kept(spare);
    if (!count.room().fits()) {
      change_kept(end);
      continue;
    }
    for (auto spared = order.rbegin(); spared != order.rend(); ++spared) {
      const Client& client = *std::get<3>(*spared);
      if (!leavers.contains(client.id)) continue;
      spare(client);
      if (!count.room().fits()) end(client);
    }
    return leavers;
  }
  return {};
}

// Something under way may still make room.
bool memory_moves(const State& state, const Gpu& gpu, Instant now) {
  if (!gpu.departed.empty()) return true;
  return std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& entry) {
    const Client& client = entry.second;
    if (is_locked_in(state, client)) return false;
    return client.evictions.current || (client.prefetches.current && !client.prefetches.current->overdue) ||
           client.state == ClientState::kDropping ||
           (client.evictions.backoff.holds(now) && client.evictions.backoff.failures < kEvictionHopeless) ||
           (client.state == ClientState::kRunning && !client.growth);  // runs on, and will end
  });
}

// No choice of holders fits. While something moves they wait; else the youngest request fails, so that somebody goes on.
void break_deadlock(Context& context, Gpu& gpu) {
  if (memory_moves(context.state, gpu, context.now)) return;
  Client* youngest = nullptr;
  for (auto& [id, client] : gpu.clients) {
    if (client.stays() && client.growth && (!youngest || client.growth->arrival > youngest->growth->arrival)) youngest = &client;
  }
  if (!youngest) return;
  const Room room = room_if(context.state, gpu, {}, context.now);
  refuse(context, *youngest,
         room.obstacle == Obstacle::kHostMemory
             ? "to make room " + mib(room.host_needed) + " would have to move to host memory, which has room for " +
                   mib(std::max<Bytes>(room.host_room, 0))
             : "the memory of its neighbours cannot be moved out");
}

}  // namespace

void growth_ends(Client& client, Instant now) {
  if (!client.growth) return;
  if (client.turn.start) client.turn.without_room += now - std::max(client.growth->since, *client.turn.start);
  client.growth.reset();
  recount(client);
}

// Else a turn that ended for want of memory would begin anew at once, as the client fits without what it asked for, and end as it asks
// again: beside a gang that runs an allocation waits for the lock instead of becoming an address, so that nothing else shows it. What the
// client asked for also says whether its tenant fits together.
void note_unmet(const Context& context, Client& client) {
  const bool in_gangs = client.gang && context.state.on_several.contains(client.tenant);
  client.unmet = in_gangs && client.growth && !client.growth->satisfied ? client.growth->wanted : 0;
}

void forget_unmet(Client& client) {
  if (std::exchange(client.unmet, 0) != 0) recount(client);
}

void take_growth(Context& context, Client& client, const MemoryChanged& event) {
  if (!client.holds_lock()) return;  // void: without the lock an allocation needs no GPU memory yet
  if (event.wanted <= 0) {
    if (client.growth && !client.stays()) note_unmet(context, client);
    growth_ends(client, context.now);
  } else if (client.growth && client.growth->request == event.request) {
    client.growth->wanted = std::min(event.wanted, kBytesMost);
    recount(client);
  } else {
    growth_ends(client, context.now);
    client.unmet = 0;
    client.growth = Growth{std::min(event.wanted, kBytesMost), event.request, context.state.next_arrival++, context.now};
    client.budget.slack_declined = false;
    recount(client);
  }
}

void settle_growth(Context& context, Gpu& gpu) {
  bool growing = false;
  each_while_changing(gpu.lockless.unmet, [&](Client* client) {
    if (need(*client) > ceiling(context.config(), gpu, *client)) forget_unmet(*client);  // to be refused, not waited for
  });
  each_while_changing(gpu.unsettled, [&](Client* unsettled) {
    Client& client = *unsettled;  // it may be settled then
    if (!client.growth || !client.stays() || client.growth->satisfied) return;
    const Bytes most = ceiling(context.config(), gpu, client);
    if (need(client) > most) return refuse(context, client, "even alone on this GPU it could have no more than " + mib(most));
    if (!client.growth->wait_sent) context.actions.push_back(SendWait{client.id, client.growth->request});
    client.growth->wait_sent = true;
    growing = true;
  });

  // Evictions suffice, or will once a dead client's memory is gone; a failed one is tried again before anybody has to leave for it.
  if (fits_when_released(context.config(), gpu)) return;
  if (room_if(context.state, gpu, {.departed_freed = true}, context.now).fits()) return;
  const bool over_limit = free_bytes(context.config(), gpu) < 0;
  if (!growing && !over_limit && room_if(context.state, gpu, {.evictions_succeed = true, .departed_freed = true}, context.now).fits())
    return;
  const std::set<ClientId> leavers = choose_to_end(context, gpu);
  const bool in_vain =
      std::all_of(leavers.begin(), leavers.end(), [&](ClientId id) { return is_locked_in(context.state, gpu.clients.at(id)); });
  if (in_vain) break_deadlock(context, gpu);
  if (leavers.empty()) return;
  bool helps = false;          // somebody who stays can load then
  bool loads_in_vain = false;  // or one who has to go, beside one who stays: only as a waiter does it come to a turn
  bool some_stay = false;
  each_in_place(context.state, gpu, [&](const Client& client) {
    const bool lacks = client.stays() && client.budget.bytes < need(client), leaves = leavers.contains(client.id);
    loads_in_vain |= leaves && lacks;
    helps |= !leaves && lacks;
    some_stay |= !leaves;
  });
  // A client that cannot load beside nobody stays as it is until another wants the room.
  if (!growing && !over_limit && !helps && !(loads_in_vain && some_stay)) return;
  const Duration cost = swap_time(gpu, room_if(context.state, gpu, {{}, &leavers}, context.now).shortfall, 0);
  for (const ClientId id : leavers) {
    Client& client = gpu.clients.at(id);
    // A client that waits for memory, or still loads, loses nothing by leaving at once; nor may it stay once the GPU itself has shrunk.
    const bool at_once = client.growth || client.state == ClientState::kLoading || client.turn.idle_since || !growing;
    if (!client.takes_place()) continue;  // left with its gang
    Instant due = at_once ? context.now : growth_due(context, client, cost);
    if (client.drain.backoff.failures > 0) due = std::max(due, client.drain.backoff.retry_at);
    if (due <= context.now) {
      ask_to_drop(context, gpu, client, "those that run no longer fit together: an allocation needs its memory");
    } else {
      context.wake(gpu, due);
    }
  }
}

}  // namespace nvshare::policy
