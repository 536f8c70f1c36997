// Programs that trade places piece by piece, as the last resort: none of them is whole on the GPU, and host memory has too little room for
// what either of them would have to have moved out first. That comes of a movement that was given up halfway, because host memory became
// less meanwhile, or a client lied or failed.
//
// What comes in leaves as much host memory as it takes of the GPU, and what moves out the other way round. So what is free on both together
// stays the same, and if that is enough for a few pieces, whoever is brought in will be whole.
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/memory/memory.h"

namespace nvshare::policy {
namespace {

Bytes lacks(const Client& client) { return need(client) - client.memory.resident; }

// Of those that wait for host memory, the one that lacks least; nullptr: there is none, or another may get the lock yet.
Client* first_of_the_stuck(const Context& context, Gpu& gpu) {
  Client* first = nullptr;
  for (const auto& [id, client] : gpu.waiting) {
    switch (client->wait.reason) {
      case WaitReason::kHostMemory:
        break;
      case WaitReason::kNeverFits:
      case WaitReason::kLimit:
      case WaitReason::kShare:
        continue;
      default:
        return nullptr;
    }
    if (gang_of(context.state, *client) != nullptr || may_run(context.state, *client) != Verdict::kRun) continue;
    if (first == nullptr || lacks(*client) < lacks(*first)) first = client;
  }
  return first;
}

struct OfTheStuck {
  Bytes all = 0;
  Movable within;  // of tenants that may have what is kept of host memory
};

// What could move out of those that cannot come either: whoever is whole may run, as may one for whom there is room, and keeps what it has.
OfTheStuck movable_of_the_stuck(const Context& context, const Gpu& gpu, const Client& comer, const RoomCount& count) {
  OfTheStuck moves;
  for (const auto& [id, client] : gpu.lockless.evictable) {
    const bool stuck = id != comer.id && lacks(*client) > 0 && count.room_with(*client).obstacle == Obstacle::kHostMemory;
    if (!stuck || client->place.kept) continue;
    moves.all += movable(*client, context.now);
    if (!is_beyond_share(context.state, *client)) moves.within[client->tenant] += movable(*client, context.now);
  }
  return moves;
}

}  // namespace

void trade_places(Context& context, Gpu& gpu) {
  if (gpu.waiting.empty() || !gpu.holders.empty() || !gpu.departed.empty() || evicting_bytes(gpu) > 0) return;
  Client* const comer = first_of_the_stuck(context, gpu);
  if (comer == nullptr) return;
  const RoomCount count(context.state, gpu, {}, context.now);
  const Room room = count.room_with(*comer);
  if (room.obstacle != Obstacle::kHostMemory) return;
  const OfTheStuck moves = movable_of_the_stuck(context, gpu, *comer, count);
  if (room.shortfall > moves.all) return;
  const Bytes left = lacks(*comer) - kTradeLeast;  // once it is whole
  if (room.shortfall > std::max(host_room(context.state, left), host_room(context.state, moves.within, left))) return;
  context.note(Note::Level::kInfo, comer->id,
               "comes in piece by piece: host memory has no room for the " + mib(room.shortfall) + " that have to move out for it");
  grant(context, gpu, *comer);
}

}  // namespace nvshare::policy
