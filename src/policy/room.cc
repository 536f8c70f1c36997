#include "policy/room.h"

#include <limits>
#include <utility>

namespace nvshare::policy {

Bytes overhead_of(const Config& config, const Client& client) { return client.overhead.value_or(config.overhead_default); }

Bytes safe_limit(const Config& config, const Gpu& gpu) {
  if (config.memory_reserve_percent) return gpu.total / 100 * (100 - *config.memory_reserve_percent) - gpu.foreign;
  Bytes limit = gpu.total - config.reserve_fixed - gpu.foreign;
  return limit - gpu.sums.overhead_told - gpu.sums.overhead_untold * config.overhead_default;
}

Bytes departed_bytes(const Gpu& gpu) { return gpu.departed_bytes; }

Bytes committed(const Gpu& gpu) { return departed_bytes(gpu) + gpu.sums.committed; }

Bytes free_bytes(const Config& config, const Gpu& gpu) { return safe_limit(config, gpu) - committed(gpu); }

Bytes need(const Client& client) { return client.memory.allocated + (client.holds_lock() && client.growth ? client.growth->wanted : 0); }

Bytes charge(const Client& client) {
  const Bytes wants = std::max(need(client), client.memory.resident);
  return client.holds_lock() ? std::max(wants, client.budget) : wants;
}

Bytes immovable(const Client& client) {
  return client.swappable ? std::min(client.memory.unswappable, client.memory.resident) : client.memory.resident;
}

Bytes movable(const Client& client, Instant now) { return client.evict.holds(now) ? 0 : client.memory.resident - immovable(client); }

Bytes ceiling(const Config& config, const Gpu& gpu, const Client& client) {
  return std::max<Bytes>(safe_limit(config, gpu) - (gpu.sums.immovable - client.counted.immovable), 0);
}

static Bytes evicting_bytes(const Client& client) {
  return client.eviction ? std::max<Bytes>(client.memory.resident - client.eviction->resident_target, 0) : 0;
}

Bytes evicting_bytes(const Gpu& gpu) { return gpu.sums.evicting; }

static Sums counted_of(const Client& client) {
  return {client.overhead.value_or(0), !client.overhead, immovable(client), client.holds_lock() ? client.budget : client.memory.resident,
          evicting_bytes(client)};
}

static void add(Sums& sums, const Sums& more, int64_t sign) {
  sums.overhead_told += sign * more.overhead_told;
  sums.overhead_untold += sign * more.overhead_untold;
  sums.immovable += sign * more.immovable;
  sums.committed += sign * more.committed;
  sums.evicting += sign * more.evicting;
}

void recount(Gpu& gpu, Client& client) {
  add(gpu.sums, client.counted, -1);
  client.counted = counted_of(client);
  add(gpu.sums, client.counted, 1);
}

void uncount(Gpu& gpu, Client& client) {
  add(gpu.sums, client.counted, -1);
  client.counted = {};
}

Sums sums_of(const Gpu& gpu) {
  Sums sums;
  for (const auto& [id, client] : gpu.clients) add(sums, counted_of(client), 1);
  return sums;
}

Bytes host_room(const State& state) {
  if (!state.host_available) return std::numeric_limits<Bytes>::max();
  Bytes room = *state.host_available;
  for (const auto& [id, gpu] : state.gpus) room -= evicting_bytes(gpu);
  return std::max<Bytes>(room, 0);
}

RoomCount::RoomCount(const State& state, const Gpu& gpu, WhatIf what_if, Instant now)
    : state_(state), gpu_(gpu), what_if_(std::move(what_if)), now_(now) {
  std::sort(what_if_.comers.begin(), what_if_.comers.end());
  sum_.fixed = what_if_.departed_freed ? 0 : departed_bytes(gpu);
  for (const auto& [id, client] : gpu.clients) {
    const Part part = part_of(client, comes(client), what_if_.leavers && what_if_.leavers->contains(id));
    sum_.fixed += part.fixed;
    sum_.moving += part.moving;
  }
}

bool RoomCount::comes(const Client& client) const { return std::binary_search(what_if_.comers.begin(), what_if_.comers.end(), client.id); }

RoomCount::Part RoomCount::part_of(const Client& client, bool comes, bool leaves) const {
  const bool yields = (what_if_.lost_places_yield && client.lost_place) || (what_if_.dropping_released && client.place_leaves);
  const bool keeps_place = client.keeps_place && !yields;
  if (comes || ((client.stays() || keeps_place) && !leaves)) return {charge(client), 0};
  if (client.holds_lock() && !leaves && !(what_if_.dropping_released && client.state == ClientState::kDropping))
    return {std::max(client.budget, client.memory.resident), 0};
  const Bytes can_move = what_if_.evictions_succeed ? client.memory.resident - immovable(client) : movable(client, now_);
  return {client.memory.resident - can_move, can_move};
}

void RoomCount::change(const Client& client, bool leaves) {
  const bool is_comer = comes(client);
  const Part before = part_of(client, is_comer, !leaves), after = part_of(client, is_comer, leaves);
  sum_.fixed += after.fixed - before.fixed;
  sum_.moving += after.moving - before.moving;
}

void RoomCount::leaves(const Client& client) { change(client, true); }
void RoomCount::stays(const Client& client) { change(client, false); }

Room RoomCount::room() const { return room_of(sum_, !what_if_.comers.empty()); }

Room RoomCount::room_with(const Client& comer) const {
  const Part before = part_of(comer, comes(comer), false), after = part_of(comer, true, false);
  return room_of({sum_.fixed + after.fixed - before.fixed, sum_.moving + after.moving - before.moving}, true);
}

Room RoomCount::room_of(const Part& sum, bool any_comers) const {
  const Bytes limit = safe_limit(state_.config, gpu_);
  Room room;
  room.shortfall = std::max<Bytes>(sum.fixed + sum.moving - limit, 0);
  const Bytes under_way = evicting_bytes(gpu_);
  // For somebody who comes the last piece has to fit as a whole: a movement that host memory has no room to end leaves two programs on the
  // GPU of which neither is whole. For those that run already it may be tried: pieces may be smaller, and growth has an end of its own.
  const Bytes whole = room.shortfall + (any_comers ? kPieceMost : 0);
  if (room.shortfall > under_way) room.host_needed = std::min(whole, std::max(room.shortfall, sum.moving)) - under_way;
  if (sum.fixed > limit) {
    room.obstacle = Obstacle::kGpuMemory;
  } else if (room.host_needed > host_room(state_)) {
    room.obstacle = Obstacle::kHostMemory;
  }
  return room;
}

Room room_if(const State& state, const Gpu& gpu, const WhatIf& what_if, Instant now) { return RoomCount(state, gpu, what_if, now).room(); }

}  // namespace nvshare::policy
