// How a gang gets its turn: on all GPUs where its members wait in one step, or on none.
#include "policy/gangs/gangs.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

void set_reasons(Context& context, const Waiting& waiting, WaitReason reason) {
  for (const auto& [gpu_id, clients] : waiting) {
    for (const ClientId id : clients) {
      Client& client = context.state.gpus.at(gpu_id).clients.at(id);
      set_reason(client, reason, client.wait.for_memory);
    }
  }
}

// One GPU is what is waited for; the others would do.
void set_reason_of(Context& context, const Waiting& waiting, GpuId blocking, WaitReason reason) {
  for (const auto& [gpu_id, clients] : waiting) {
    for (const ClientId id : clients) {
      Client& client = *context.state.find(id);
      set_reason(client, gpu_id == blocking ? reason : WaitReason::kGang, client.wait.for_memory);
    }
  }
}

bool fits_now(const Context& context, Looks& looks, Gpu& gpu, const std::vector<ClientId>& clients) {
  std::vector<const Client*> comers;
  for (const ClientId id : clients) comers.push_back(&gpu.clients.at(id));
  return look_at(looks[gpu.id], context, gpu).now.room_with(comers).fits();
}

// What all its GPUs together would have to move out, beyond what moves already.
bool host_has_room(const Context& context, const Waiting& waiting) {
  const auto each_count = [&](auto look) {
    for (const auto& [gpu_id, clients] : waiting)
      look(RoomCount(context.state, context.state.gpus.at(gpu_id), {.comers = clients}, context.now));
  };
  Bytes more = 0;
  each_count([&](const RoomCount& count) { more += count.room().host_needed; });
  if (more <= host_room(context.state)) return true;
  Movable movable;
  each_count([&](const RoomCount& count) { count.add_movable(movable); });
  return more <= host_room(context.state, movable);
}

void grant_gang(Context& context, Gang& gang, const Waiting& waiting) {
  gang.in_turn = true;
  gang.interrupted = false;
  gang.granted_at = context.now;
  gang.load_allowance = 0;
  gang.turn_start.reset();
  note_loading(context.state, gang);
  for (const auto& [gpu_id, clients] : waiting) {
    Gpu& gpu = context.state.gpus.at(gpu_id);
    for (const ClientId id : clients) {
      Client& client = gpu.clients.at(id);
      grant(context, gpu, client);
      gang.load_allowance = std::max(gang.load_allowance, client.turn.load_allowance);
    }
  }
}

// Members that were dropped in the middle of their work ask again within moments: the turn is to begin with them. Until then.
Instant return_of(const Client& client) {
  const bool returns = client.state == ClientState::kIdle && client.totals.turns > 0 && !client.past.left_early;
  return returns ? client.past.released_at + kGangReturn : 0;
}
Instant returns_by(const Gang& gang) {
  Instant latest = 0;
  for (const Gang::Member& member : gang.members) latest = std::max(latest, return_of(*member.is));
  return latest;
}

struct GangPlan {
  std::map<GpuId, Switch> switches;  // of the GPUs where somebody has to leave
  Instant at = 0;
  Duration cost = 0;
};

// Whether a switch that was planned with another least cost is the same with this one: all that depends on it is what the switch is taken
// to cost, before it is known what moves out for it and since (plan_switch()).
bool costs_the_same(const Gpu& gpu, const Switch& planned, Duration least_before, Duration least) {
  const Duration before = swap_time(gpu, planned.in, planned.in), since = swap_time(gpu, planned.out, planned.in);
  return std::max(least_before, before) == std::max(least, before) && std::max(least_before, since) == std::max(least, since);
}

