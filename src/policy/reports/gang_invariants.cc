// What is remembered of gangs, against what their clients say.
#include "policy/gangs/gangs.h"
#include "policy/reports/reports.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

using Found = std::optional<std::string>;

// By way of tenants on several GPUs, as gpus_around() has it, found in the plainest way.
std::vector<GpuId> reached_from(const State& state, GpuId gpu) {
  std::set<GpuId> reached = {gpu};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const auto& [tenant, spread] : state.on_several) {
      const bool is_there = std::any_of(reached.begin(), reached.end(), [&, id = tenant](GpuId at) {
        const auto there = state.gpus.find(at);
        return there != state.gpus.end() && there->second.of_tenant.contains(id);
      });
      if (!is_there) continue;
      for (const auto& [other, count] : spread->on) reached.insert(other);
    }
  }
  return {reached.begin(), reached.end()};
}

std::string name_of(const Gang& gang) {
  return "the gang of tenant " + std::to_string(gang.id.tenant) +
         (gang.id.process == 0 ? "" : ", process " + std::to_string(gang.id.process));
}

// Its clients on the GPU, as the lists of GangsHere ought to have them.
GangStanding standing_of(const Gang& gang, GpuId gpu) {
  const auto any = [&](auto is) {
    return std::any_of(gang.members.begin(), gang.members.end(), [&](const Gang::Member& member) { return is(member.gpu, *member.is); });
  };
  const auto has = [](const Client& client) { return client.holds_lock() || client.place.kept; };
  const bool in_use = any([](GpuId, const Client& client) { return client.stays() || client.state == ClientState::kDropping; });
  const bool lacks = any([&](GpuId, const Client& client) { return !has(client); });
  if (!gang.whole || !in_use || !lacks) return {};
  const bool has_here = any([&](GpuId on, const Client& client) { return on == gpu && has(client); });
  const bool leaves_here = any([&](GpuId on, const Client& client) { return on == gpu && !client.takes_place(); });
  return {any([&](GpuId on, const Client& client) { return on == gpu && !has(client); }), has_here && !leaves_here,
          has_here && leaves_here};
}

// Nothing is to be done for the tenant's gangs: they are what forming them anew would make of them, and stand in the lists that they
// should.
Found check_gang(const State& state, const Spread& spread, const Gang& gang) {
  const auto broken = [&](const char* what) { return name_of(gang) + ": " + what; };
  if (gang.of != &spread) return broken("another tenant's clients");
  std::map<GpuId, Bytes> needs;
  std::vector<ClientId> members;
  for (const auto& [gpu_id, count] : spread.on) {
    for (const auto& [id, client] : state.gpus.at(gpu_id).of_tenant.at(gang.id.tenant).clients) {
      if (!is_member(gang, *client)) continue;
      members.push_back(id);
      needs[gpu_id] += std::max(need(*client), client->memory.resident) - immovable(*client);
    }
  }
  const auto same_member = [](const Gang::Member& member, ClientId id) { return member.client == id; };
  if (!std::equal(gang.members.begin(), gang.members.end(), members.begin(), members.end(), same_member))
    return broken("has other members");
  if (needs.size() != gang.on.size()) return broken("is on other GPUs");
  bool fits = true;
  for (const Gang::OnGpu& on : gang.on) {
    if (on.need != needs.at(on.gpu->id) || !on.gpu->gangs.by_need.contains({on.need, gang.id}))
      return broken("needs other amounts of memory");
    fits = fits && on.need <= on.gpu->gangs.room;
  }
  if (fits != gang.whole) return broken("fits together, or does not?");
  const bool in_use = phase_of(gang) != GangPhase::kOut;
  const bool holds =
      std::any_of(gang.members.begin(), gang.members.end(), [](const Gang::Member& member) { return member.is->holds_lock(); });
  if (in_use && !gang.in_turn) return broken("runs without a turn");
  if (gang.in_turn && !holds) return broken("has a turn and does not run");
  return std::nullopt;
}

