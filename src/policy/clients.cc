#include "policy/clients.h"

#include <utility>

#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/sharing/sharing.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {

std::string mib(Bytes bytes) { return std::to_string(bytes / kMiB) + " MiB"; }

void Usage::advance(int64_t to_window) {
  if (to_window <= window) return;
  previous = to_window == window + 1 ? current : 0;
  current = 0;
  window = to_window;
}

void Usage::add(Instant from, Instant to) {
  if (to <= from) return;
  const Instant window_start = to / kShareWindow * kShareWindow;
  if (from < window_start) {
    advance(from / kShareWindow);
    const Instant first_end = (from / kShareWindow + 1) * kShareWindow;
    current += first_end - from;
    if (first_end < window_start) {  // longer than a window: the one before the last was full
      advance(to / kShareWindow - 1);
      current = kShareWindow;
    }
    from = window_start;
  }
  advance(to / kShareWindow);
  current += to - from;
}

Duration Usage::recent(Instant now) const {
  const int64_t at = now / kShareWindow;
  const Duration into = now - at * kShareWindow;
  const Duration older = at == window ? previous : (at == window + 1 ? current : 0);
  const Duration newer = at == window ? current : 0;
  return newer + older / 1000 * ((kShareWindow - into) / 1000) / (kShareWindow / 1'000'000);
}

StateTimes times_until(const Client& client, Instant now) {
  StateTimes times = client.totals.times;
  const Duration lasted = now - client.since;
  switch (client.state) {
    case ClientState::kIdle:
    case ClientState::kPaused:
      break;
    case ClientState::kWaiting:
      times.waiting += lasted;
      break;
    case ClientState::kLoading:
      times.swapping += lasted;
      break;
    case ClientState::kRunning:
    case ClientState::kDropping:
    case ClientState::kUnresponsive:
      times.running += lasted;
      break;
  }
  return times;
}

void set_state(Client& client, ClientState to, Instant now) {
  client.totals.times = times_until(client, now);
  client.state = to;
  client.since = now;
  recount(client);
}

void note_memory(Client& client, const Memory& memory) {
  const Bytes allocated_before = client.memory.allocated;
  client.memory.resident = std::clamp<Bytes>(memory.resident, 0, kBytesMost);
  client.memory.allocated = std::clamp(memory.allocated, client.memory.resident, kBytesMost);
  client.unmet = std::max<Bytes>(client.unmet - std::max<Bytes>(client.memory.allocated - allocated_before, 0), 0);
  client.memory.unswappable = std::clamp<Bytes>(memory.unswappable, 0, client.memory.allocated);
  // What it holds beyond its budget counts while it says so, and is no budget that it was given.
  if (client.holds_lock()) client.budget.bytes = std::max(client.budget.told, client.memory.resident);
}

void take_memory(Gpu& gpu, Client& client, const Memory& memory) {
  note_memory(client, memory);
  recount(gpu, client);
}

namespace {

template <typename Change>
void each_client_of(State& state, TenantId tenant, Change change) {
  const auto home = state.homes.find(tenant);
  if (home == state.homes.end()) return;
  for (const auto& [gpu_id, count] : home->second) each_client(state.gpus.at(gpu_id), tenant, change);
}

}  // namespace

static void forget_priority(Gpu& gpu, const Client& client) {
  const auto at = gpu.priorities.find(client.priority);
  if (--at->second == 0) gpu.priorities.erase(at);
}

static void note_on_several(State& state, TenantId tenant, Spread& spread) {
  if (state.config.gang_turns && spread.on.size() > 1 && spread.clients <= kGangMost) {
    state.on_several.emplace(tenant, &spread);
    spread.changes = &state.gang_changes;
    state.gang_changes.note(tenant, spread);
    if (spread.asking_back > 0) state.gang_changes.asking_back.emplace(tenant, &spread);
  } else if (state.on_several.erase(tenant)) {
    if (spread.gang != nullptr) bring_back(*spread.gang);
    state.gang_changes.forget(tenant, spread);
    spread.changes = nullptr;
    state.apart.insert(tenant);
  } else {
    return;
  }
  each_client_of(state, tenant, [](Client& client) {
    if (client.waits()) note_waiting(*client.indexed.home, client);
  });
}

void note_gang_turns_changed(State& state) {
  state.around.clear();
  for (auto& [tenant, spread] : state.spread) {
    spread.changed = true;
    note_on_several(state, tenant, spread);
  }
}

// One more GPU of a tenant's, which others of its GPUs are tied to already, ties nothing else.
static bool is_tied_already(const State& state, const Gpu& gpu, TenantId tenant, const Spread& spread) {
  if (state.homes.at(tenant).size() != spread.on.size()) return false;  // its other clients tie as well, but in one direction
  const auto here = state.around.find(gpu.id);
  return here != state.around.end() && std::all_of(spread.on.begin(), spread.on.end(), [&](const auto& on) {
           const auto there = state.around.find(on.first);
           return there != state.around.end() && there->second == here->second;
         });
}

