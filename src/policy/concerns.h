// What the files of this folder offer to each other: one block per file. step() applies an event, then settles the GPU: each function
// below looks at the state as it is and moves it a step towards where it should be, so that no event needs a special path.
#pragma once

#include "policy/room.h"

namespace nvshare::policy {

// clients.cc: a client's life and its state
void set_state(Client& client, ClientState to, Instant now);
void join(Context& context, const ClientJoined& event);
void take_memory(Client& client, const Memory& memory);  // what a client reports, made consistent

// departures.cc
void leave(Context& context, const ClientLeft& event);
void forget_departed(Context& context, Gpu& gpu);  // whose grace is over

// turns.cc: how long a turn lasts, and how it ends
struct Switch {
  std::set<ClientId> leavers;
  Instant at = 0;
  Duration cost = 0;               // expected, of moving what this switch moves
  Duration quantum = 0;            // what a leaver should have worked for that
  std::set<ClientId> interrupted;  // of the leavers: whose time is not over, but a waking client comes
  bool doubtful = false;           // some leaver has not drained lately: nobody is to be held back for this switch
};
Duration swap_time(const Gpu& gpu, Bytes out, Bytes in);
Duration turn_limit(const Config& config, const Gpu& gpu);  // the longest that a turn can last while somebody waits
Duration switch_time(const Config& config, Duration cost);  // of a switch that costs so much
Duration load_allowance(const Gpu& gpu, Bytes out, Bytes in);
Instant turn_due(const Client& client, Duration length, Duration quantum);      // when its turn's time is over
Instant growth_due(const Config& config, const Client& client, Duration cost);  // the same, for a neighbour's growth
// Prefers leavers whose drain is not in doubt.
std::optional<Switch> plan_switch(const Context& context, const Gpu& gpu, const Client& comer, bool wakes);
bool drain_is_doubtful(const Client& client, Instant now);
void ask_to_drop(Context& context, Gpu& gpu, Client& client);
void end_turn(Context& context, Gpu& gpu, Client& client, bool by_choice);
void drain_failed(Context& context, Client& client);
void start_running(Context& context, Gpu& gpu);  // whoever has loaded
void watch_answers(Context& context, Gpu& gpu);

// admission.cc: who gets the lock
std::vector<ClientId> waiting_order(const Context& context, const Gpu& gpu);
void request_lock(Context& context, Gpu& gpu, Client& client);
void grant(Context& context, Gpu& gpu, Client& client);
void admit(Context& context, Gpu& gpu);

// budgets.cc
void raise_budgets(Context& context, Gpu& gpu);
void lower_budget(Client& client, const MemoryChanged& event);  // what the client gives back by itself
void give_slack(Context& context, Gpu& gpu);
void send_budget(Context& context, Gpu& gpu, Client& client);  // if it changed in this step
void send_budgets(Context& context, Gpu& gpu);

// growth.cc: allocations that wait, and lock holders that no longer fit together
void take_growth(Context& context, Client& client, const MemoryChanged& event);
void settle_growth(Context& context, Gpu& gpu);

// eviction.cc
void evict_shortfall(Context& context, Gpu& gpu);
void watch_evictions(Context& context, Gpu& gpu);
void take_swap(Context& context, Gpu& gpu, Client& client, const SwapProgressed& event);

// reports.cc: what clients and people are told
void report_contention(Context& context, Gpu& gpu);
void report_ceilings(Context& context, Gpu& gpu);
void report_waits(Context& context, Gpu& gpu);
std::string waiting_sentence(const State& state, const Gpu& gpu, const Client& client);

}  // namespace nvshare::policy