// Nullopt: on the GPU `blocking` no leaving would do.
std::optional<GangPlan> plan_gang(const Context& context, Looks& looks, const Waiting& waiting, const std::set<GangId>& rivals,
                                  GpuId* blocking) {
  GangPlan plan{{}, context.now, 0};
  std::map<GpuId, Duration> planned_with;  // which least cost
  // Twice: the first time to find out which GPU's switch costs most, because that decides how long the turns before it should have been.
  for (int pass = 0; pass < 2; ++pass) {
    plan.at = context.now;
    for (const auto& [gpu_id, clients] : waiting) {
      Gpu& gpu = context.state.gpus.at(gpu_id);
      const auto planned = planned_with.find(gpu_id);
      if (planned == planned_with.end() && rivals.empty() && fits_now(context, looks, gpu, clients)) continue;
      if (planned == planned_with.end() || !costs_the_same(gpu, plan.switches.at(gpu_id), planned->second, plan.cost)) {
        planned_with[gpu_id] = plan.cost;
        std::optional<Switch> on_gpu = plan_switch(context, gpu, {.clients = clients, .rivals = rivals, .least_cost = plan.cost});
        *blocking = gpu_id;
        if (!on_gpu) return std::nullopt;
        plan.switches[gpu_id] = *std::move(on_gpu);
      }
      const Switch& on_gpu = plan.switches.at(gpu_id);
      plan.cost = std::max(plan.cost, on_gpu.cost);
      plan.at = std::max(plan.at, on_gpu.at);
    }
    for (const GangId& rival : rivals) {
      plan.at = std::max(plan.at, gang_due(context, context.state.gangs.at(rival), terms_of(context.config(), plan.cost, false)));
    }
  }
  return plan;
}

void make_head(const Context& context, Heads& heads, const Waiting& waiting, const GangPlan& plan) {
  for (const auto& [gpu_id, clients] : waiting) {
    const auto on_gpu = plan.switches.find(gpu_id);
    Switch of_gpu = on_gpu != plan.switches.end() ? on_gpu->second : Switch{};
    of_gpu.at = std::max(plan.at, context.now);
    if (std::optional<Head>& head = heads[gpu_id]; !head) head.emplace(clients, std::move(of_gpu));
  }
}

void ask_rivals_to_drop(Context& context, const std::set<GangId>& rivals) {
  for (const GangId& rival : rivals) {
    for (const Gang::Member& member : context.state.gangs.at(rival).members) {
      ask_to_drop(context, *member.on, *member.is, "another gang comes");
    }
  }
}

// The gang's turn has to wait for others: says so, and asks them to leave once their time is over.
void await_switches(Context& context, Heads& heads, const Waiting& waiting, const GangPlan& plan, const std::set<GangId>& rivals) {
  const auto doubtful = std::find_if(plan.switches.begin(), plan.switches.end(), [](const auto& entry) { return entry.second.doubtful; });
  if (doubtful == plan.switches.end()) make_head(context, heads, waiting, plan);
  for (const auto& [gpu_id, clients] : waiting) {
    const auto on_gpu = plan.switches.find(gpu_id);
    const bool leavers = on_gpu != plan.switches.end() && !on_gpu->second.leavers.empty();
    const WaitReason reason = leavers ? WaitReason::kTurn : on_gpu != plan.switches.end() ? WaitReason::kDrain : WaitReason::kGang;
    set_reasons(context, {{gpu_id, clients}}, reason);
    Gpu& gpu = context.state.gpus.at(gpu_id);
    gpu.switches.cost = plan.cost;
    if (on_gpu != plan.switches.end()) note_switch_time(context, gpu, on_gpu->second);
    context.wake(gpu, plan.at);
  }
  if (doubtful != plan.switches.end()) set_reason_of(context, waiting, doubtful->first, WaitReason::kStuck);
  if (plan.at > context.now) return;
  for (const auto& [gpu_id, on_gpu] : plan.switches) ask_leavers_to_drop(context, context.state.gpus.at(gpu_id), on_gpu);
  ask_rivals_to_drop(context, rivals);
  if (doubtful != plan.switches.end()) return;
  for (const auto& [gpu_id, on_gpu] : plan.switches) set_reasons(context, {{gpu_id, waiting.at(gpu_id)}}, WaitReason::kDrain);
}