// As the list of those that may have to leave for others has it: `known`, if no client of it has changed since it was listed.
Found check_turn(const Gang& gang, const Gang::OnGpu& on, bool known) {
  const auto broken = [&](const char* what) { return name_of(gang) + ": " + what; };
  const std::optional<TurnBegan>& listed = on.turn.began;
  const GangsHere& here = on.gpu->gangs;
  const auto is_listed = [&](const GangsByTurn& index, Instant TurnBegan::*of) {
    const auto at = index.find(turn_key(on.turn, of));
    return at != index.end() && at->second == &gang;
  };
  if (listed && (!is_listed(here.by_first, &TurnBegan::first) || !is_listed(here.by_last, &TurnBegan::last)))
    return broken("nobody sees that it may have to leave");
  if (!known) return std::nullopt;
  const TurnOnGpu turn = turn_on(gang, on, turn_began(gang));
  if (turn.placed != on.turn.placed || turn.began.has_value() != listed.has_value()) return broken("takes places, or does not?");
  if (turn.priority != on.turn.priority || turn.first != on.turn.first) return broken("leaves in another place than is known");
  if (listed && (turn.began->first < listed->first || turn.began->last < listed->last)) return broken("it may end sooner than is known");
  return std::nullopt;
}

size_t count_entries(const State& state, FlatMap<GangId, Gang*> GangsHere::*list) {
  size_t count = 0;
  for (const auto& [id, gpu] : state.gpus) count += (gpu.gangs.*list).size();
  return count;
}

// What steps keep of gangs, against what their clients say. Tenants of which a client has changed since are looked at in the next step.
Found check_gang_lists(const State& state) {
  const GangChanges& changes = state.gang_changes;
  size_t loading = 0, lacking = 0, settled = 0, mixed = 0, needs = 0, turns = 0, asking_back = 0;
  std::map<GpuId, size_t> placed;
  for (const auto& [id, gang] : state.gangs) {
    const auto broken = [&one = gang](const char* what) { return name_of(one) + ": " + what; };
    const auto spread = state.on_several.find(id.tenant);
    if (spread == state.on_several.end()) return broken("is on one GPU");
    if (!spread->second->to_form) {
      if (Found found = check_gang(state, *spread->second, gang)) return found;
    }
    loading += changes.loading.contains(id);
    if ((gang.in_turn && !gang.turn_start) != changes.loading.contains(id)) return broken("loads, or does not?");
    for (const Gang::OnGpu& on : gang.on) {
      const GangsHere& here = on.gpu->gangs;
      const GangStanding listed{here.lacking.contains(id), here.settled.contains(id), here.mixed.contains(id)};
      if (listed != on.standing) return broken("does not know its lists");
      if (!spread->second->to_list && on.standing != standing_of(gang, on.gpu->id)) return broken("stands otherwise than its lists say");
      if (Found found = check_turn(gang, on, !spread->second->to_list)) return found;
      turns += on.turn.began.has_value();
      placed[on.gpu->id] += on.turn.placed;
      lacking += listed.lacks;
      settled += listed.settled;
      mixed += listed.mixed;
      ++needs;
    }
  }
  for (const auto& [tenant, spread] : state.on_several) {
    const bool listed = changes.to_form.contains(tenant) == spread->to_form && changes.to_list.contains(tenant) == spread->to_list &&
                        changes.to_tell.contains(tenant) == spread->to_tell;
    if (!listed || spread->changes != &changes) return "the changes of tenant " + std::to_string(tenant) + " are not known";
    asking_back += spread->asking_back > 0;
    if ((spread->asking_back > 0) != changes.asking_back.contains(tenant)) return "a tenant asks for its places, or does not?";
  }
  size_t by_need = 0, by_first = 0, by_last = 0;
  for (const auto& [id, gpu] : state.gpus) {
    by_need += gpu.gangs.by_need.size();
    by_first += gpu.gangs.by_first.size();
    by_last += gpu.gangs.by_last.size();
    if (gpu.gangs.placed != placed[id]) return "others have places on GPU " + std::to_string(id) + " than is known of gangs";
  }
  const bool same = loading == changes.loading.size() && asking_back == changes.asking_back.size() &&
                    lacking == count_entries(state, &GangsHere::lacking) && settled == count_entries(state, &GangsHere::settled) &&
                    mixed == count_entries(state, &GangsHere::mixed) && needs == by_need && turns == by_first && turns == by_last;
  return same ? std::nullopt : Found("gangs are listed that are none");
}

