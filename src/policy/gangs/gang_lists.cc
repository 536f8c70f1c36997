// The lists that a GPU has of its gangs, for what a step asks of those that are in use: which may come to wait for others, or others for
// them, and whose turn may end first. A gang is listed anew where somebody asks after one of its clients has changed, or its turn.
#include <utility>

#include "policy/gangs/gangs.h"

namespace nvshare::policy {
namespace {

// Whether the gang is in a list, now and from now on.
void put(FlatMap<GangId, Gang*>& list, Gang& gang, bool was_there, bool is_there) {
  if (was_there && !is_there) list.erase(gang.id);
  if (!was_there && is_there) list.emplace(gang.id, &gang);
}

void set_standing(Gang& gang, Gang::OnGpu& on, const GangStanding& to) {
  GangsHere& here = on.gpu->gangs;
  put(here.lacking, gang, on.standing.lacks, to.lacks);
  put(here.settled, gang, on.standing.settled, to.settled);
  put(here.mixed, gang, on.standing.mixed, to.mixed);
  on.standing = to;
}

void set_turn(Gang& gang, Gang::OnGpu& on, const TurnOnGpu& to) {
  GangsHere& here = on.gpu->gangs;
  here.placed += to.placed - on.turn.placed;
  const auto put_by = [&](GangsByTurn& index, Instant TurnBegan::*of) {
    if (on.turn.began && to.began && turn_key(on.turn, of) == turn_key(to, of)) return;
    if (on.turn.began) index.erase(turn_key(on.turn, of));
    if (to.began) index.emplace(turn_key(to, of), &gang);
  };
  put_by(here.by_first, &TurnBegan::first);
  put_by(here.by_last, &TurnBegan::last);
  on.turn = to;
}

}  // namespace

TurnBegan turn_began(const Gang& gang) {
  std::optional<Instant> last;
  for (const Gang::Member& member : gang.members) {
    const Client& client = *member.is;
    if (!client.stays()) continue;
    if (client.turn.idle_since || client.turn.due_cap) return {};
    last = std::max(last.value_or(kEndsAnyTime), client.turn.began());
  }
  if (!last) return {};
  const Instant first = gang_began(gang) - gang.turn_carried;
  return {first, std::max(first, *last)};
}

TurnOnGpu turn_on(const Gang& gang, const Gang::OnGpu& on, const TurnBegan& began) {
  TurnOnGpu turn;
  for (size_t i = on.begin; gang.whole && i < on.end; ++i) {
    const Client& client = *gang.members[i].is;
    turn.placed += (client.holds_lock() ? 1 : 0) + (client.place.kept ? 1 : 0);
    if (!client.takes_place()) continue;
    turn.priority = turn.began ? std::max(turn.priority, client.priority) : client.priority;
    if (!turn.began) turn.first = client.id;
    turn.began = began;
  }
  return turn;
}

// Which lists have the gang.
static void list(Gang& gang) {
  const bool in_use = gang.whole && phase_of(gang) != GangPhase::kOut;
  const bool lacks = in_use && std::any_of(gang.members.begin(), gang.members.end(),
                                           [](const Gang::Member& member) { return !has_lock_or_place(*member.is); });
  const TurnBegan began = turn_began(gang);
  for (Gang::OnGpu& on : gang.on) {
    bool lacks_here = false, has_here = false, settled = true;
    for (size_t i = on.begin; lacks && i < on.end; ++i) {
      const Client& client = *gang.members[i].is;
      (has_lock_or_place(client) ? has_here : lacks_here) = true;
      settled = settled && client.takes_place();
    }
    set_standing(gang, on, {lacks_here, has_here && settled, has_here && !settled});
    set_turn(gang, on, turn_on(gang, on, began));
  }
}

void note_turn(Gang& gang) {
  Spread& spread = *gang.of;
  if (spread.changes != nullptr && !std::exchange(spread.to_list, true)) spread.changes->to_list.emplace(gang.id.tenant, &spread);
}

void unlist(Gang& gang) {
  bring_back(gang);
  for (Gang::OnGpu& on : gang.on) {
    set_standing(gang, on, {});
    set_turn(gang, on, {});
    on.gpu->gangs.by_need.erase({on.need, gang.id});
  }
}

void list_gangs(State& state) {
  GangChanges& changes = state.gang_changes;
  for (const auto& [tenant, spread] : changes.to_list) {
    spread->to_list = false;
    if (spread->gang == nullptr) continue;
    const auto all = state.gangs.find({tenant, 0});
    for (auto at = all; at != state.gangs.end() && at->first.tenant == tenant; ++at) list(at->second);
  }
  changes.to_list.clear();
}

}  // namespace nvshare::policy
