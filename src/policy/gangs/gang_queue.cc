// Gangs that are put off: they wait behind others on their GPUs, and for memory, so that a step need not look at them, however many they
// are. A gang is brought back when one of its clients changes (note_member()), when its place may be another, when there may be room for
// it, and where limits, or clients that crowd each other out, ask for more. Until then it comes in its place where nobody comes first yet
// (InOrder), as any other.
#include "policy/gangs/gangs.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

// What its clients that wait on a GPU ask for there.
struct Asked {
  bool any = false;  // of them wait
  bool for_memory = true;
  Bytes least = 0, most = 0;  // room: it surely does not fit into less, it surely fits into so much
};

// Nullopt: more is to be said of one of them than that, but for this, it would run.
std::optional<Asked> asked_on(const Gang& gang, const Gang::OnGpu& on, WaitReason reason) {
  Asked asked;
  for (size_t i = on.begin; i < on.end; ++i) {
    const Client& client = *gang.members[i].is;
    if (!client.waits()) continue;
    if (client.wait.reason != reason || client.place.kept || client.prefetches.current) return std::nullopt;
    asked.any = true;
    asked.for_memory = asked.for_memory && client.wait.for_memory;
    asked.least += room_asked(client);
    asked.most += charge(client) - immovable(client);
  }
  return asked;
}

// Whether it is put off for want of room, where, and behind whom; and where it fits.
bool find_want_of_room(Gang& gang, const Looks& looks, const Gpu& behind, Gang::PutOff& off) {
  for (Gang::OnGpu& on : gang.on) {
    const std::optional<Asked> asked = asked_on(gang, on, on.gpu == &behind ? WaitReason::kQueue : WaitReason::kGang);
    if (!asked) return false;
    on.fits_while.reset();
    if (!asked->any) continue;
    const RoomCount& now = looks.at(on.gpu->id)->now;
    if (off.no_room_on == nullptr && asked->least > now.room_left()) {
      off.no_room_on = on.gpu;
      off.room = asked->least;
    }
    if (asked->for_memory) continue;
    if (asked->most > now.room_for_sure()) return false;
    on.fits_while = asked->most;
  }
  return off.no_room_on != nullptr;
}

// How long its place is the same: as long as nobody else's priority changes, and until the time puts it before others.
bool find_rank(const Context& context, const Gang& gang, Gang::PutOff& off) {
  const QueueKeys keys = keys_of(gang);
  if (keys.ends || keys.last_until > context.now) return false;
  off.since = keys.waiting_since;
  int highest = keys.priority;
  for (const Gang::OnGpu& on : gang.on) {
    const PlaceTerms terms = place_terms_on(context, *on.gpu);
    highest = std::max(highest, terms.highest);
    if (off.low_on == nullptr && context.now - off.since < terms.promote_after) off.low_on = on.gpu;
  }
  const bool is_low = keys.priority < highest;
  off.promoted = is_low && off.low_on == nullptr;
  if (!is_low) off.low_on = nullptr;
  return true;
}

void list_put_off(const Context& context, Gang& gang) {
  const Gang::PutOff& off = *gang.put_off;
  off.behind->gangs.put_off.behind.emplace(off.place, &gang);
  off.no_room_on->gangs.put_off.by_room.emplace({off.room, gang.id}, &gang);
  if (off.low_on != nullptr) off.low_on->gangs.put_off.low.emplace({off.since, gang.id}, &gang);
  const auto member_at = [&](size_t at) { return gang.members.begin() + static_cast<ptrdiff_t>(at); };
  bool before = true;
  for (Gang::OnGpu& on : gang.on) {
    GangsPutOff& here = on.gpu->gangs.put_off;
    here.highest = place_terms_on(context, *on.gpu).highest;
    before = before && on.gpu != off.behind;
    on.beside =
        before && std::any_of(member_at(on.begin), member_at(on.end), [](const Gang::Member& member) { return member.is->waits(); });
    if (on.beside) here.beside.emplace(off.place, &gang);
    if (on.fits_while) here.by_need.emplace({*on.fits_while, gang.id}, &gang);
    if (off.promoted) here.promoted.emplace({off.since, gang.id}, &gang);
  }
  for (const Gang::Member& member : gang.members) set_put_off(*member.is, true);
}

void bring_back_all_on(Gpu& gpu) {
  for (const auto& [key, spread] : gpu.gangs.by_need) bring_back(*spread->gang);
}

}  // namespace

void put_off(const Context& context, const Looks& looks, Gang& gang, const Place& place, Gpu& behind) {
  bring_back(gang);
  Gang::PutOff off{.place = place, .behind = &behind};
  if (gang.id.process != 0 || !find_want_of_room(gang, looks, behind, off) || !find_rank(context, gang, off)) return;
  gang.put_off = off;
  list_put_off(context, gang);
}

void bring_back(Gang& gang) {
  if (!gang.put_off) return;
  const Gang::PutOff off = *std::exchange(gang.put_off, std::nullopt);
  off.behind->gangs.put_off.behind.erase(off.place);
  off.no_room_on->gangs.put_off.by_room.erase({off.room, gang.id});
  if (off.low_on != nullptr) off.low_on->gangs.put_off.low.erase({off.since, gang.id});
  for (Gang::OnGpu& on : gang.on) {
    GangsPutOff& here = on.gpu->gangs.put_off;
    if (std::exchange(on.beside, false)) here.beside.erase(off.place);
    if (on.fits_while) here.by_need.erase({*on.fits_while, gang.id});
    on.fits_while.reset();
    if (off.promoted) here.promoted.erase({off.since, gang.id});
  }
  for (const Gang::Member& member : gang.members) set_put_off(*member.is, false);
  gang.of->changes->brought_back.push_back(&gang);
}

void bring_back_all(const Gpus& gpus) {
  for (Gpu* gpu : gpus) bring_back_all_on(*gpu);
}

void bring_back_due(const Context& context, Gpu& gpu) {
  if (gpu.gangs.by_need.empty()) return;
  GangsPutOff& here = gpu.gangs.put_off;
  const PlaceTerms terms = place_terms_on(context, gpu);
  if (std::exchange(here.highest, terms.highest) != terms.highest) bring_back_all_on(gpu);
  while (!here.low.empty() && context.now - here.low.begin()->first.first >= terms.promote_after) bring_back(*here.low.begin()->second);
  while (!here.promoted.empty() && context.now - here.promoted.rbegin()->first.first < terms.promote_after)
    bring_back(*here.promoted.rbegin()->second);
}

void bring_back_that_may_fit(const Context& context, Looks& looks, const Gpus& gpus) {
  for (Gpu* gpu : gpus) {
    GangsPutOff& here = gpu->gangs.put_off;
    if (here.by_room.empty() && here.by_need.empty()) continue;
    const Look& look = look_at(looks[gpu->id], context, *gpu);
    const Bytes room = look.now.room_left(), for_sure = here.by_need.empty() ? 0 : look.now.room_for_sure();
    while (!here.by_room.empty() && here.by_room.begin()->first.first <= room) bring_back(*here.by_room.begin()->second);
    while (!here.by_need.empty() && here.by_need.rbegin()->first.first > for_sure) bring_back(*here.by_need.rbegin()->second);
    if (!look.pressed.empty()) bring_back_all_on(*gpu);
  }
}

}  // namespace nvshare::policy