// A gang that is put off stands in the lists that bring it back, and its clients wait for what these say.
Found check_put_off(const Gang& gang) {
  const auto broken = [&](const char* what) { return name_of(gang) + " is put off: " + what; };
  const Gang::PutOff& off = *gang.put_off;
  if (!gang.whole || phase_of(gang) != GangPhase::kOut) return broken("it runs, or is no gang");
  std::map<const Gpu*, Bytes> asked;
  for (const Gang::Member& member : gang.members) {
    const Client& client = *member.is;
    if (!client.waits()) continue;
    if (!client.indexed.queued.put_off) return broken("one of it is looked at");
    if (client.evictions.current || client.place.kept) return broken("more is to be said of one of it");
    if (client.wait.reason != (member.on == off.behind ? WaitReason::kQueue : WaitReason::kGang))
      return broken("one waits for something else");
    asked[member.on] += room_asked(client);
    if (!client.wait.for_memory && !on_gpu(gang, *member.on)->fits_while) return broken("one of it may come to wait for memory");
  }
  if (!asked.contains(off.behind) || !off.behind->gangs.put_off.behind.contains(off.place))
    return broken("nobody sees when it comes first");
  if (!asked.contains(off.no_room_on) || asked.at(off.no_room_on) != off.room) return broken("it asks for other room");
  if (!off.no_room_on->gangs.put_off.by_room.contains({off.room, gang.id})) return broken("nobody sees when there is room");
  if (off.low_on != nullptr && !off.low_on->gangs.put_off.low.contains({off.since, gang.id})) return broken("nobody sees its time come");
  bool before = true;
  for (const Gang::OnGpu& on : gang.on) {
    const GangsPutOff& here = on.gpu->gangs.put_off;
    before = before && on.gpu != off.behind;
    if (on.beside != (before && asked.contains(on.gpu)) || on.beside != here.beside.contains(off.place))
      return broken("nobody sees behind whom else it comes to wait");
    if (on.fits_while && !here.by_need.contains({*on.fits_while, gang.id})) return broken("nobody sees when it fits no more");
    if (off.promoted != here.promoted.contains({off.since, gang.id})) return broken("nobody sees when its time is over");
  }
  return std::nullopt;
}

Found check_put_off(const State& state) {
  size_t put_off = 0, behind = 0, by_room = 0, beside = 0, by_need = 0, low = 0, promoted = 0;
  for (const auto& [id, gang] : state.gangs) {
    if (!gang.put_off) continue;
    if (Found found = check_put_off(gang)) return found;
    ++put_off;
    for (const Gang::OnGpu& on : gang.on) {
      beside += on.beside;
      by_need += on.fits_while.has_value();
    }
    low += gang.put_off->low_on != nullptr;
    promoted += gang.put_off->promoted ? gang.on.size() : 0;
  }
  for (const auto& [id, gpu] : state.gpus) {
    const GangsPutOff& here = gpu.gangs.put_off;
    behind += here.behind.size(), by_room += here.by_room.size(), beside -= here.beside.size(), by_need -= here.by_need.size();
    low -= here.low.size(), promoted -= here.promoted.size();
  }
  const bool same = behind == put_off && by_room == put_off && beside == 0 && by_need == 0 && low == 0 && promoted == 0;
  return same ? std::nullopt : Found("gangs are put off that are not");
}

}  // namespace

// What is kept of gangs, so that it is not looked for.
std::optional<std::string> check_gangs(const State& state) {
  for (const auto& [gpu, around] : state.around) {
    const auto same_gpu = [](const Gpu* at, GpuId id) { return at->id == id; };
    const std::vector<GpuId> reached = reached_from(state, gpu);
    if (!std::equal(around->begin(), around->end(), reached.begin(), reached.end(), same_gpu))
      return "other GPUs are tied to GPU " + std::to_string(gpu) + " than it is known";
  }
  for (const auto& [tenant, spread] : state.spread) {
    const auto gang = state.gangs.find({tenant, 0});
    if (spread.gang != (gang == state.gangs.end() ? nullptr : &gang->second)) return "a tenant's gang is not the one that is known";
    const auto part = state.gangs.upper_bound({tenant, 0});
    const bool parted = part != state.gangs.end() && part->first.tenant == tenant;
    if (parted != (spread.gang != nullptr && spread.gang->parted)) return "gangs of a tenant's processes are not known";
    for (const auto& [gpu, count] : spread.on) {
      for (const auto& [id, client] : state.gpus.at(gpu).of_tenant.at(tenant).clients) {
        if (client->gang && client->indexed.spread != &spread) return "client " + std::to_string(id) + " does not know its tenant's gang";
      }
    }
  }
  if (Found found = check_gang_lists(state)) return found;
  return check_put_off(state);
}

}  // namespace nvshare::policy
