// What the state of clients is changed by: their life, and what outlives them. One block for each file.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

// clients.cc: a client's life and its state
StateTimes times_until(const Client& client, Instant now);  // in all, with the state that it has
void set_state(Client& client, ClientState to, Instant now);
void join(Context& context, const ClientJoined& event);
// What a client reports, made consistent. note_memory(): recount() has to follow.
void note_memory(Client& client, const Memory& memory);
void take_memory(Gpu& gpu, Client& client, const Memory& memory);
void set_priority(Context& context, const TenantPriority& event);
void set_ends(Context& context, const TenantEnds& event);
void set_suspended(Context& context, const TenantSuspended& event);
void set_turns(Context& context, const TenantTurns& event);
void hold_suspended(Context& context, Gpu& gpu);  // clients of suspended tenants: no turn goes on or is waited for
// A client's place in the indexes by tenant; before it goes.
void note_in_indexes(State& state, Gpu& gpu, Client& client);
void forget_in_indexes(State& state, Gpu& gpu, const Client& client);
Gpus gpus_of(State& state, TenantId tenant);  // where it has clients, or an account
void note_gang_turns_changed(State& state);   // of all of them: whether gangs are wanted
// Of one tenant on a GPU.
template <typename Change>
void each_client(const Tenancy& tenancy, Change change) {
  for (const auto& [id, client] : tenancy.clients) change(*client);
}
template <typename Change>
void each_client(Gpu& gpu, TenantId tenant, Change change) {
  if (const auto at = gpu.of_tenant.find(tenant); at != gpu.of_tenant.end()) each_client(at->second, change);
}
template <typename Test>
bool any_client(const Tenancy& tenancy, Test test) {
  return std::any_of(tenancy.clients.begin(), tenancy.clients.end(),
                     [&](const auto& entry) { return test(static_cast<const Client&>(*entry.second)); });
}
template <typename Test>
bool any_client(const Gpu& gpu, TenantId tenant, Test test) {
  const auto at = gpu.of_tenant.find(tenant);
  return at != gpu.of_tenant.end() && any_client(at->second, test);
}

// departures.cc
void leave(Context& context, const ClientLeft& event);
void departed_freed(State& state, ClientId client);
void hold_memory(Context& context, const MemoryHeld& event);
void forget_departed(Context& context, Gpu& gpu);  // whose grace is over

}  // namespace nvshare::policy
