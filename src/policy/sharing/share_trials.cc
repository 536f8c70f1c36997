// Whether clients whose tenants leave the choice to the scheduler (ClientShares::measured) share a GPU together or in turns: each way is
// tried for a short spell, what they submitted meanwhile is counted, and the better way stays until the clients in use of the GPU change.
// Clients keep the lock while nobody takes turns, also those that do nothing: there a short look tells who works, between trials.
// A client's counts weigh by its own rate alone, so that one which lies decides no more than two that go from nothing to all they can: by
// what it says of itself, and by what servers then seem to take of it.
#include <cmath>
#include <limits>

#include "policy/gangs/gangs.h"
#include "policy/sharing/sharing.h"

namespace nvshare::policy {
namespace {

constexpr Duration kSettles = 60 * kMillisecond;    // after each change of way, until submissions go on evenly
constexpr Duration kSpell = kShareSpell;            // that is counted
constexpr int kPieces = 5;                          // of a spell: who did nothing in one of them, together, had nothing to do
constexpr Duration kPatience = 200 * kMillisecond;  // for answers
constexpr Duration kStays = 200 * kMillisecond;     // the same clients use the GPU for so long before they are measured
constexpr Duration kLately = 2 * kSecond;           // who used it within that still counts as one that does
constexpr Duration kAgain = 60 * kSecond;           // of the same clients
constexpr Duration kSoonAgain = 5 * kSecond;        // where a server was busy all through the first trial, by chance
constexpr Duration kAfterFailure = 10 * kSecond;    // answers that did not come
constexpr int kSpareMost = 3;                       // trials at once when clients come and go
constexpr Duration kSpareEvery = 10 * kSecond;      // and one more
constexpr Duration kLookEvery = 800 * kMillisecond;
constexpr Duration kLook = 40 * kMillisecond;  // lasts so long
constexpr Duration kStill = 5 * kSecond;       // who submitted nothing in any look of that time no longer works, or submits seldom
constexpr int64_t kOdd = 8;                    // times as much or as little as in the last trial, in
constexpr int kOddLooks = 2;                   // in a row: other work, so that all is measured anew
constexpr int64_t kOddLeast = 8;               // submissions
constexpr int kLooksToWork = 4;                // in a row, and one that worked seldom does so all the time
constexpr int kLooksToWorkMost = 32;           // each time that one does asks for twice as many: a busy server's requests often meet
constexpr size_t kClientsMost = 16;            // with more of them a spell is too short for turns
constexpr uint64_t kWorkMost = 1 << 22;        // in a spell: ten million submissions a second
constexpr Instant kForever = std::numeric_limits<Instant>::max();
constexpr int64_t kBetter = kGainParts * 103 / 100;  // of the work done together: a win of turns
constexpr int64_t kPlain = kGainParts * 8 / 100;     // more or less needs no second trial, the first time
constexpr int64_t kKept = kGainParts * 102 / 100;    // less is a win over turns: where both do the same, nobody has to wait
constexpr int64_t kCheap = kGainParts * 85 / 100;    // of bursts that wait for each other all the time: a tenth of that costs little
constexpr int kWinsFirst = 2;                        // in a row, and another way is taken
constexpr int kWinsMost = 5;                         // each change asks for one more the next time: if spells tell little, changes are few

SharingWay other_than(SharingWay way) { return way == SharingWay::kTurns ? SharingWay::kTogether : SharingWay::kTurns; }

// Cannot be measured, or is bound to another GPU: it runs beside the others whatever these do.
bool stands_apart(const Context& context, const Client& client) {
  return !client.share.measured ? client.share.group == 0 : gang_of(context.state, client) != nullptr;
}

// The clients that use the GPU now or did lately and can be measured, by id; nullopt: there are too many, or some that cannot beside some
// that were told how they share, with whom those take turns.
struct Mix {
  std::optional<std::vector<ClientId>> clients;
  Instant until = kForever;  // then one that used the GPU lately no longer counts
};

Mix mix_on(const Context& context, Gpu& gpu) {
  Mix found;
  std::vector<ClientId> mix;
  size_t in_use = gpu.holders.size() + gpu.waiting.size();
  if (in_use > kClientsMost) return found;
  bool all = true;
  const auto count = [&](const Client& client) {
    if (stands_apart(context, client)) {
      all &= gpu.share_turn.told == 0;
      gpu.share_trial.works_changed |= gpu.share_trial.apart.insert(client.id).second;
    } else if (client.share.measured) {
      mix.push_back(client.id);
    }
  };
  for (const auto& [grant, client] : gpu.holders) count(*client);
  for (const auto& [id, client] : gpu.waiting) count(*client);
  for (auto at = gpu.lately.rbegin(); at != gpu.lately.rend() && context.now - at->first < kLately; ++at) {
    found.until = at->first + kLately;
    if (++in_use > kClientsMost) return found;
    count(gpu.clients.at(at->second));
  }
  if (!all) return found;
  std::sort(mix.begin(), mix.end());
  found.clients = std::move(mix);
  return found;
}

bool of_several(const Gpu& gpu, const std::vector<ClientId>& mix) {
  return std::any_of(mix.begin(), mix.end(), [&](ClientId id) { return gpu.clients.at(id).tenant != gpu.clients.at(mix.front()).tenant; });
}

void ask(Context& context, ShareTrial& trial, bool counts) {
  ++trial.question;
  trial.asked_at = context.now;
  for (const ClientId id : trial.mix) context.actions.push_back(SendAskProgress{id, trial.question, counts});
}

bool all_answered(const Gpu& gpu, const ShareTrial& trial) {
  return std::all_of(trial.mix.begin(), trial.mix.end(), [&](ClientId id) {
    const auto at = gpu.clients.find(id);
    return at != gpu.clients.end() && at->second.share.progress.question == trial.question;
  });
}

void enter(Context& context, Gpu& gpu, ShareTrial::Phase phase, Duration lasts) {
  gpu.share_trial.phase = phase;
  gpu.share_trial.until = context.now + lasts;
  context.wake(gpu, gpu.share_trial.until);
}

void set_way(const Context& context, Gpu& gpu, SharingWay way) {
  if (way == SharingWay::kTurns && gpu.share_trial.way != way) watch_gaps(context, gpu);
  gpu.share_trial.way = way;
}

void give_up(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  std::erase_if(trial.mix, [&](ClientId id) { return !gpu.clients.contains(id); });
  ask(context, trial, false);
  trial.phase = ShareTrial::Phase::kNone;
  set_way(context, gpu, trial.chosen);
  trial.failed = true;
  trial.ended_at = context.now;
}

// Nobody works: that says nothing about either way. Together a look tells when somebody does again; in turns, whoever idles gives the GPU
// up.
void put_off(Context& context, Gpu& gpu) {
  give_up(context, gpu);
  ShareTrial& trial = gpu.share_trial;
  trial.unsure = false;
  if (trial.confirms) {
    trial.wins = 0;            // and is no trial of those that are left
  } else if (!trial.second) {  // else it has cost what a trial costs
    trial.spare = std::min(trial.spare + 1, kSpareMost);
  }
  trial.looked_at = context.now;
  if (trial.chosen == SharingWay::kTurns) return;
  trial.failed = false;
  trial.works.clear();
  trial.seldom.clear();
}

// Of the first of two answers, the second of which is in ShareMember::progress.
std::map<ClientId, Progress> answers_of(const Gpu& gpu, const ShareTrial& trial) {
  std::map<ClientId, Progress> answers;
  for (const ClientId id : trial.mix) answers[id] = gpu.clients.at(id).share.progress;
  return answers;
}

// Submissions per thousand seconds: comparable between ways, not between clients.
int64_t rate_of(const Progress& from, const Progress& to, uint64_t most) {
  const auto work = static_cast<int64_t>(to.work > from.work ? std::min<uint64_t>(to.work - from.work, most) : 0);
  return work * 1'000 * kSecond / std::max(to.at - from.at, kMillisecond);
}

// In turns it takes a round of them.
void begin_look(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  const auto takes_turn = [&](ClientId id) { return takes_turns(context, gpu, gpu.clients.at(id)); };
  const Duration round = kShareSlice * std::count_if(trial.mix.begin(), trial.mix.end(), takes_turn);
  ask(context, trial, true);
  enter(context, gpu, ShareTrial::Phase::kLooks, trial.chosen == SharingWay::kTurns ? std::max(round, kLook) : kLook);
}

// The mix changed meanwhile.
void leave_look(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  std::erase_if(trial.mix, [&](ClientId id) { return !gpu.clients.contains(id); });
  ask(context, trial, false);
  trial.phase = ShareTrial::Phase::kNone;
  trial.looked_at = context.now;
}

// Whether some client that works all the time did much more or much less than in the last trial: then its work is another.
bool is_odd(const Gpu& gpu, const ShareTrial& trial) {
  return std::any_of(trial.mix.begin(), trial.mix.end(), [&](ClientId id) {
    const Client& client = gpu.clients.at(id);
    const auto rates = trial.spells.rates.find(id);
    if (rates == trial.spells.rates.end() || trial.seldom.contains(id) || client.share.gappy) return false;
    const Progress& from = trial.spells.from.at(id);
    const Progress& to = client.share.progress;
    const int64_t due = rates->second[trial.chosen == SharingWay::kTurns ? 1 : 0];
    const int64_t least = kOddLeast * 1'000 * kSecond / std::max(to.at - from.at, kMillisecond);
    const int64_t rate = rate_of(from, to, kWorkMost);
    return due > 0 && rate > 0 && std::max(rate, due) >= least && (rate >= kOdd * due || due >= kOdd * rate);
  });
}

// A client that begins to work makes another mix, as does one that has not worked for long, but for those that are known to submit seldom.
void end_look(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  trial.phase = ShareTrial::Phase::kNone;
  trial.looked_at = context.now;
  trial.spells.odd_looks = is_odd(gpu, trial) ? trial.spells.odd_looks + 1 : 0;
  trial.works_changed |= trial.spells.odd_looks >= kOddLooks;
  if (trial.chosen == SharingWay::kTurns) return;  // one that waits submits nothing
  for (const ClientId id : trial.mix) {
    const bool works = gpu.clients.at(id).share.progress.work != trial.spells.from.at(id).work;
    const auto seldom = trial.seldom.find(id);
    if (seldom != trial.seldom.end()) {
      seldom->second = works ? seldom->second + 1 : 0;
      int& needed = trial.spells.looks_to_work.try_emplace(id, kLooksToWork).first->second;
      if (seldom->second < needed) continue;
      needed = std::min(2 * needed, kLooksToWorkMost);
      trial.seldom.erase(seldom);
      trial.works_changed = true;
    }
    if (works) trial.works_changed |= trial.works.insert_or_assign(id, context.now).second;
  }
  if (trial.works_changed || trial.spare == 0) return;
  const auto is_still = [&](const auto& entry) { return !trial.seldom.contains(entry.first) && context.now - entry.second >= kStill; };
  trial.works_changed = std::erase_if(trial.works, is_still) > 0;
}

int wins_needed(const ShareTrial& trial) { return std::min(kWinsFirst + trial.changes, kWinsMost); }

// The first time that the other way wins, or may, it is tried again at once; not where others came or went, or who does so often would have
// the rest tried all the time.
bool is_to_confirm(const ShareTrial& trial, const std::vector<ClientId>& mix) {
  return mix == trial.mix && !trial.works_changed && (trial.wins == 1 || trial.unsure) && trial.changes == 0 && !trial.failed;
}

void forget_wins(ShareTrial& trial) {
  trial.wins = trial.changes = 0;
  trial.unsure = trial.spells.by_chance = trial.spells.apart_is_cheap = false;
  trial.spells.chances = 1;
  trial.gains.clear();
}

void begin(Context& context, Gpu& gpu, std::vector<ClientId> mix) {
  ShareTrial& trial = gpu.share_trial;
  trial.confirms = is_to_confirm(trial, mix);
  if (mix != trial.mix || trial.works_changed) forget_wins(trial);
  if (mix != trial.mix) trial.spells.looks_to_work.clear();
  trial.mix = std::move(mix);
  trial.second = false;
  trial.spells.rates.clear();
  trial.spells.odd_looks = 0;
  for (auto& pieces : trial.spells.counted) pieces.clear();
  // A server that works for all of a spell by chance still works seldom: the moment that begins now tells, and looks do.
  std::erase_if(trial.seldom, [&](const auto& entry) { return !std::binary_search(trial.mix.begin(), trial.mix.end(), entry.first); });
  for (auto& [id, looks] : trial.seldom) looks = 0;
  trial.left.clear();
  trial.failed = trial.works_changed = false;
  if (!trial.confirms) --trial.spare;
  ask(context, trial, true);
  // Together those that leave gaps are told first from those that do not: only these take turns.
  set_way(context, gpu, SharingWay::kTogether);
  enter(context, gpu, ShareTrial::Phase::kSettles, begin_long_moment(context, gpu));
}

void begin_spell(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  trial.spells.from.clear();
  trial.pieces = kPieces;
  ask(context, trial, true);
  enter(context, gpu, ShareTrial::Phase::kCounts, kSpell / kPieces);
}

// With the answers of when the piece began; those of when it ends are asked for.
void end_piece(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  trial.spells.piece_from = answers_of(gpu, trial);
  if (trial.spells.from.empty()) trial.spells.from = trial.spells.piece_from;
  const bool last = --trial.pieces == 0;
  ask(context, trial, !last || !trial.second);
  enter(context, gpu, last ? ShareTrial::Phase::kEnds : ShareTrial::Phase::kCounts, last ? 0 : kSpell / kPieces);
}

// Whether anybody did anything in the piece that is over: a pause of all would count for the one way or the other. In turns one whose
// kernels take long may submit nothing for so long, but then others wait for their turn. A client that holds the lock alone keeps it, also
// idle.
bool note_piece(const Context& context, const Gpu& gpu, ShareTrial& trial) {
  if (trial.spells.from.empty()) return true;  // none is
  const auto waits_for_turn = [&](const auto& entry) { return takes_turns(context, gpu, *entry.second); };
  bool works = trial.way == SharingWay::kTurns && std::any_of(gpu.waiting.begin(), gpu.waiting.end(), waits_for_turn);
  PieceRates& counted = trial.spells.counted[trial.second ? 1 : 0].emplace_back();
  for (const ClientId id : trial.mix) {
    counted[id] = rate_of(trial.spells.piece_from.at(id), gpu.clients.at(id).share.progress, kWorkMost / kPieces);
    const bool did = gpu.clients.at(id).share.progress.work != trial.spells.piece_from.at(id).work;
    if (!did && trial.way == SharingWay::kTogether) trial.seldom[id] = 0;
    works |= did;
  }
  return works;
}

void count_spell(Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  for (const ClientId id : trial.mix)
    trial.spells.rates[id][trial.second ? 1 : 0] = rate_of(trial.spells.from.at(id), gpu.clients.at(id).share.progress, kWorkMost);
}

// A client that did nothing in one of the spells, or in a piece of the one together, works seldom: its requests fall into the spells by
// chance, and would weigh as much as a program that works all the time.
bool works_seldom(const ShareTrial& trial, ClientId id, const std::array<int64_t, 2>& rates) {
  return rates[0] == 0 || (trial.second && rates[1] == 0) || trial.seldom.contains(id);
}

// One alone that works all the time has nobody to take turns with, unless all leave gaps: then bursts do. Where the spell together leaves
// no more, turns are not tried.
bool can_compare(const Gpu& gpu, const ShareTrial& trial) {
  int steady = 0, bursty = 0, seldom = 0;
  for (const auto& [id, rates] : trial.spells.rates) {
    const bool works = rates[0] + rates[1] > 0;
    if (works_seldom(trial, id, rates)) {
      seldom += works;
    } else {
      ++(gpu.clients.at(id).share.gappy ? bursty : steady);
    }
  }
  return steady >= 2 || (steady + seldom == 0 && bursty >= 2);
}

// In turns whoever has nothing to do gives the GPU up. So one that waits, or has its first turn as the spell ends, had something to do:
// what it did says nothing, nor is it one that works seldom.
ShareGain gain_in(const Gpu& gpu, const ShareTrial& trial) {
  SpellPieces counted = trial.spells.counted;
  std::map<ClientId, int> seldom = trial.seldom;
  for (const auto& [id, rates] : trial.spells.rates) {
    const Client& client = gpu.clients.at(id);
    const bool had_no_turn = rates[0] > 0 && rates[1] == 0 && !trial.seldom.contains(id) && (client.waits() || client.holds_lock());
    if (had_no_turn) {
      for (std::vector<PieceRates>& spell : counted)
        for (PieceRates& piece : spell) piece.erase(id);
    } else if (works_seldom(trial, id, rates)) {
      seldom.try_emplace(id, 0);
    }
  }
  return gain_of(counted, seldom);
}

// The first time one trial does if it is plain, and two that say so together; then the other way has to win again and again.
bool is_to_change(ShareTrial& trial, const ShareGain& gain, bool compared) {
  if (gain.is_vague()) {
    trial.wins = 0;
    trial.unsure = false;
    return false;
  }
  const bool in_turns = trial.chosen == SharingWay::kTurns;
  const int64_t ratio = compared ? trial.gains.ratio() : kGainParts;
  const bool wins = in_turns ? ratio < kKept : ratio > kBetter;
  trial.wins = wins ? trial.wins + 1 : 0;
  trial.unsure = compared && !wins && trial.gains.trials() == 1 && !gain.is_sure_of(ratio - (in_turns ? kKept : kBetter));
  if (trial.changes > 0 || !compared) return trial.wins >= wins_needed(trial);
  const int64_t ahead = in_turns ? kGainParts - gain.ratio : gain.ratio - kGainParts;
  return wins && (trial.gains.trials() > 1 || (ahead > kPlain && gain.is_sure_of(ahead)));
}

void note_choice(Context& context, const Gpu& gpu, bool changes, bool compared) {
  const ShareTrial& trial = gpu.share_trial;
  const bool in_turns = trial.chosen == SharingWay::kTurns;
  const auto percent = std::lround(trial.gain * 100);
  const std::string why =
      compared ? "they get " + std::to_string(percent) + " % of the work done that they do " + (in_turns ? "together" : "in turns")
               : "fewer than two of them work all the time";
  context.note(changes ? Note::Level::kInfo : Note::Level::kDebug, gpu, 0,
               std::to_string(trial.mix.size()) + " programs " + (changes ? "share the GPU " : "still share the GPU ") +
                   (in_turns ? "in turns: " : "together: ") + why);
}

// One that leaves gaps and worked in each piece, beside those that work all the time: it left them less of both ways than it does most of
// the time. A trial that met one, as any that says nothing, is made again soon, once.
void see_chance(const Gpu& gpu, ShareTrial& trial, const ShareGain& gain) {
  const auto is_busy = [&](const auto& entry) {
    return !works_seldom(trial, entry.first, entry.second) && gpu.clients.at(entry.first).share.gappy;
  };
  const bool meets_one = std::any_of(trial.spells.rates.begin(), trial.spells.rates.end(), is_busy);
  trial.spells.by_chance = trial.spells.chances > 0 && (gain.is_vague() || (trial.gains.trials() <= kWinsFirst && meets_one));
  trial.spells.chances -= trial.spells.by_chance;
}

void decide(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  const bool compared = can_compare(gpu, trial);
  const ShareGain gain = compared ? gain_in(gpu, trial) : ShareGain{};
  if (compared && !gain.is_vague()) trial.gains.add(gain);
  const auto leaves_gaps = [&](ClientId id) { return gpu.clients.at(id).share.gappy; };
  trial.spells.apart_is_cheap = compared && trial.gains.ratio() >= kCheap && std::all_of(trial.mix.begin(), trial.mix.end(), leaves_gaps);
  const bool changes = is_to_change(trial, gain, compared);
  trial.spells.by_chance = false;
  if (compared && !changes && !trial.unsure && trial.wins == 0) see_chance(gpu, trial, gain);
  if (changes) {
    trial.chosen = other_than(trial.chosen);
    trial.wins = 0;
    ++trial.changes;
  }
  if (!trial.second) ask(context, trial, false);
  trial.phase = ShareTrial::Phase::kNone;
  set_way(context, gpu, trial.chosen);
  trial.ended_at = trial.looked_at = context.now;
  ++trial.trials;
  trial.works.clear();
  for (const auto& [id, rates] : trial.spells.rates) {
    if (rates[0] + rates[1] > 0) trial.works[id] = context.now;
  }
  std::erase_if(trial.seldom, [&](const auto& entry) { return !trial.works.contains(entry.first); });  // those do nothing at all
  const double ratio = compared ? static_cast<double>(trial.gains.ratio()) / kGainParts : 1;
  trial.gain = trial.chosen == SharingWay::kTurns ? ratio : 1 / std::max(ratio, 0.01);
  note_choice(context, gpu, changes, compared);
}

void go_on(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  if (!all_answered(gpu, trial)) {
    if (context.now > trial.asked_at + kPatience) return give_up(context, gpu);
    return context.wake(gpu, trial.asked_at + kPatience + 1);
  }
  if (context.now < trial.until) return context.wake(gpu, trial.until);
  switch (trial.phase) {
    case ShareTrial::Phase::kNone:
      return;
    case ShareTrial::Phase::kSettles:
      return begin_spell(context, gpu);
    case ShareTrial::Phase::kCounts:
      if (!note_piece(context, gpu, trial)) return put_off(context, gpu);
      return end_piece(context, gpu);
    case ShareTrial::Phase::kEnds:
      if (!note_piece(context, gpu, trial)) return put_off(context, gpu);
      count_spell(gpu);
      if (trial.second || !can_compare(gpu, trial)) return decide(context, gpu);
      trial.second = true;
      for (const auto& [id, looks] : trial.seldom) gpu.clients.at(id).share.set_gappy(true, context.now);
      set_way(context, gpu, SharingWay::kTurns);
      return enter(context, gpu, ShareTrial::Phase::kSettles, kSettles);
    case ShareTrial::Phase::kLooks:
      trial.spells.from = answers_of(gpu, trial);
      ask(context, trial, false);
      return enter(context, gpu, ShareTrial::Phase::kHasLooked, 0);
    case ShareTrial::Phase::kHasLooked:
      end_look(context, gpu);
      return context.wake(gpu, context.now + kLookEvery);
  }
}

// Those that did nothing when they were measured may come and go.
bool has_lost_idle_ones(const ShareTrial& trial, const std::vector<ClientId>& mix) {
  if (mix.size() >= trial.mix.size() || trial.failed) return false;
  const auto same = [](ClientId id, const auto& entry) { return id == entry.first; };
  return std::equal(mix.begin(), mix.end(), trial.works.begin(), trial.works.end(), same);
}

// A client that comes back after so long may do something else by now.
void see_mix(ShareTrial& trial, const std::optional<std::vector<ClientId>>& mix, Instant now) {
  if (mix == trial.seen) return;
  trial.seen = mix;
  trial.seen_since = now;
  if (!mix) return;
  for (const ClientId id : trial.mix) {
    if (!std::binary_search(mix->begin(), mix->end(), id)) {
      trial.left.try_emplace(id, now);
    } else if (const auto left = trial.left.find(id); left != trial.left.end()) {
      trial.works_changed |= !trial.seldom.contains(id) && now - left->second >= kStill - kLately;
      trial.left.erase(left);
    }
  }
}

// Those that work seldom decided nothing, and may come and go as well.
bool is_as_measured(const ShareTrial& trial, std::vector<ClientId> mix) {
  if (trial.failed) return false;
  std::vector<ClientId> measured = trial.mix;
  const auto seldom = [&](ClientId id) { return trial.seldom.contains(id); };
  std::erase_if(measured, seldom);
  std::erase_if(mix, seldom);
  return mix == measured && mix.size() >= 2;
}

// When the next trial of that mix is due.
Instant due_at(const ShareTrial& trial, const std::vector<ClientId>& mix) {
  const bool same = mix == trial.mix;
  const bool confirms = is_to_confirm(trial, mix);
  Instant due = trial.seen_since + kStays;
  const Duration again = trial.failed ? kAfterFailure : trial.spells.by_chance ? kSoonAgain : kAgain;
  if (same && !confirms && !trial.works_changed) due = std::max(due, trial.ended_at + again);
  if (trial.spare == 0 && !confirms) due = std::max(due, trial.spare_at + kSpareEvery);
  return due;
}

// Where nothing can be measured; what was is forgotten.
void run_together(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  if (trial.phase != ShareTrial::Phase::kNone) give_up(context, gpu);
  trial.way = trial.chosen = SharingWay::kTogether;
  trial.mix.clear();
  trial.works.clear();
  trial.apart.clear();
  forget_wins(trial);
  trial.gain = 0;
}

void earn_spare(ShareTrial& trial, Instant now) {
  while (trial.spare < kSpareMost && now - trial.spare_at >= kSpareEvery) {
    ++trial.spare;
    trial.spare_at += kSpareEvery;
  }
  if (trial.spare == kSpareMost) trial.spare_at = now;
}

}  // namespace

const char* name_of(SharingWay way) { return way == SharingWay::kTurns ? "turns" : "together"; }

void take_progress(const Context& context, Gpu& gpu, Client& client, const ClientProgressed& event) {
  const ShareTrial& trial = gpu.share_trial;
  if (trial.phase == ShareTrial::Phase::kNone || event.question != trial.question || client.share.progress.question == event.question)
    return;
  client.share.progress = {event.question, event.work, context.now};
}

void settle_share_trials(Context& context, Gpu& gpu) {
  ShareTrial& trial = gpu.share_trial;
  gpu.share_turn.trials_rest_until = 0;
  if (trial.measured == 0) return run_together(context, gpu);
  const bool tries = trial.phase != ShareTrial::Phase::kNone;
  const Mix found = mix_on(context, gpu);
  const std::optional<std::vector<ClientId>>& mix = found.clients;
  const auto rest = [&](Instant until) { gpu.share_turn.trials_rest_until = std::min(until, found.until); };
  see_mix(trial, mix, context.now);
  const bool possible = mix && gpu.quota.mode == GpuMode::kUnlimited;
  if (!possible) {
    run_together(context, gpu);
    return rest(kForever);
  }
  if (tries && *mix == trial.mix) return go_on(context, gpu);
  if (tries && !trial.looks()) return give_up(context, gpu);
  if (tries) leave_look(context, gpu);
  if (mix->size() < 2 || !of_several(gpu, *mix)) return rest(kForever);
  earn_spare(trial, context.now);
  if (has_lost_idle_ones(trial, *mix) || is_as_measured(trial, *mix)) trial.mix = *mix;
  const Instant due = due_at(trial, *mix);
  if (context.now < due) {
    context.wake(gpu, due);
    // Under MPS groups take turns together as well, and who idles gives the GPU up.
    if (trial.chosen == SharingWay::kTogether && gpu.share_turn.group) return;
    if (*mix != trial.mix || trial.failed) return rest(due);
    const Instant look = trial.looked_at + kLookEvery;
    if (context.now >= look) return begin_look(context, gpu);
    context.wake(gpu, look);
    return rest(std::min(due, look));
  }
  std::vector<ClientId> comers;
  for (const auto& [id, client] : gpu.waiting) comers.push_back(id);
  if (!room_if(context.state, gpu, {.comers = comers, .dropping_released = false}, context.now).fits()) return rest(kForever);
  begin(context, gpu, *mix);
}

// Where all are measured, run together, and none is asked to give the GPU up: then there are no turns to settle either, and moments for
// bursts have wakes.
bool sharing_rests(const Gpu& gpu, Instant now) {
  const ShareTurn& turn = gpu.share_turn;
  if (turn.members == 0) return true;
  const ShareTrial& trial = gpu.share_trial;
  return all_are_measured(gpu) && now < turn.trials_rest_until && trial.phase == ShareTrial::Phase::kNone &&
         trial.way == SharingWay::kTogether && !turn.group && !turn.moment;
}

}  // namespace nvshare::policy
