// Programs that share the GPU in different ways (ClientShares): those attached to one MPS server run at the same time, and the driver
// switches between them and all others, which costs a tenth of the work where both saturate the GPU. So they take turns, a slice each, and
// no memory moves for it: only where all of them fit together, and no compute limit applies. Whoever leaves gaps runs beside the others;
// until that is known, and whenever it is tried anew, it waits for its first turn no longer than Config::latency_target.
#include "policy/gangs/gangs.h"
#include "policy/sharing/sharing.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

constexpr Duration kSlice = kShareSlice;
constexpr Duration kLeast = 10 * kMillisecond;    // that a turn lasts where others are due
constexpr int kGapsToRunBeside = 2;               // turns in a row that its own choice ended
constexpr Duration kRunsBesideFor = 5 * kSecond;  // then it is tried again, with the next such turn for twice as long
constexpr Duration kRunsBesideMost = 20 * kSecond;
constexpr Duration kPauses = 10 * kMillisecond;  // who does not want a turn back within that, which others ended, was idle in it

constexpr Duration kBurstsEvery = 300 * kMillisecond;  // bursts are put one after the other, for
constexpr Duration kBurstsApart = 30 * kMillisecond;
constexpr Duration kBurstsLate = 10 * kMillisecond;  // what begins later is left out
constexpr Duration kBurstsMeet = kMillisecond / 2;   // that two of them overlap for, and not just the way of the messages
constexpr int kHeldMoments = 3;                      // in a row, and a client that had the lock all the time leaves gaps no more
constexpr int kHeldMomentsMeasured = 10;             // of one that is measured: only its next trial would find that it does leave them
constexpr int kSoonInRow = 2;  // wishes within a moment of the turn before: bursts that may meet others' again and again; requests do not
constexpr Duration kLongMoment = kHeldMoments * kBurstsApart;
// Of a client that is measured, while it is told to give the GPU up in its pauses. What waits for its turn does neither.
constexpr Duration kWatched = 500 * kMillisecond;  // that it had the lock or nothing to do, and it is judged by it
constexpr Duration kGappyPart = 4;                 // of that time without work: it leaves gaps
constexpr Duration kSteadyPart = 8;                // and until it is less than this part of it
constexpr Duration kWatchedLeast = kWatched / 5;   // of one that paused after it had worked for long
constexpr size_t kBurstsMost = 64;                 // clients: each hears of it twice

// In a gang it has its turns on several GPUs at once, for which no slice of one GPU may be waited for.
bool in_measured_turns(const Gpu& gpu, const Client& client) { return client.share.measured && gpu.share_trial.way == SharingWay::kTurns; }

Duration unused_in(const Client& client, Instant from, Instant now) {
  return client.share.unused + (client.holds_lock() || client.waits() ? 0 : now - std::max(client.past.released_at, from));
}

Duration used_in(const Client& client, Instant from, Instant now) {
  return client.share.used + (client.holds_lock() ? now - std::max(client.turn.granted_at, from) : 0);
}

// It cannot be measured, so it runs beside those of which it is known how they share.
bool runs_apart(const Gpu& gpu, const Client& client) { return !client.share.is_in_group() && gpu.share_trial.way == SharingWay::kTurns; }

uint64_t group_of(const Gpu& gpu, const Client& client) {
  return in_measured_turns(gpu, client) ? share_group_of(client.tenant) : client.share.group;
}

// Bursts of different groups are put apart. Together those that are measured have none, but the driver divides the GPU among their bursts
// as well. Under MPS bursts that overlap may gain by it, or lose: there a trial says so.
uint64_t burst_group_of(const Gpu& gpu, const Client& client) {
  const uint64_t group = group_of(gpu, client);
  const bool on_its_own = client.share.measured && (group == 0 || gpu.share_trial.spells.apart_is_cheap);
  return on_its_own ? share_group_of(client.tenant) : group;
}

// While turns are measured each group has as many slices within the spell as the others, and one at least.
Duration slice_of(const Gpu& gpu, size_t groups) {
  const ShareTrial& trial = gpu.share_trial;
  if (trial.phase == ShareTrial::Phase::kNone || trial.looks()) return kSlice;
  const auto sharers = static_cast<Duration>(groups);
  const Duration rounds = std::max<Duration>((kShareSpell + sharers * kSlice / 2) / (sharers * kSlice), 1);
  return std::max(kShareSpell / (sharers * rounds), 2 * kLeast);
}