void note_in_indexes(State& state, Gpu& gpu, Client& client) {
  Tenancy& tenancy = gpu.of_tenant[client.tenant];
  const bool was_here = tenancy.clients.begin() != tenancy.clients.end(), was_on_several = state.on_several.contains(client.tenant);
  tenancy.clients.emplace(client.id, &client);
  client.indexed.tenancy = &tenancy;
  if (tenancy.account == nullptr) {
    state.away.erase({client.tenant, gpu.id});
    if (Account* account = known_account(state.config, gpu, client.tenant)) {
      open_account(gpu, tenancy, *account);
      take_turns_of_tenant(state, *account);  // it was away, with a debt
    }
  }
  ++gpu.priorities[client.priority];
  gpu.ceilings.due = true;
  client.indexed.home = &gpu;
  state.clients.insert(client.id, &client);
  ++state.homes[client.tenant][gpu.id];
  if (!client.gang) {
    if (was_on_several && !was_here) state.around.clear();
    return;
  }
  Spread& spread = state.spread[client.tenant];
  client.indexed.spread = &spread;
  const bool was_on = spread.on[gpu.id]++ > 0;
  ++spread.clients;
  spread.changed = true;
  note_on_several(state, client.tenant, spread);
  const bool is_on_several = state.on_several.contains(client.tenant);
  const bool ties_as_before = was_on_several == is_on_several && (!is_on_several || was_on);
  if (!ties_as_before && !(is_on_several && is_tied_already(state, gpu, client.tenant, spread))) state.around.clear();
}

Gpus gpus_of(State& state, TenantId tenant) {
  Gpus gpus;
  if (const auto home = state.homes.find(tenant); home != state.homes.end()) {
    for (const auto& [id, clients] : home->second) gpus.push_back(&state.gpus.at(id));
  }
  const size_t with_clients = gpus.size();
  for (auto at = state.away.lower_bound({tenant, 0}); at != state.away.end() && at->first == tenant; ++at)
    gpus.push_back(&state.gpus.at(at->second));
  if (gpus.size() > with_clients) std::sort(gpus.begin(), gpus.end(), [](const Gpu* a, const Gpu* b) { return a->id < b->id; });
  return gpus;
}

void forget_in_indexes(State& state, Gpu& gpu, const Client& client) {
  if (Spread* const spread = client.indexed.spread; spread != nullptr && spread->gang != nullptr) bring_back(*spread->gang);
  forget_shares(gpu, client);
  const auto here = gpu.of_tenant.find(client.tenant);
  here->second.clients.erase(client.id);
  if (here->second.clients.empty()) {
    if (Account* account = here->second.account) {
      account->here = nullptr;
      account->does = {};
      state.away.insert({client.tenant, gpu.id});
      note_change(gpu.quota, *account);
      --gpu.quota.accounts_here;
    }
    gpu.of_tenant.erase(here);
  }
  forget_priority(gpu, client);
  const bool was_on_several = state.on_several.contains(client.tenant), is_here = gpu.of_tenant.contains(client.tenant);
  state.clients.erase(client.id);
  const auto home = state.homes.find(client.tenant);
  if (--home->second[gpu.id] == 0) home->second.erase(gpu.id);
  if (home->second.empty()) state.homes.erase(home);
  if (!client.gang) {
    if (was_on_several && !is_here) state.around.clear();
    return;
  }
  const auto spread = state.spread.find(client.tenant);
  const bool is_on = --spread->second.on[gpu.id] > 0;
  if (!is_on) spread->second.on.erase(gpu.id);
  --spread->second.clients;
  spread->second.changed = true;
  note_on_several(state, client.tenant, spread->second);
  const bool is_on_several = state.on_several.contains(client.tenant);
  if (was_on_several != is_on_several || (is_on_several && !is_on)) state.around.clear();
  if (spread->second.on.empty()) state.spread.erase(spread);
}

void set_priority(Context& context, const TenantPriority& event) {
  each_client_of(context.state, event.tenant, [&](Client& client) {
    forget_priority(*client.indexed.home, client);
    client.priority = event.priority;
    ++client.indexed.home->priorities[client.priority];
    recount(client);
  });
}

void set_ends(Context& context, const TenantEnds& event) {
  each_client_of(context.state, event.tenant, [&](Client& client) {
    if (event.ends && !client.last_turn.due) client.last_turn.ran = 0;
    client.last_turn.due = event.ends;
    client.last_turn.runs = client.last_turn.runs && event.ends;
    recount(client);
  });
}

void set_turns(Context& context, const TenantTurns& event) {
  if (event.is_as_all()) {
    context.state.turns.erase(event.tenant);
  } else {
    context.state.turns.insert_or_assign(event.tenant, event);
  }
  for (auto& [id, gpu] : context.state.gpus) {
    Account* account = gpu.quota.accounts.find(event.tenant);
    if (account == nullptr) continue;
    take_turns_of_tenant(context.state, *account);
    gpu.quota.changes.counted.reset();
    gpu.quota.changes.balances = true;
    note_verdict(gpu.quota, *account);
  }
}

