// Accounting of GPU and host memory: who may have how much resident, and what would fit if the lock went to others. Reads only.
//
// The rule behind everything: sum(budgets of lock holders) + sum(resident of the others) + departed <= safe limit, whenever a budget is
// handed out.
#pragma once

#include <span>

#include "policy/state.h"

namespace nvshare::policy {

// After a change of what Sums, Roles and Indexed::slack_key are of: overhead, memory, unmet growth, budget, declined slack, grant, state,
// growth, backoffs or eviction of a client; before it goes.
void recount(Gpu& gpu, Client& client);
void recount(Client& client);  // where it is indexed
void uncount(Gpu& gpu, Client& client);
void note_place(Client& client);   // after a change of Client::place, or of whether it waits (recount() does that)
void note_member(Client& client);  // after any change that its gang may depend on: these do that
void limits_change(Gpu& gpu);      // quota.cc: recount() does that, before what a client does is another
// queue.cc: before it comes to wait, or for another reason than limits
void forget_held_for(Gpu& gpu, const Client& client);
void note_waiting(Gpu& gpu, Client& client);    // queue.cc: recount() does that
void forget_waiting(Gpu& gpu, Client& client);  // uncount() does that
Sums sums_of(const Gpu& gpu);                   // worked out anew, to compare
Roles roles_of(const Client& client);
bool takes_slack(const Client& client);                                       // as far as it is up to the client
Bytes slack_of(const Client& client);                                         // of its budget: what it does not need
void find_slack_takers(Gpu& gpu, Bytes below, std::vector<Client*>& takers);  // whose slack is less; in the order of their grants
std::vector<Client*> in_place(const Gpu& gpu);                                // Client::takes_place(); by id
uint64_t hash_of(ClientId client);                                            // its part of Gpu::holders_hash

Bytes overhead_of(const Config& config, const Client& client);
// May be negative when foreign memory leaves nothing. Asked of a GPU many times in each step.
inline Bytes safe_limit(const Config& config, const Gpu& gpu) {
  if (config.memory_reserve_percent) return gpu.total / 100 * (100 - *config.memory_reserve_percent) - gpu.foreign;
  const Bytes limit = gpu.total - config.reserve_fixed - gpu.foreign;
  return limit - gpu.sums.overhead_told - gpu.sums.overhead_untold * config.overhead_default;
}
Bytes departed_bytes(const Gpu& gpu);
Bytes committed(const Gpu& gpu);                         // the left side of the rule
Bytes free_bytes(const Config& config, const Gpu& gpu);  // safe limit - committed; negative after foreign memory grew

// These are asked of clients many times in each step.
// What it must be able to have resident to run: allocated, and what its allocation waits for, or did when its turn ended.
inline Bytes need(const Client& client) {
  return client.memory.allocated + (client.holds_lock() && client.growth ? client.growth->wanted : client.unmet);
}
// On the GPU, or may be by what it was promised without the lock.
inline Bytes held(const Client& client) {
  return client.prefetches.current ? std::max(client.memory.resident, client.prefetches.current->budget) : client.memory.resident;
}
// What it takes from the GPU as a lock holder: its need, or a larger budget that it still has.
inline Bytes charge(const Client& client) {
  const Bytes wants = std::max(need(client), held(client));
  return client.holds_lock() ? std::max(wants, client.budget.bytes) : wants;
}
// Resident bytes that can never be moved out.
inline Bytes immovable(const Client& client) {
  return client.swappable ? std::min(client.memory.unswappable, client.memory.resident) : client.memory.resident;
}
Bytes movable(const Client& client, Instant now);                           // resident bytes that can be moved out at present
Bytes ceiling(const Config& config, const Gpu& gpu, const Client& client);  // the most that it could ever have resident
bool all_may_fit(const Config& config, Gpu& gpu);                           // each of its clients, alone, within its ceiling

Bytes evicting_bytes(const Gpu& gpu);  // still to come from evictions under way
Bytes evicting_bytes(const Client& client);

// Host memory for further evictions. Part of it is kept for tenants that use little, so that it depends on whose memory moves.
using Movable = std::map<TenantId, Bytes>;                                    // what could be moved out, by tenant
Bytes host_room(const State& state, Bytes more = 0);                          // whoever moves, were so much more free
Bytes host_room(const State& state, const Client& client);                    // for one eviction of its memory
Bytes host_room(const State& state, const Movable& movable, Bytes more = 0);  // for all of these
bool is_beyond_share(const State& state, const Client& client);               // of host memory: gets none of what is kept

inline std::span<const ClientId> only(const Client& client) { return {&client.id, 1}; }

// A question: if these came and those left, would the lock holders fit together?
struct WhatIf {
  std::span<const ClientId> comers;             // get the lock; by id, each once
  const std::set<ClientId>* leavers = nullptr;  // give it up
  bool dropping_released = true;                // those already asked to drop have done so
  bool evictions_succeed = false;               // also of those that failed a moment ago
  bool lost_places_yield = false;               // no place is kept for a waiting client that has outgrown it
  bool departed_freed = false;                  // what the dead left behind is gone
};

enum class Obstacle { kNone, kGpuMemory, kHostMemory };

struct Room {
  Obstacle obstacle = Obstacle::kNone;
  Bytes shortfall = 0;    // bytes that must move out first
  Bytes host_needed = 0;  // host memory for what of them does not move out yet
  Bytes host_room = 0;    // where some is needed: what there is of it for those that would move
  bool fits() const { return obstacle == Obstacle::kNone; }
};

Room room_if(const State& state, const Gpu& gpu, const WhatIf& what_if, Instant now);
// Nothing has to move out, were nobody to come and nobody asked to leave: as it is, and with those gone that were asked to drop and what
// the dead left behind. In nearly all steps these two say so, and room_if(), which would say the same, need not be asked.
inline bool fits_as_it_is(const Config& config, const Gpu& gpu) {
  return gpu.sums.fixed + gpu.sums.moving + departed_bytes(gpu) <= safe_limit(config, gpu);
}
inline bool fits_when_released(const Config& config, const Gpu& gpu) {
  return gpu.sums.fixed_released + gpu.sums.moving_released <= safe_limit(config, gpu);
}

// The same for one that asks again and again with another leaver or comer: each costs what it changes, the first what the question names.
// Right as long as no client changes.
class RoomCount {
 public:
  RoomCount(const State& state, const Gpu& gpu, const WhatIf& what_if, Instant now);

  void leaves(const Client& client);  // gives the lock up as well
  void stays(const Client& client);   // does not, after all
  Room room() const;
  Bytes room_left() const;                    // nobody fits that asks for more (room_asked())
  Bytes room_for_sure() const;                // whoever needs no more than that, beside what it has here that cannot move, fits
  Room room_with(const Client& comer) const;  // if it came besides
  Room room_with(std::span<const Client* const> comers) const;
  void add_movable(Movable& movable, std::span<const Client* const> comers = {}) const;

 private:
  struct Part {
    Bytes fixed = 0;   // stays on the GPU whatever we do
    Bytes moving = 0;  // could be moved out
  };
  void sum_up();
  bool comes(const Client& client) const;
  Part part_of(const Client& client, bool comes, bool leaves) const;
  void change(const Client& client, bool leaves);
  bool leaves_now(const Client& client) const;
  Room room_of(const Part& sum, bool any_comers, std::span<const Client* const> comers) const;

  const State& state_;
  const Gpu& gpu_;
  const WhatIf what_if_;
  const Instant now_;
  const Bytes limit_;
  Part sum_;
  std::map<ClientId, bool> changed_;  // by leaves() and stays(): whether it leaves
};

}  // namespace nvshare::policy