bool holds_up(const Context& context, const Gpu& gpu, const Client& client) {
  return client.holds_lock() && takes_turns(context, gpu, client) && !drain_is_doubtful(context.state, client, context.now);
}

bool comes(const Context& context, const Gpu& gpu, const Client& client) {
  return client.waits() && takes_turns(context, gpu, client) && !cannot_have_it_soon(client.wait.reason) &&
         !client.drain.overstay.comes_last(context.now);
}

// Nothing but measurement says how it shares.
bool is_only_measured(const Client& client) { return client.share.measured && client.share.group == 0; }

// As far as is known: it runs beside the others, or ended its last turn by itself. Of one that is measured it is taken for granted until
// that is known; a pause of one that else works all the time tells nothing, nor do those between a server's requests.
bool leaves_gaps(const Context& context, const Gpu& gpu, const Client& client) {
  if (gang_of(context.state, client) != nullptr) return false;
  const ShareMember& share = client.share;
  if (is_only_measured(client)) return share.gappy && !gpu.share_trial.seldom.contains(client.id);
  return share.beside_until > context.now || share.gaps_in_row > 0 || (share.measured && share.gappy);
}

// Its bursts may meet others' again and again.
bool repeats_itself(const Context& context, const Gpu& gpu, const Client& client) {
  return leaves_gaps(context, gpu, client) && client.share.soon_in_row >= kSoonInRow && !runs_apart(gpu, client);
}

bool waits_for_burst(const Context& context, const Gpu& gpu, const Client& client) {
  if (!gpu.share_turn.bursts_apart() || context.now >= client.wait.since + kLeast || !repeats_itself(context, gpu, client)) return false;
  return std::any_of(gpu.holders.begin(), gpu.holders.end(), [&](const auto& entry) {
    return leaves_gaps(context, gpu, *entry.second) && burst_group_of(gpu, *entry.second) != burst_group_of(gpu, client);
  });
}

// A client that is told to give the GPU up once it is idle, and had it all the time again and again, saturates it by now: one request may
// last as long as a moment. Where the others were done soon, and nobody wanted the GPU any more, the moment tells as long as they did. Of
// one that was dropped in it, for memory or as it was paused, it says nothing, so that it begins anew.
void take_turns_again(const Context& context, Gpu& gpu, const ShareTurn::Moment& moment) {
  const bool early = context.now < moment.until;
  const int moments = early ? 0 : static_cast<int>((moment.apart_for + kBurstsApart - kLeast) / kBurstsApart);
  for (auto& [id, client] : gpu.clients) {
    if (moment.learns && moment.apart_for >= kLongMoment / 2) {
      // Waiting for another's burst tells nothing of its own.
      const Duration unused = unused_in(client, moment.began, context.now);
      const Duration known = used_in(client, moment.began, context.now) + unused;
      if (known >= kBurstsApart) client.share.set_gappy(unused >= known / kGappyPart, context.now);
      if (!client.share.gappy) gpu.share_trial.seldom.erase(id);
    }
    if (client.past.released_at > moment.began) client.share.held_moments = 0;
    if (!client.holds_lock() || !leaves_gaps(context, gpu, client) || client.turn.granted_at > moment.began) continue;
    client.share.held_moments += moments;
    if (client.share.held_moments < (is_only_measured(client) ? kHeldMomentsMeasured : kHeldMoments)) continue;
    client.share.held_moments = 0;
    client.share.beside_until = context.now;
    client.share.gaps_in_row = 0;
    client.share.set_gappy(false, context.now);
  }
}

// A client's burst is over, in a moment. Whoever waits and wanted the GPU before that burst would have ended by itself, had it not waited
// for one before it, would have met it. Only the first of each in the moment is as it comes by itself: the next come as those were put.
void see_who_met(const Context& context, Gpu& gpu, const Client& client, Instant worked_until) {
  ShareTurn& turn = gpu.share_turn;
  if (!turn.bursts_apart() || turn.moment->met || !leaves_gaps(context, gpu, client)) return;
  const Duration waited = client.turn.granted_at > turn.moment->began ? client.turn.granted_at - client.wait.since : 0;
  const Instant ended = worked_until - waited;
  turn.moment->met = std::any_of(gpu.waiting.begin(), gpu.waiting.end(), [&](const auto& entry) {
    const Client& other = *entry.second;
    return other.turn.granted_at <= turn.moment->began && other.wait.since + kBurstsMeet <= ended && repeats_itself(context, gpu, other) &&
           burst_group_of(gpu, other) != burst_group_of(gpu, client);
  });
}