// All of them fit, but for places that are of no use to whom they are kept for.
bool would_be_complete(const Context& context, const Waiting& waiting) {
  for (const auto& [gpu_id, clients] : waiting) {
    const Gpu& gpu = context.state.gpus.at(gpu_id);
    if (std::any_of(clients.begin(), clients.end(), [&](ClientId id) { return gpu.clients.at(id).evictions.current.has_value(); }))
      return false;
    const WhatIf granted{.comers = clients, .dropping_released = false, .lost_places_yield = true};
    if (!room_if(context.state, gpu, granted, context.now).fits()) return false;
  }
  return host_has_room(context, waiting);
}

// Kept places that are in the way of what runs now are lost; whose they were joins again like any other.
void take_places(Context& context, Gpu& gpu) {
  each_while_changing(gpu.lockless.keepers, [&](Client* client) {
    if (!client->place.lost || room_if(context.state, gpu, {.dropping_released = false}, context.now).fits()) return;
    client->place = {};
    note_place(*client);
  });
}

// Whether its members on a GPU that wait do not fit there now.
bool is_short(const Gang& gang, const Gang::OnGpu& on, const Looks& looks) {
  std::vector<const Client*> comers;
  const Client* only = nullptr;  // mostly there is one
  for (size_t i = on.begin; i < on.end; ++i) {
    const Client* const client = gang.members[i].is;
    if (!client->waits()) continue;
    if (only != nullptr && comers.empty()) comers.push_back(only);
    if (only != nullptr) comers.push_back(client);
    only = client;
  }
  if (only == nullptr) return false;
  const RoomCount& now = looks.at(on.gpu->id)->now;
  return !(comers.empty() ? now.room_with(*only) : now.room_with(comers)).fits();
}

// More is to be asked of one of its members than whether it fits.
bool asks_for_more(const Gang& gang, Instant now) {
  return std::any_of(gang.members.begin(), gang.members.end(), [&](const Gang::Member& member) {
    const Client& client = *member.is;
    return client.stays() || client.state == ClientState::kDropping || (client.waits() && client.evictions.current) ||
           return_of(client) > now;
  });
}

// Where it waits behind those that come first. Null: nowhere, or that is not all that is to be said.
const Gang::OnGpu* behind_on(Context& context, const Heads& heads, Looks& looks, const Gang& gang) {
  const Gang::OnGpu* behind = nullptr;
  for (const Gang::OnGpu& on : gang.on) {
    const auto waits = [](const Gang::Member& member) { return member.is->waits(); };
    if (std::none_of(gang.members.begin() + static_cast<ptrdiff_t>(on.begin), gang.members.begin() + static_cast<ptrdiff_t>(on.end), waits))
      continue;
    if (!look_at(looks[on.gpu->id], context, *on.gpu).pressed.empty()) return nullptr;
    if (behind == nullptr && has_head(heads, *on.gpu)) behind = &on;
  }
  return behind;
}

}  // namespace

Gpu* stays_behind(Context& context, const Heads& heads, Looks& looks, const Gang& gang) {
  if (asks_for_more(gang, context.now)) return nullptr;
  const Gang::OnGpu* const behind = behind_on(context, heads, looks, gang);
  if (behind == nullptr) return nullptr;
  if (std::none_of(gang.on.begin(), gang.on.end(), [&](const Gang::OnGpu& on) { return is_short(gang, on, looks); })) return nullptr;
  for (const Gang::OnGpu& on : gang.on) {
    std::optional<bool> short_of_memory;  // most know already that they wait for it
    for (size_t i = on.begin; i < on.end; ++i) {
      Client& client = *gang.members[i].is;
      if (!client.waits()) continue;
      if (!client.wait.for_memory && !short_of_memory) short_of_memory = is_short(gang, on, looks);
      set_reason(client, &on == behind ? WaitReason::kQueue : WaitReason::kGang, client.wait.for_memory || *short_of_memory);
    }
  }
  return behind->gpu;
}

