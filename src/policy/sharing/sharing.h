// Programs that fit together: a block for each file.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

// share_trials.cc: which way of sharing gets more done
void take_progress(const Context& context, Gpu& gpu, Client& client, const ClientProgressed& event);
void settle_share_trials(Context& context, Gpu& gpu);
// What the last step settled of sharing is as it would be now, were what clients do the same: nothing is tried, nor due.
bool sharing_rests(const Gpu& gpu, Instant now);

// share_turns.cc: groups of clients that share the GPU in different ways take turns where all fit
void take_shares(Gpu& gpu, Client& client, const ClientShares& event);
void forget_shares(Gpu& gpu, const Client& client);  // which leaves
void settle_share_turns(Context& context, Gpu& gpu);
bool all_are_measured(const Gpu& gpu);                                              // and nothing else says how they share
bool has_share_turn(const Context& context, const Gpu& gpu, const Client& client);  // or needs none
bool takes_turns(const Context& context, const Gpu& gpu, const Client& client);     // and does not run beside those that do
Duration begin_long_moment(const Context& context, Gpu& gpu);                       // that tells who leaves gaps, and its length
void watch_gaps(const Context& context, Gpu& gpu);                                  // from now on, of all that are measured
void note_share_turn(const Context& context, Gpu& gpu, Client& client, bool by_choice, Instant worked_until);  // its turn ends
void note_share_wish(const Context& context, const Gpu& gpu, Client& client);                                  // it wants the lock

}  // namespace nvshare::policy