// Each burst in a moment costs its program a hand-over: where each client had one, and none would have met another's, they are apart. Of
// one that does something and is not known to repeat itself the rest of the moment tells.
bool are_found_apart(const Context& context, const Gpu& gpu, const ShareTurn::Moment& moment) {
  if (moment.met || moment.learns) return false;
  bool any = false;
  for (const auto& [id, client] : gpu.clients) {
    if (!leaves_gaps(context, gpu, client) || runs_apart(gpu, client)) continue;
    if (!client.holds_lock() && !client.waits() && client.past.released_at + kBurstsEvery < moment.began) continue;  // it does nothing
    if (!repeats_itself(context, gpu, client) || client.waits() || client.turn.granted_at <= moment.began) return false;
    any = true;
  }
  return any;
}

void begin_moment(const Context& context, ShareTurn& turn, Duration lasts, bool learns) {
  turn.moment = {.learns = learns, .seen_at = context.now, .began = context.now, .until = context.now + lasts};
}

// Whether several groups want the GPU, of which a client leaves gaps, or may: then a moment may begin. In it all give the GPU up in each
// pause, which costs those that work all the time: where nothing but measurement says how they share, they are no reason for it.
bool bursts_meet(Context& context, Gpu& gpu) {
  const bool learns = gpu.share_turn.moment && gpu.share_turn.moment->learns;
  bool gaps = learns, several = false;
  std::optional<uint64_t> first;
  const auto suffices = [&](const auto& entry) {
    const Client& client = *entry.second;
    const bool leaves = leaves_gaps(context, gpu, client);
    gaps |= leaves;
    if (leaves || learns || client.share.group != 0) {
      const uint64_t group = burst_group_of(gpu, client);
      several |= group != first.value_or(group);
      first = group;
    }
    return gaps && several;
  };
  const bool meet =
      std::any_of(gpu.holders.begin(), gpu.holders.end(), suffices) || std::any_of(gpu.waiting.begin(), gpu.waiting.end(), suffices);
  if (!meet) return false;
  ShareTurn& turn = gpu.share_turn;
  if (context.now >= turn.next_moment) {
    // Only on time: else the request of one that seldom works would begin it, each time, and wait.
    const bool on_time = context.now < turn.next_moment + kBurstsLate;
    turn.next_moment = context.now + kBurstsEvery;
    if (on_time && !turn.moment) begin_moment(context, turn, kBurstsApart, false);
  }
  context.wake(gpu, turn.next_moment);
  return true;
}

// Where turns are tried, or were chosen, and all that use the GPU leave gaps, each burst is a turn: bursts of more work than the GPU can do
// meet again and again, however far apart they were put. One that used it lately counts: each pause of one that else works all the time
// would have the others told something else, twice. So nothing goes on where nobody, or one alone, used it lately.
bool bursts_are_turns(const Context& context, const Gpu& gpu) {
  const std::optional<std::vector<ClientId>>& mix = gpu.share_trial.seen;
  if (gpu.share_trial.way != SharingWay::kTurns || gpu.share_turn.fixed > 0 || gpu.clients.size() > kBurstsMost) return false;
  if (!mix || mix->size() < 2) return false;
  const auto leaves = [&](const auto& entry) { return leaves_gaps(context, gpu, *entry.second); };
  return std::all_of(mix->begin(), mix->end(), [&](ClientId id) { return gpu.clients.at(id).share.gappy; }) &&
         std::all_of(gpu.holders.begin(), gpu.holders.end(), leaves) && std::all_of(gpu.waiting.begin(), gpu.waiting.end(), leaves);
}

