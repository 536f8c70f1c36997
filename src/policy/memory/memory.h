// Who may have how much resident, and what moves: a block for each file. room.h is the accounting.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

// budgets.cc
void raise_budgets(Context& context, Gpu& gpu);
void lower_budget(Gpu& gpu, Client& client, const MemoryChanged& event);  // what the client gives back by itself
void give_slack(Context& context, Gpu& gpu);
void send_budget(Context& context, Gpu& gpu, Client& client);  // if it changed in this step
void send_budgets(Context& context, Gpu& gpu);

// growth.cc: allocations that wait, and lock holders that no longer fit together
void take_growth(Context& context, Client& client, const MemoryChanged& event);
void growth_ends(Client& client, Instant now);            // answered, or no longer wanted
void note_unmet(const Context& context, Client& client);  // before a turn's growth is forgotten
void forget_unmet(Client& client);
void settle_growth(Context& context, Gpu& gpu);

// eviction.cc
void evict_shortfall(Context& context, Gpu& gpu);
void evict_suspended(Context& context, Gpu& gpu);  // what clients of suspended tenants have
// Room for one that comes next, while nobody waits for it yet. False: nobody has anything to move.
bool evict_ahead(Context& context, Gpu& gpu, const Client& next, Bytes bytes);
void watch_evictions(Context& context, Gpu& gpu);
void take_swap(Context& context, Gpu& gpu, Client& client, const SwapProgressed& event);

// prefetch.cc: the next switch's memory moves beside who runs
void prefetch_next(Context& context, Gpu& gpu);
void put_off_prefetch(const Context& context, Gpu& gpu);  // others need the link
void prefetch_ends(Gpu& gpu, Client& client);             // it is over, or a grant takes its place; or the client leaves
void take_prefetched(Gpu& gpu, Client& client, const SwapProgressed& event, Bytes copied);
void note_in_vain(Client& client, Bytes resident);  // no more than that is left on the GPU

// trades.cc: where nobody is whole and host memory is short
void trade_places(Context& context, Gpu& gpu);

}  // namespace nvshare::policy