bool complete_gang(Context& context, const Waiting& waiting) {
  if (!would_be_complete(context, waiting)) return false;
  for (const auto& [gpu_id, clients] : waiting) {
    Gpu& gpu = context.state.gpus.at(gpu_id);
    for (const ClientId id : clients) grant(context, gpu, gpu.clients.at(id));
    take_places(context, gpu);
  }
  return true;
}

void admit_gang(Context& context, Heads& heads, Looks& looks, Gang& gang, const Waiting& waiting) {
  State& state = context.state;
  if (phase_of(gang) == GangPhase::kLeaving) return set_reasons(context, waiting, WaitReason::kGang);
  if (const Instant until = returns_by(gang); until > context.now) {
    context.wake(state.gpus.at(waiting.begin()->first), until);
    return set_reasons(context, waiting, WaitReason::kGang);
  }
  for (const auto& [gpu_id, clients] : waiting) {
    for (const ClientId id : clients) {
      Gpu& gpu = state.gpus.at(gpu_id);
      if (gpu.clients.at(id).evictions.current) {
        set_reason_of(context, waiting, gpu_id, WaitReason::kEviction);
        return make_head(context, heads, waiting, {});
      }
      if (look_at(looks[gpu_id], context, gpu).pressed.crowded_by(gpu.clients.at(id)))
        return set_reason_of(context, waiting, gpu_id, WaitReason::kCrowding);
    }
  }

  bool all_fit = true;
  for (const auto& [gpu_id, clients] : waiting) {
    Gpu& gpu = state.gpus.at(gpu_id);
    if (fits_now(context, looks, gpu, clients)) continue;
    all_fit = false;
    for (const ClientId id : clients) set_reason(gpu.clients.at(id), gpu.clients.at(id).wait.reason, true);
  }
  // It waits behind those that come first on one of them, whether or not others have to leave as well.
  const auto first = std::find_if(waiting.begin(), waiting.end(), [&](const auto& on) { return has_head(heads, state.gpus.at(on.first)); });
  if (first != waiting.end()) {
    const bool goes_on = all_fit && (fits_beside(context, state.gpus.at(first->first), *heads.at(first->first), first->second) ||
                                     !host_has_room(context, waiting));
    if (!goes_on) return set_reason_of(context, waiting, first->first, WaitReason::kQueue);
  }
  const std::set<GangId> rivals = rivals_of(context, gang);
  all_fit = all_fit && rivals.empty();
  if (all_fit && !host_has_room(context, waiting)) return set_reasons(context, waiting, WaitReason::kHostMemory);
  for (const auto& [gpu_id, clients] : waiting) {
    const auto head = heads.find(gpu_id);
    if (head == heads.end() || !head->second) continue;
    if (all_fit && fits_beside(context, state.gpus.at(gpu_id), *head->second, clients)) continue;
    return set_reason_of(context, waiting, gpu_id, WaitReason::kQueue);
  }
  if (all_fit) return grant_gang(context, gang, waiting);

  for (const auto& [gpu_id, clients] : waiting) {
    if (fits_now(context, looks, state.gpus.at(gpu_id), clients) || !fits_when_departed_freed(context, state.gpus.at(gpu_id), clients))
      continue;
    set_reason_of(context, waiting, gpu_id, WaitReason::kDeparted);
    return make_head(context, heads, waiting, {});
  }
  GpuId blocking = waiting.begin()->first;
  const std::optional<GangPlan> plan = plan_gang(context, looks, waiting, rivals, &blocking);
  if (!plan) {
    const Gpu& gpu = state.gpus.at(blocking);
    return set_reason_of(context, waiting, blocking, why_not_even_alone(context, gpu, waiting.at(blocking)));
  }
  await_switches(context, heads, waiting, *plan, rivals);
}

}  // namespace nvshare::policy