// The driver divides the GPU among bursts that overlap, so each takes longer and they overlap again the next time: programs that repeat
// themselves stay as they began. So for a moment, now and then, who leaves gaps waits for another's burst, which costs it a burst once.
// And only then is it seen whether they still leave gaps: a client that runs beside the others else keeps the lock.
void settle_bursts(Context& context, Gpu& gpu) {
  ShareTurn& turn = gpu.share_turn;
  if (turn.moment && turn.moment->apart) turn.moment->apart_for += context.now - turn.moment->seen_at;
  if (turn.moment &&
      (context.now >= turn.moment->until || (!bursts_are_turns(context, gpu) && are_found_apart(context, gpu, *turn.moment)))) {
    const ShareTurn::Moment moment = *std::exchange(turn.moment, std::nullopt);
    take_turns_again(context, gpu, moment);
  }
  const bool meet = gpu.clients.size() <= kBurstsMost && bursts_meet(context, gpu);
  const bool turns = bursts_are_turns(context, gpu);
  if (!turn.moment && turns) begin_moment(context, turn, kBurstsApart, false);
  if (!turn.moment) return;
  context.wake(gpu, turn.moment->until);
  std::vector<ClientId> comers;
  for (const auto& [id, client] : gpu.waiting) comers.push_back(id);
  turn.moment->seen_at = context.now;
  turn.moment->apart = (meet || turn.moment->learns || turns) &&
                       room_if(context.state, gpu, {.comers = comers, .dropping_released = false}, context.now).fits();
  if (!turn.moment->apart) return;
  for (const auto& [id, client] : gpu.waiting) {
    const Instant waited = client->wait.since + kLeast;
    if (context.now < waited) context.wake(gpu, waited);
  }
}

struct Sharers {
  std::vector<Client*> holders;
  std::optional<Instant> waits_since;  // the longest of them
  std::optional<Instant> brief_due;    // when the first of those that gave their last turn up themselves has waited long enough
};
using Groups = std::map<uint64_t, Sharers>;

Groups groups_on(Context& context, Gpu& gpu, std::vector<ClientId>* comers) {
  Groups groups;
  for (const auto& [grant, client] : gpu.holders) {
    if (client->share.beside_until > context.now) context.wake(gpu, client->share.beside_until);
    if (holds_up(context, gpu, *client)) groups[group_of(gpu, *client)].holders.push_back(client);
  }
  for (const auto& [id, client] : gpu.waiting) {
    if (!comes(context, gpu, *client)) continue;
    Sharers& sharers = groups[group_of(gpu, *client)];
    const Instant since = client->wait.since;
    const auto earlier = [since](std::optional<Instant> known) { return std::min(known.value_or(since), since); };
    sharers.waits_since = earlier(sharers.waits_since);
    if (client->share.leaves_by_choice) {
      const Instant due = since + (client->share.beside_for > 0 ? kLeast : context.state.config.latency_target);
      sharers.brief_due = std::min(sharers.brief_due.value_or(due), due);
    }
    comers->push_back(id);
  }
  return groups;
}

// Whose programs have waited longest, of all but one group; nullopt: of no other does any wait.
std::optional<uint64_t> next_of(const Groups& groups, std::optional<uint64_t> but) {
  std::optional<uint64_t> next;
  Instant since = 0;
  for (const auto& [group, sharers] : groups) {
    if (group == but || !sharers.waits_since || (next && *sharers.waits_since >= since)) continue;
    next = group;
    since = *sharers.waits_since;
  }
  return next;
}

// Of all but one group the one that goes first for its latency, and from when on.
struct Due {
  uint64_t group;
  Instant at;
};
std::optional<Due> first_due(const Groups& groups, uint64_t but) {
  std::optional<Due> due;
  for (const auto& [group, sharers] : groups) {
    if (group == but || !sharers.brief_due) continue;
    if (!due || *sharers.brief_due < due->at) due = {group, *sharers.brief_due};
  }
  return due;
}

Instant looked_at_again(const ShareTurn& turn, const Groups& groups, Duration slice) {
  const Instant slice_ends = turn.began + slice;
  const std::optional<Due> due = first_due(groups, *turn.group);
  return due ? std::min(slice_ends, std::max(due->at, turn.began + kLeast)) : slice_ends;
}

// Returns when the turn is to be looked at again.
Instant choose_turn(Context& context, ShareTurn& turn, const Groups& groups, Duration slice) {
  const auto runs = [&](uint64_t group) { return groups.contains(group) && !groups.at(group).holders.empty(); };
  const auto give_to = [&](uint64_t group) {
    turn.group = group, turn.began = context.now;
    return looked_at_again(turn, groups, slice);
  };
  if (!turn.group || !groups.contains(*turn.group)) {
    // A group that has the GPU already keeps it for a slice.
    const auto holder = std::find_if(groups.begin(), groups.end(), [](const auto& entry) {
      return std::any_of(entry.second.holders.begin(), entry.second.holders.end(), [](const Client* client) { return client->stays(); });
    });
    return give_to(holder != groups.end() ? holder->first : next_of(groups, std::nullopt).value_or(groups.begin()->first));
  }
  const bool others_run = std::any_of(groups.begin(), groups.end(),
                                      [&](const auto& entry) { return entry.first != *turn.group && !entry.second.holders.empty(); });
  if (!runs(*turn.group) && others_run) turn.began = context.now;  // until they have left
  const std::optional<Due> due = first_due(groups, *turn.group);
  if (due && context.now >= std::max(due->at, turn.began + kLeast)) return give_to(due->group);
  if (context.now < turn.began + slice) return looked_at_again(turn, groups, slice);
  if (const auto next = next_of(groups, turn.group)) return give_to(*next);
  return context.now + kMillisecond;
}