void set_suspended(Context& context, const TenantSuspended& event) {
  // Each is told what that means for it without a scheduler.
  each_client_of(context.state, event.tenant, [](Client& client) { client.indexed.home->contention.also_to_tell.push_back(&client); });
  if (event.suspended) {
    context.state.suspended.insert(event.tenant);
    return;  // hold_suspended does the rest
  }
  context.state.suspended.erase(event.tenant);
  each_client_of(context.state, event.tenant, [&](Client& client) {
    if (std::exchange(client.wait.while_suspended, false)) request_lock(context, context.state.gpus.at(client.gpu), client);
  });
}

namespace {

// Members of a gang end their work together: a client that asks to join it is let in first, though not for ever.
bool gang_is_not_whole(Context& context, Gpu& gpu, const Client& client) {
  const Gang* gang = gang_of(context.state, client);
  if (gang == nullptr) return false;
  bool missing = false;
  for (const Gang::Member& member : gang->members) {
    const Client& other = *member.is;
    const Instant patience = std::max(other.drain.backoff.holds(context.now) ? other.drain.backoff.retry_at : 0,
                                      joins_its_gang(context.state, other) ? other.wait.since + kGangReturn : 0);
    if (patience <= context.now) continue;
    missing = true;
    context.wake(gpu, patience);
  }
  return missing;
}

void hold(Context& context, Gpu& gpu, Client& client) {
  const bool gang_needs_it = others_run(context.state, client);
  if (client.wait.while_suspended && gang_needs_it) {
    client.wait.while_suspended = false;
    request_lock(context, gpu, client);
  } else if (client.waits() && !gang_needs_it) {
    client.wait.while_suspended = true;
    client.wait.reason = client.noted.reason = WaitReason::kNone;
    set_state(client, ClientState::kIdle, context.now);
  }
  if (!client.stays() || gang_is_not_whole(context, gpu, client)) return;
  if (client.drain.backoff.holds(context.now)) return context.wake(gpu, client.drain.backoff.retry_at);
  client.turn.interrupted = false;
  ask_to_drop(context, gpu, client, "its tenant was paused");
}

}  // namespace

void hold_suspended(Context& context, Gpu& gpu) {
  for (const TenantId tenant : context.state.suspended) {
    each_client(gpu, tenant, [&](Client& client) { hold(context, gpu, client); });
  }
}

// The clients that can never fit any more for a comer's context.
static void note_crowded(Context& context, Gpu& gpu, const Client& comer) {
  if (all_may_fit(context.config(), gpu)) return;
  for (const auto& [id, other] : gpu.clients) {
    const Bytes most = ceiling(context.config(), gpu, other);
    if (id == comer.id || other.memory.allocated <= most) continue;
    if (other.memory.allocated > most + overhead_of(context.config(), comer) + immovable(comer)) continue;  // not this one's doing
    context.note(Note::Level::kWarning, comer.id,
                 "its context leaves client " + std::to_string(id) + ", which has " + mib(other.memory.allocated) + ", only " + mib(most));
  }
}

void join(Context& context, const ClientJoined& event) {
  State& state = context.state;
  if (state.clients.contains(event.client)) return;
  for (const ClientId former : event.replaces) departed_freed(state, former);
  Gpu& gpu = state.gpus[event.gpu];
  gpu.id = event.gpu;

  Client& client = gpu.clients[event.client];
  client.id = event.client;
  client.gpu = event.gpu;
  client.tenant = event.tenant;
  client.process = event.process;
  client.priority = event.priority;
  client.swappable = event.swappable;
  client.prefetches.supported = event.prefetches && event.swappable;
  client.gang = event.gang;
  client.last_turn.due = event.ends;
  if (event.overhead) client.overhead = std::max<Bytes>(*event.overhead, 0);
  client.joined.order = state.next_arrival++;
  client.joined.at = client.since = client.past.last_used = context.now;
  gpu.ceilings.speaks = client.id;
  note_in_indexes(state, gpu, client);
  if (!state.limited.empty() || !state.core_limits.empty()) begin_account(state, gpu, client.tenant, context.now);
  take_memory(gpu, client, event.memory);
  if (client.gang && state.spread.at(client.tenant).clients == kGangMost + 1) {
    context.note(Note::Level::kInfo, client.id,
                 "its tenant has more than " + std::to_string(kGangMost) + " clients: on several GPUs each takes its turns by itself");
  }

  note_crowded(context, gpu, client);
  if (event.has_lock) {
    // It ran when the previous scheduler ended, and goes on: the new grant only gives its later release a name.
    // No slack for it: others who ran beside it may not be back yet.
    client.wait.asked = true;
    grant(context, gpu, client);
    client.budget.slack_declined = true;
    recount(gpu, client);
    client.turn.unproven = !event.proven;
  } else if (event.wants_lock) {
    request_lock(context, gpu, client);
  }
}

}  // namespace nvshare::policy
