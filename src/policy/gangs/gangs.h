// Tenants, or processes, on several GPUs, switched together: a block for each file.
#pragma once

#include "policy/turns/turns.h"

namespace nvshare::policy {

// gangs.cc: tenants, or processes, on several GPUs, switched together
// The GPUs that an event is about: nearly always one.
struct AllGpus {};
using Concerned = std::variant<AllGpus, Gpu*, Gpus>;
enum class GangPhase { kOut, kRunning, kLeaving };
// The members of gangs, and how their turns stand: of tenants with clients on these GPUs, which settle_with() found.
void form_gangs(Context& context, const Gpus& gpus);
Gang* find_gang(State& state, const Client& client);
// Null: its turns are its own. Nearly all are, and each step asks again and again.
inline Gang* gang_of(State& state, const Client& client) {
  return state.gangs.empty() || !client.gang ? nullptr : find_gang(state, client);
}
inline const Gang* gang_of(const State& state, const Client& client) { return gang_of(const_cast<State&>(state), client); }
const Gang::OnGpu* on_gpu(const Gang& gang, const Gpu& gpu);  // null: it has no member there
bool is_member(const Gang& gang, const Client& client);
Instant gang_began(const Gang& gang);        // its turn: when all had loaded, or will have at the latest
Duration gang_loaded_for(const Gang& gang);  // before that: no longer than the link takes
std::set<GpuId> gpus_of(const Gang& gang);
GangPhase phase_of(const Gang& gang);
bool joins_its_gang(const State& state, const Client& client);            // waits while its gang runs
void keep_place(Context& context, Client& client);                        // it gave the lock up; do others of its gang go on?
bool others_run(const State& state, const Client& client);                // of its gang: they hold the lock
void start_gangs(Context& context, const Gpus& gpus);                     // turns whose members have loaded
std::vector<Client*> stays_together(State& state, const Client& client);  // all that leave with it; empty: it is in no gang
Instant gang_due(const Context& context, const Gang& gang, const TurnTerms& terms);
void note_loading(State& state, Gang& gang);             // its turn begins or ends, or all have loaded
std::set<GpuId> tied_to(const State& state, GpuId gpu);  // the GPUs whose turns may depend on that one's, by way of gangs
// The same of several, by way of tenants that are, or could become, gangs.
Gpus gpus_around(State& state, Gpus of);
// GPUs to be settled after an event that concerns some (State::settled): those around them now, and around those of `besides`.
// Either all of a gang's GPUs are among them or none.
void settle_with(State& state, const Concerned& concerned, Gpus besides);
bool is_among(const Gpus& gpus, GpuId id);
bool is_settled_with(const Gang& gang, const Gpus& gpus);

// gang_lists.cc: gangs by what a step asks of them
void list_gangs(State& state);  // brings the lists of GangsHere up to date
void unlist(Gang& gang);        // before it is no more, or has other members
void note_turn(Gang& gang);     // after a change of when its turn began, or began to count
TurnBegan turn_began(const Gang& gang);
TurnOnGpu turn_on(const Gang& gang, const Gang::OnGpu& on, const TurnBegan& began);  // as the lists ought to have it
inline TurnKey turn_key(const TurnOnGpu& turn, Instant TurnBegan::*of) { return {(*turn.began).*of, turn.priority, turn.first}; }
// A client that has neither may come to wait for others.
inline bool has_lock_or_place(const Client& client) { return client.holds_lock() || client.place.kept; }

// gang_rivals.cc: gangs that could come to wait for each other
std::set<GangId> rivals_of(const Context& context, const Gang& comes);  // that must have left before it may come

// gang_drains.cc: how the members of a gang come to an end together
void take_drained(Context& context, Client& client, const Drained& event);
void settle_gang_drains(Context& context, const Gpus& gpus);
void gang_goes_on(Context& context, const Client& client);         // with its drain given up for all: one of them cannot end
Instant drain_retry_at(const State& state, const Client& client);  // when it, or its gang, may be asked again
// What runs of it could not end when asked to. Most likely that waits for a member without the lock, in the middle of a capture or of a
// collective, and is billed meanwhile: no limit may keep that member waiting.
bool cannot_drain(const Gang& gang);

// gang_queue.cc: gangs that wait behind others and for memory
// Which stays behind others on a GPU, if nothing else is to be said of it.
void put_off(const Context& context, const Looks& looks, Gang& gang, const Place& place, Gpu& behind);
void bring_back(Gang& gang);  // it is looked at in each step again
void bring_back_all(const Gpus& gpus);
void bring_back_due(const Context& context, Gpu& gpu);                                 // those that may have another place now
void bring_back_that_may_fit(const Context& context, Looks& looks, const Gpus& gpus);  // or of which more is to be said

// gang_admission.cc: a gang's turn, on all GPUs where its members wait
using Waiting = std::map<GpuId, std::vector<ClientId>>;
// For a gang that runs without those who wait: they get the lock if that makes it complete. A gang that lacks a member may be unable
// to drain, a complete one can.
bool complete_gang(Context& context, const Waiting& waiting);
// It waits behind those that come first on one of its GPUs, this one, and does not fit: which is all that is to be said of most that wait.
// Null: it is for admit_gang() to say.
Gpu* stays_behind(Context& context, const Heads& heads, Looks& looks, const Gang& gang);
void admit_gang(Context& context, Heads& heads, Looks& looks, Gang& gang, const Waiting& waiting);

}  // namespace nvshare::policy