// A client that leaves gaps and has the lock since then leaves them no more: nobody asks it to give the GPU up.
void see_who_holds_on(Context& context, Gpu& gpu) {
  for (const auto& [grant, client] : gpu.holders) {
    if (!in_measured_turns(gpu, *client) || !client->share.gappy) continue;
    const Duration held = client->share.known_after > 0 ? client->share.known_after : kWatched;
    const Instant known = std::max(client->turn.granted_at, client->share.watched_from) + held;
    if (context.now < known) {
      context.wake(gpu, known);
      continue;
    }
    client->share.set_gappy(false, context.now);
    client->share.watch(context.now);
  }
}

void end_turn(Context& context, Gpu& gpu) {
  ShareTurn& turn = gpu.share_turn;
  if (turn.group) turn.lingers_until = context.now + kPauses;
  turn.group.reset();
  turn.lingers = context.now < turn.lingers_until;
  if (turn.lingers) context.wake(gpu, turn.lingers_until);
}

void run_together(ShareTurn& turn) {
  turn.group.reset();
  turn.lingers = false;
  turn.lingers_until = 0;
}

}  // namespace

bool all_are_measured(const Gpu& gpu) { return gpu.share_turn.told == 0 && gpu.share_trial.measured == std::ssize(gpu.clients); }

bool takes_turns(const Context& context, const Gpu& gpu, const Client& client) {
  const bool beside =
      in_measured_turns(gpu, client) ? client.share.gappy : runs_apart(gpu, client) || client.share.beside_until > context.now;
  return !beside && gang_of(context.state, client) == nullptr;
}

// What is known of who leaves gaps may be of work that is over: together nobody is asked to give the GPU up, so nothing tells.
Duration begin_long_moment(const Context& context, Gpu& gpu) {
  begin_moment(context, gpu.share_turn, kLongMoment, true);
  watch_gaps(context, gpu);
  gpu.share_turn.next_moment = context.now + kBurstsEvery;
  return kLongMoment;
}

void watch_gaps(const Context& context, Gpu& gpu) {
  for (auto& [id, client] : gpu.clients) client.share.watch(context.now);
}

void take_shares(Gpu& gpu, Client& client, const ClientShares& event) {
  gpu.share_turn.members += (event.group != 0 || event.measured) - client.share.is_in_group();
  gpu.share_turn.told += (event.group != 0) - (client.share.group != 0);
  gpu.share_turn.fixed += (event.group != 0 && !event.measured) - client.share.is_fixed();
  gpu.share_trial.measured += event.measured - client.share.measured;
  client.share.gappy |= event.measured && !client.share.measured;
  client.share.group = event.group;
  client.share.measured = event.measured;
}

void forget_shares(Gpu& gpu, const Client& client) {
  // What somebody else took of the GPU is there again.
  gpu.share_trial.works_changed |= gpu.share_trial.apart.erase(client.id) > 0;
  gpu.share_turn.members -= client.share.is_in_group();
  gpu.share_turn.told -= client.share.group != 0;
  gpu.share_turn.fixed -= client.share.is_fixed();
  gpu.share_trial.measured -= client.share.measured;
}

void ShareMember::note_gap(Instant now) {
  leaves_by_choice = true;
  held_moments = 0;
  if (beside_until > now) {  // it still does
    beside_until = now + beside_for;
    return;
  }
  ++gaps_in_row;
  if (gaps_in_row < kGapsToRunBeside && beside_for == 0) return;
  gaps_in_row = 0;
  beside_for = std::clamp(2 * beside_for, kRunsBesideFor, kRunsBesideMost);
  beside_until = now + beside_for;
}

void ShareMember::watch(Instant from) {
  watched_from = from;
  used = unused = 0;
}

