#include "policy/room.h"

#include <limits>

namespace nvshare::policy {

Bytes overhead_of(const Config& config, const Client& client) { return client.overhead.value_or(config.overhead_default); }

Bytes safe_limit(const Config& config, const Gpu& gpu) {
  if (config.memory_reserve_percent) return gpu.total / 100 * (100 - *config.memory_reserve_percent) - gpu.foreign;
  Bytes limit = gpu.total - config.reserve_fixed - gpu.foreign;
  for (const auto& [id, client] : gpu.clients) limit -= overhead_of(config, client);
  return limit;
}

Bytes departed_bytes(const Gpu& gpu) {
  Bytes sum = 0;
  for (const auto& [id, departed] : gpu.departed) sum += departed.bytes;
  return sum;
}

Bytes committed(const Gpu& gpu) {
  Bytes sum = departed_bytes(gpu);
  for (const auto& [id, client] : gpu.clients) sum += client.holds_lock() ? client.budget : client.memory.resident;
  return sum;
}

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
  Bytes most = safe_limit(config, gpu);
  for (const auto& [id, other] : gpu.clients) {
    if (id != client.id) most -= immovable(other);
  }
  return std::max<Bytes>(most, 0);
}

static Bytes evicting_bytes(const Client& client) {
  return client.eviction ? std::max<Bytes>(client.memory.resident - client.eviction->resident_target, 0) : 0;
}

Bytes evicting_bytes(const Gpu& gpu) {
  Bytes sum = 0;
  for (const auto& [id, client] : gpu.clients) sum += evicting_bytes(client);
  return sum;
}

Bytes host_room(const State& state) {
  if (!state.host_available) return std::numeric_limits<Bytes>::max();
  Bytes room = *state.host_available;
  for (const auto& [id, gpu] : state.gpus) room -= evicting_bytes(gpu);
  return std::max<Bytes>(room, 0);
}

Room room_if(const State& state, const Gpu& gpu, const WhatIf& what_if, Instant now) {
  Bytes fixed = what_if.departed_freed ? 0 : departed_bytes(gpu);  // stays on the GPU whatever we do
  Bytes moving = 0;                                                // could be moved out
  for (const auto& [id, client] : gpu.clients) {
    const bool comes = std::find(what_if.comers.begin(), what_if.comers.end(), id) != what_if.comers.end();
    const bool leaves = what_if.leavers && what_if.leavers->contains(id);
    const bool yields = (what_if.lost_places_yield && client.lost_place) || (what_if.dropping_released && client.place_leaves);
    const bool keeps_place = client.keeps_place && !yields;
    if (comes || ((client.stays() || keeps_place) && !leaves)) {
      fixed += charge(client);
    } else if (client.holds_lock() && !leaves && !(what_if.dropping_released && client.state == ClientState::kDropping)) {
      fixed += std::max(client.budget, client.memory.resident);
    } else {
      const Bytes can_move = what_if.evictions_succeed ? client.memory.resident - immovable(client) : movable(client, now);
      fixed += client.memory.resident - can_move;
      moving += can_move;
    }
  }
  const Bytes limit = safe_limit(state.config, gpu);
  Room room;
  room.shortfall = std::max<Bytes>(fixed + moving - limit, 0);
  const Bytes under_way = evicting_bytes(gpu);
  // For somebody who comes the last piece has to fit as a whole: a movement that host memory has no room to end leaves two programs on the
  // GPU of which neither is whole. For those that run already it may be tried: pieces may be smaller, and growth has an end of its own.
  const Bytes whole = room.shortfall + (what_if.comers.empty() ? 0 : kPieceMost);
  if (room.shortfall > under_way) room.host_needed = std::min(whole, std::max(room.shortfall, moving)) - under_way;
  if (fixed > limit) {
    room.obstacle = Obstacle::kGpuMemory;
  } else if (room.host_needed > host_room(state)) {
    room.obstacle = Obstacle::kHostMemory;
  }
  return room;
}

}  // namespace nvshare::policy