void ShareMember::judge_gaps(Instant now) {
  const Duration watched = used + unused;
  if (watched < kWatched && (gappy || unused < kWatched / kGappyPart)) return;
  const bool was_gappy = gappy;
  set_gappy(unused >= watched / (gappy ? kSteadyPart : kGappyPart), now);
  // A pause of one that else works all the time: the smaller its part of that time, the sooner it is taken to work so again.
  const Duration worked = now - unused - steady_since;
  if (gappy && !was_gappy && worked > 0) {
    const double part = std::min(static_cast<double>(unused) / static_cast<double>(worked), 1.0);  // it may have paused for hours
    known_after = std::max(static_cast<Duration>(part * kWatched), kWatchedLeast);
  }
  watch(now);
}

void ShareMember::set_gappy(bool leaves, Instant now) {
  if (!leaves && gappy) steady_since = now;
  if (leaves != gappy) known_after = 0;
  gappy = leaves;
}

void note_share_turn(const Context& context, Gpu& gpu, Client& client, bool by_choice, Instant worked_until) {
  if (!gpu.share_turn.watches_gaps()) return;
  see_who_met(context, gpu, client, worked_until);
  ShareMember& share = client.share;
  share.leaves_by_choice = by_choice;
  share.used += context.now - std::max(client.turn.granted_at, share.watched_from);
  if (in_measured_turns(gpu, client)) return share.judge_gaps(context.now);
  if (!by_choice) return;
  if (gpu.share_turn.group || share.beside_until > context.now) return share.note_gap(context.now);
  share.gaps_in_row = 1;  // nobody else takes turns, so that only moments can tell; in them a shorter pause is enough
  share.held_moments = 0;
}

// Of a turn that others ended only the next wish tells whether it was in use.
void note_share_wish(const Context& context, const Gpu& gpu, Client& client) {
  if (gpu.share_turn.members == 0) return;
  client.share.soon_in_row = context.now - client.past.last_used < kBurstsApart ? client.share.soon_in_row + 1 : 0;
  client.share.unused += context.now - std::max(client.past.released_at, client.share.watched_from);
  if (in_measured_turns(gpu, client)) {
    client.share.leaves_by_choice |= context.now - client.past.last_used >= kPauses;
    return client.share.judge_gaps(context.now);
  }
  if (client.share.leaves_by_choice) return;
  if (context.now - client.past.last_used >= kPauses) return client.share.note_gap(context.now);
  client.share.gaps_in_row = 0;
  client.share.leaves_by_choice = client.share.beside_for > 0;  // this once: it may have been interrupted in a short burst
  client.share.beside_for = 0;
}

void settle_share_turns(Context& context, Gpu& gpu) {
  ShareTurn& turn = gpu.share_turn;
  if (turn.members == 0 || gpu.quota.mode != GpuMode::kUnlimited) {
    turn.moment.reset();
    turn.watches = false;
    return run_together(turn);
  }
  turn.watches = gpu.share_trial.measured > 0 && gpu.share_trial.way == SharingWay::kTurns;
  if (turn.watches) see_who_holds_on(context, gpu);
  settle_bursts(context, gpu);
  if (all_are_measured(gpu) && gpu.share_trial.way == SharingWay::kTogether) return run_together(turn);  // they are one group
  std::vector<ClientId> comers;
  Groups groups = groups_on(context, gpu, &comers);
  if (groups.size() < 2) return end_turn(context, gpu);
  if (!room_if(context.state, gpu, {.comers = comers, .dropping_released = false}, context.now).fits()) return run_together(turn);
  turn.lingers = false;
  const Instant ends = choose_turn(context, turn, groups, slice_of(gpu, groups.size()));
  for (const auto& [group, sharers] : groups) {
    if (group == *turn.group) continue;
    for (Client* client : sharers.holders) {
      if (!client->stays()) continue;
      if (client->drain.backoff.holds(context.now)) {
        context.wake(gpu, client->drain.backoff.retry_at);
        continue;
      }
      client->turn.interrupted = false;
      ask_to_drop(context, gpu, *client, "programs that share the GPU in another way have their turn");
    }
  }
  context.wake(gpu, std::max(ends, context.now + kMillisecond));
}

bool has_share_turn(const Context& context, const Gpu& gpu, const Client& client) {
  if (waits_for_burst(context, gpu, client)) return false;
  if (!gpu.share_turn.group || !takes_turns(context, gpu, client)) return true;
  const uint64_t group = group_of(gpu, client);
  if (group != *gpu.share_turn.group) return false;
  return std::none_of(gpu.holders.begin(), gpu.holders.end(),
                      [&](const auto& entry) { return group_of(gpu, *entry.second) != group && holds_up(context, gpu, *entry.second); });
}

}  // namespace nvshare::policy
