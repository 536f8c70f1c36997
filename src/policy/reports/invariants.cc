#include <limits>

#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/reports/reports.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

using Broken = std::optional<std::string>;

Broken fault(const Client& client, const char* what) {
  return "client " + std::to_string(client.id) + " (" + name_of(client.state) + "): " + what;
}

Broken check_pause(const State& state, const Gpu& gpu, const Client& client) {
  if ((client.state == ClientState::kPaused) != (client.turn.pause.since && client.stays())) return fault(client, "pauses, or does not?");
  if (client.turn.pause.since && client.turn.start) return fault(client, "is billed for a pause");
  if (client.state != ClientState::kPaused) return std::nullopt;
  if (!gpu.wake.at) return fault(client, "pauses and nobody watches");
  for (const auto& [id, other] : gpu.clients) {
    if (id == client.id || (!other.stays() && !other.waits())) continue;
    if (client.indexed.tenancy->account == nullptr || Exclusive(state.config, gpu)(*client.indexed.tenancy->account))
      return fault(client, "pauses beside others that take turns with it");
    if (other.waits() && other.wait.for_memory) return fault(client, "pauses while another waits for memory");
    if (may_run(state, client) != Verdict::kRun) return fault(client, "pauses, and might not go on beside others");
  }
  return std::nullopt;
}

Broken check_memory(const Gpu& gpu, const Client& client) {
  if (client.holds_lock() && client.budget.bytes < client.memory.resident) return fault(client, "more is resident than its budget");
  if (!client.holds_lock() && client.budget.bytes != 0) return fault(client, "has a budget without the lock");
  if (client.budget.dirty) return fault(client, "a budget was not sent");
  if (!client.holds_lock() && client.growth) return fault(client, "waits for memory without the lock");
  if (client.growth && client.unmet > 0) return fault(client, "asks for memory, and its last turn's growth counts as well");
  if (client.memory.allocated < client.memory.resident) return fault(client, "more is resident than allocated");
  const bool moves_out = client.evictions.current.has_value();
  if (client.holds_lock() && moves_out) return fault(client, "memory is moved out of a lock holder");
  const std::optional<Prefetch>& prefetch = client.prefetches.current;
  if (prefetch && (client.holds_lock() || moves_out))
    return fault(client, "memory comes in without the lock, and it has that or moves out");
  if (prefetch.has_value() != (gpu.prefetch.client == client.id)) return fault(client, "memory comes in, and nobody knows");
  if (prefetch && !prefetch->overdue && !gpu.wake.at) return fault(client, "memory comes in, and nobody watches");
  return std::nullopt;
}

Broken check_gang_place(const State& state, const Client& client) {
  if (!client.place.kept && (client.place.leaves || client.place.lost)) return fault(client, "a place that it does not keep is in doubt");
  if (!client.place.kept) return std::nullopt;
  if (client.holds_lock()) return fault(client, "keeps a place beside its lock");
  if (!gang_of(state, client)) return fault(client, "keeps a place and is in no gang");
  if (client.evictions.current) return fault(client, "moves out and keeps its place");
  return std::nullopt;
}

Broken check_drain(const State& state, const Gpu& gpu, const Client& client) {
  if (client.drain.step != DrainStep::kAlone && !state.asked_together.contains({gpu.id, client.id}))
    return fault(client, "drains with others and is not among those");
  if (client.drain.is_held() && client.state != ClientState::kDropping) return fault(client, "was told to hold on and does not leave");
  if (client.state == ClientState::kDropping && !gpu.wake.at) return fault(client, "is dropping and nobody watches");
  return std::nullopt;
}

Broken check_suspended_tenant(const State& state, const Gpu& gpu, const Client& client) {
  if (client.wait.while_suspended && (client.holds_lock() || client.waits())) return fault(client, "asks, and waits or runs besides");
  if (!state.suspended.contains(client.tenant))
    return client.wait.while_suspended ? fault(client, "asks, and nobody serves it") : std::nullopt;
  if (client.waits() && !others_run(state, client)) return fault(client, "waits though its tenant is suspended");
  if (!client.stays()) return std::nullopt;
  const Gang* gang = gang_of(state, client);
  if (gang == nullptr && client.drain.backoff.failures == 0) return fault(client, "runs on though its tenant is suspended");
  const bool watched =
      gang == nullptr ? gpu.wake.at.has_value() : std::any_of(gang->members.begin(), gang->members.end(), [&](const Gang::Member& member) {
        return state.gpus.at(member.gpu).wake.at.has_value();
      });
  return watched ? std::nullopt : fault(client, "runs on though its tenant is suspended, and nobody watches");
}

Broken check_wait(const State& state, const Gpu& gpu, const Client& client) {
  if (!client.waits()) return std::nullopt;
  if (client.wait.reason == WaitReason::kNone) return fault(client, "waits for no reason");
  if (client.wait.reason == WaitReason::kTurn && !gpu.wake.at) return fault(client, "waits for a turn that has no end");
  if (client.wait.reason != WaitReason::kLimit && client.wait.reason != WaitReason::kShare) return std::nullopt;
  if (gpu.wake.at || gang_of(state, client) != nullptr) return std::nullopt;
  const bool moves = std::any_of(gpu.clients.begin(), gpu.clients.end(),
                                 [](const auto& entry) { return entry.second.holds_lock() || entry.second.evictions.current.has_value(); });
  // A gang that has left this GPU and not yet the others, or waits here for what moves on another, is decided about when that is over.
  const bool gang_decides = std::any_of(state.gangs.begin(), state.gangs.end(), [&](const auto& entry) {
    const Gang& gang = entry.second;
    return std::any_of(gang.members.begin(), gang.members.end(), [&](const Gang::Member& member) {
      return member.gpu == gpu.id && (gang.in_turn || gpu.clients.at(member.client).wait.reason == WaitReason::kGang);
    });
  });
  // Where memory keeps everybody from running, whose share comes next is decided when memory changes.
  constexpr Instant kLater = std::numeric_limits<Instant>::max() / 2;  // when what did not move may be asked again
  const bool decided = !moves && !gang_decides && room_if(state, gpu, {.comers = only(client)}, kLater).fits();
  return decided ? fault(client, "waits for its share and nobody watches") : std::nullopt;
}

Broken check(const State& state, const Gpu& gpu, const Client& client) {
  const bool holder = client.stays() || client.state == ClientState::kDropping || client.state == ClientState::kUnresponsive;
  if (holder != client.holds_lock()) return fault(client, "its state and its grant do not agree");
  if (state.find(client.id) != &client) return fault(client, "is not where the index says");
  if (Broken found = check_pause(state, gpu, client)) return found;
  if (Broken found = check_memory(gpu, client)) return found;
  if (Broken found = check_gang_place(state, client)) return found;
  if (Broken found = check_drain(state, gpu, client)) return found;
  if (Broken found = check_suspended_tenant(state, gpu, client)) return found;
  return check_wait(state, gpu, client);
}

// What is kept beside the clients, against what they say one by one.
std::optional<std::string> check_indexes(const State& state, const Gpu& gpu) {
  Bytes departed = 0;
  for (const auto& [id, part] : gpu.departed.by_client()) departed += part.bytes;
  if (departed != gpu.departed.bytes()) return "the sum of departed memory is not that of the departed";
  std::map<TenantId, std::map<ClientId, const Client*>> of_tenant;
  for (const auto& [id, client] : gpu.clients) {
    of_tenant[client.tenant][id] = &client;
    const auto home = state.homes.find(client.tenant);
    if (home == state.homes.end() || !home->second.contains(gpu.id)) return "where a tenant has clients is not known";
    const auto spread = state.spread.find(client.tenant);
    if (client.gang && (spread == state.spread.end() || !spread->second.on.contains(gpu.id))) return "a tenant's GPUs are not all known";
  }
  const auto same_entry = [](const auto& a, const auto& b) { return a.first == b.first && a.second == b.second; };
  const auto same = [&](const auto& a, const auto& b) {
    const auto& known = b.second.clients;
    return a.first == b.first && std::equal(a.second.begin(), a.second.end(), known.begin(), known.end(), same_entry);
  };
  if (!std::equal(of_tenant.begin(), of_tenant.end(), gpu.of_tenant.begin(), gpu.of_tenant.end(), same))
    return "the index of tenants is not that of the clients";
  for (const auto& [tenant, counts] : state.spread) {
    const auto here = counts.on.find(gpu.id);
    const auto at = gpu.of_tenant.find(tenant);
    int64_t count = 0;
    if (at != gpu.of_tenant.end()) {
      count = std::count_if(at->second.clients.begin(), at->second.clients.end(), [](const auto& entry) { return entry.second->gang; });
    }
    if (count != (here == counts.on.end() ? 0 : here->second)) return "the count of a tenant's clients on a GPU is wrong";
  }
  return std::nullopt;
}

std::optional<std::string> check_roles(const Gpu& gpu) {
  size_t holders = 0, waiting = 0, unsettled = 0, takers = 0;
  uint64_t holders_hash = 0;
  std::map<int, int64_t> priorities;
  int64_t grouped = 0, told = 0, fixed = 0, measured = 0;
  for (const auto& [id, client] : gpu.clients) {
    const auto broken = [&, id = id](const char* what) { return "client " + std::to_string(id) + " " + what; };
    if (client.indexed.home != &gpu) return broken("is indexed elsewhere");
    if (client.indexed.roles != roles_of(client)) return broken("is not indexed as what it is");
    const auto has = [id = id, own = &client](const FlatMap<ClientId, Client*>& index) {
      const auto at = index.find(id);
      return at != index.end() && at->second == own;
    };
    const auto holder = gpu.holders.find(client.grant);
    if (client.holds_lock() && (holder == gpu.holders.end() || holder->second != &client)) return broken("is missing among the holders");
    if (client.waits() && !has(gpu.waiting)) return broken("is missing among the waiting");
    if (client.indexed.roles.unsettled && !has(gpu.unsettled)) return broken("is missing among the unsettled");
    if (client.indexed.roles.unmet != has(gpu.lockless.unmet)) return broken("lacked memory in its last turn, or not?");
    if (client.place.kept != has(gpu.lockless.keepers) || client.place != client.indexed.place) return broken("keeps a place, or not?");
    if (client.indexed.asks_back != (client.place.kept && client.waits())) return broken("asks for its place, or does not?");
    if (takes_slack(client) != client.indexed.slack_key.has_value()) return broken("is to be given slack, or is not?");
    if (client.indexed.slack_key &&
        (*client.indexed.slack_key > slack_of(client) || !gpu.slack_takers.contains({*client.indexed.slack_key, id})))
      return broken("has less slack than the index says");
    if (need(client) - immovable(client) > gpu.recounted.needs_most) return broken("needs more than the most that is known");
    takers += client.indexed.slack_key.has_value();
    if (client.holds_lock()) holders_hash += hash_of(id);
    holders += client.holds_lock();
    waiting += client.waits();
    unsettled += client.indexed.roles.unsettled;
    ++priorities[client.priority];
    grouped += client.share.group != 0 || client.share.measured;
    told += client.share.group != 0;
    fixed += client.share.is_fixed();
    measured += client.share.measured;
  }
  if (holders_hash != gpu.holders_hash) return "the hash of the holders of GPU " + std::to_string(gpu.id) + " is not that of its holders";
  for (const auto& [last_used, id] : gpu.lately) {
    const auto at = gpu.clients.find(id);
    if (at == gpu.clients.end() || at->second.indexed.roles.lately != last_used)
      return "client " + std::to_string(id) + " had the lock at another time";
  }
  if (holders != gpu.holders.size() || waiting != gpu.waiting.size() || unsettled != gpu.unsettled.size() ||
      takers != gpu.slack_takers.size())
    return "an index of GPU " + std::to_string(gpu.id) + " has clients that are no such";
  if (grouped != gpu.share_turn.members || told != gpu.share_turn.told || fixed != gpu.share_turn.fixed ||
      measured != gpu.share_trial.measured)
    return "the clients of GPU " + std::to_string(gpu.id) + " that share in their own way are not as many as is known";
  if (priorities != gpu.priorities) return "the priorities of GPU " + std::to_string(gpu.id) + " are not those of its clients";
  return std::nullopt;
}

// The counts of each tenant's clients, and the accounts' ways to them.
std::optional<std::string> check_tenancies(const Gpu& gpu) {
  int64_t working = 0;
  size_t accounts_here = 0, rest = 0;
  for (const auto& [tenant, tenancy] : gpu.of_tenant) {
    Tenancy counted;
    for (const auto& [id, client] : tenancy.clients) {
      if (client->indexed.tenancy != &tenancy) return "client " + std::to_string(id) + " counts for another tenant";
      const bool works = client->holds_lock() && client->turn.start;
      counted.does.waits += client->waits();
      counted.does.holds += client->holds_lock();
      counted.does.stays += client->stays();
      counted.does.works += works;
      counted.does.works_on += works && client->stays();
      counted.does.busy += client->waits() || (client->holds_lock() && !client->turn.pause.since);
    }
    if (counted.does != tenancy.does || counted.does.waits != std::ssize(tenancy.waiting))
      return "the counts of tenant " + std::to_string(tenant) + " are not those of its clients";
    working += tenancy.does.works > 0;
  }
  if (working != gpu.tenants_working) return "the number of tenants that work is wrong";
  for (const Account& account : gpu.quota.accounts) {
    const auto at = gpu.of_tenant.find(account.tenant);
    if (at != gpu.of_tenant.end() && at->second.account != &account) return "a tenant has lost its account";
    if (account.here != (at == gpu.of_tenant.end() ? nullptr : &at->second)) return "an account has lost its clients";
    if (account.does != (account.here == nullptr ? Doing() : account.here->does)) return "an account has lost what its clients do";
    accounts_here += account.here != nullptr;
  }
  for (const Account& account : gpu.quota.left.accounts) {
    if (account.here != nullptr || gpu.of_tenant.contains(account.tenant) || gpu.quota.accounts.find(account.tenant) != nullptr)
      return "an account that was left belongs to a tenant that is here";
    if (account.slice.runs || account.active) return "an account that was left is in use";
    const auto at = gpu.quota.left.resting.find({account.last_busy, account.tenant});
    if (account.seen.rests != (at != gpu.quota.left.resting.end())) return "an account that was left rests, or not?";
    if (account.seen.rests && (account.throttled || account.yields || account.seen.rests_since > gpu.quota.left.times.size()))
      return "an account that was left rests, and should not";
    rest += account.seen.rests;
  }
  const Left& left = gpu.quota.left;
  if (rest != left.resting.size() || rest + left.looked_at.size() != left.accounts.size())
    return "the accounts that rest are not all known";
  return accounts_here == gpu.quota.accounts_here ? std::nullopt : std::optional<std::string>("the number of accounts is wrong");
}

// Those that are ranked, and those apart: against all of them.
std::optional<std::string> check_ranking(const Config& config, const Gpu& gpu) {
  const Changes& changes = gpu.quota.changes;
  const Ranking& ranking = changes.ranking;
  const Exclusive is_exclusive(config, gpu);
  size_t ranked = 0, apart = 0;
  std::array<int64_t, 101> ceilings{};
  for (const Account& account : gpu.quota.accounts) {
    const auto broken = [&](const char* what) { return "tenant " + std::to_string(account.tenant) + " in the ranking: " + what; };
    const bool stands_apart = apart < changes.apart.size() && changes.apart[apart] == &account;
    if (stands_apart == account.ranked.is) return broken("stands apart, or not?");
    apart += stands_apart;
    if (!account.ranked.is && waits_for_turn(is_exclusive, account) && !account.seen.to_rank) return broken("is missing");
    if (!account.ranked.is) continue;
    ++ranked;
    ++ceilings[static_cast<size_t>(account.limit.ceiling)];
    const auto place = ranking.places.find({account.ranked.start, account.tenant, nullptr});
    if (place == ranking.places.end() || place->account != &account) return broken("has no place");
    if (!waits_for_turn(is_exclusive, account) || !may_stay_ranked(ranking, account)) return broken("does not only wait for its turn");
    const Account now = unranked(gpu.quota, account);
    if (may_be_held(is_exclusive, now)) return broken("may be held back");
    if (account.ranked.since > ranking.times.size()) return broken("is ahead of the time");
  }
  const bool same = ranked == ranking.places.size() && apart == changes.apart.size() && ceilings == ranking.ceilings;
  return same ? std::nullopt : std::optional<std::string>("the ranking has others");
}

// What the last look at each account found, against the account. Those that have changed since are looked at in the next step.
std::optional<std::string> check_changes(const Config& config, const Gpu& gpu) {
  const Quota& quota = gpu.quota;
  const Changes& changes = quota.changes;
  int64_t limited = 0;
  size_t active = 0, present = 0, runs = 0, gone = 0, to_hold = 0, to_rank = 0, foreseen = 0;
  const Exclusive is_exclusive(config, gpu);
  for (const Account& account : quota.accounts) {
    const Seen& seen = account.seen;
    const auto broken = [&](const char* what) { return "the account of tenant " + std::to_string(account.tenant) + ": " + what; };
    limited += seen.limited;
    active += seen.active_until != 0 && changes.active.contains({seen.active_until, account.tenant});
    present += seen.present_until != 0 && changes.present.contains({seen.present_until, account.tenant});
    runs += seen.runs;
    gone += seen.gone;
    to_hold += seen.to_hold;
    to_rank += seen.to_rank;
    foreseen += account.rhythm.foreseen;
    if (account.slice.runs && !seen.runs) return broken("runs, and is not judged");
    const bool held = account.throttled || account.yields;
    if (quota.limited && held && std::find(changes.held.begin(), changes.held.end(), &account) == changes.held.end())
      return broken("is held back, and is not watched");
    if (quota.limited && may_be_held(is_exclusive, account) && !seen.held && !changes.balances && !seen.to_judge)
      return broken("owes, and is not looked at");
    const Verdict verdict = may_run(is_exclusive, quota, account);
    if (quota.limited && account.does.waits > 0 && !seen.to_hold && !changes.hold_all && !knows_verdict(gpu, account, verdict))
      return broken("has clients that may run, or do not know why not");
    if (seen.to_look || changes.all) continue;
    const bool here = account.here != nullptr, busy = account.does.busy > 0;
    const Duration idle = changes.looked_at - last_busy(quota, account);
    if (seen.busy != busy) return broken("is busy, or not?");
    if (seen.limited != (here && account.limit.is_limited())) return broken("is limited, or not?");
    if (account.active != (busy || (here && account.used && idle < kActiveGrace))) return broken("is active, or not?");
    if (account.present != (busy || (here && account.used && idle < kPresentGrace))) return broken("is present, or not?");
    if (seen.active_until != (account.active && !busy ? account.last_busy + kActiveGrace : 0)) return broken("stays active for how long?");
    if (seen.present_until != (account.present && !busy ? account.last_busy + kPresentGrace : 0))
      return broken("stays present for how long?");
    if (seen.gone == here) return broken("has clients, or not?");
    if (quota.shares_known && !account.shares_are_known()) return broken("its share is that of other terms");
  }
  const bool rotates = quota.mode == GpuMode::kRotation;
  if (quota.changes.counted && quota.changes.counted->rotates == rotates && *quota.changes.counted != count_present(config, gpu))
    return "others are present on GPU " + std::to_string(gpu.id) + " than are counted";
  const bool same = limited == changes.limited && active == changes.active.size() && present == changes.present.size() &&
                    runs == changes.runs.size() && gone == changes.gone.size() && to_hold == changes.to_hold.size() &&
                    to_rank == changes.to_rank.size() && foreseen == changes.foreseen.size();
  return same ? std::nullopt : std::optional<std::string>("accounts are looked at that are none");
}

// What the queue has of those that wait, against what they say; the order itself is as of the last time that it was asked for.
std::optional<std::string> check_queue(const Gpu& gpu) {
  const Queue& queue = gpu.queue;
  size_t placed = 0, several = 0, looked_at = 0, unplaced = 0, unnoted = 0, below = 0, late = 0, ordinary = 0, free = 0, ending = 0;
  uint32_t waiters = 0, memory_waiters = 0;
  for (const auto& [id, client] : gpu.waiting) {
    const QueueEntry& entry = client->indexed.queued;
    const auto broken = [&, id = id](const char* what) { return "client " + std::to_string(id) + " in the queue: " + what; };
    if (!entry.waits) return broken("is missing");
    const QueueKeys& keys = entry.keys;
    if (keys.ends != client->last_turn.due || keys.woke != client->wait.woke || keys.priority != client->priority ||
        keys.last_used != client->past.last_used || keys.arrival != client->wait.arrival ||
        keys.last_until != client->drain.overstay.last_until)
      return broken("stands where another would");
    const bool fresh = std::find(queue.fresh.begin(), queue.fresh.end(), client) != queue.fresh.end();
    const bool of_several = client->indexed.spread != nullptr && client->indexed.spread->changes != nullptr;
    if (entry.of_several != of_several) return broken("is of a tenant on several GPUs, or not?");
    if (of_several ? entry.place || fresh : entry.place.has_value() == fresh) return broken("has a place, or none, or both");
    if (queue.looked_at.contains(id) != (of_several && !entry.put_off)) return broken("is put off, or not?");
    if (entry.place && queue.order.at(*entry.place) != client) return broken("another has its place");
    if (queue.rooms_kept && (entry.room != room_asked(*client) || !queue.by_room.contains({entry.room, id})))
      return broken("asks for other room");
    if (queue.rooms_kept && is_put_off(*client) == queue.unplaced.contains(id)) return broken("is looked at, or should be");
    if (entry.unnoted != wait_note_due(*client)) return broken("why it waits is noted, or should be");
    placed += entry.place.has_value();
    several += of_several;
    looked_at += of_several && !entry.put_off;
    unplaced += queue.rooms_kept && !is_put_off(*client);
    unnoted += entry.unnoted.has_value();
    below += entry.low || entry.promoted;
    late += queue.late.contains({client->drain.overstay.last_until, id});
    ordinary += queue.ordinary.contains({client->wait.passed_at_start, id});
    waiters += client->wait.reason != WaitReason::kLimit;
    memory_waiters += client->wait.for_memory;
    const bool held = client->wait.reason == WaitReason::kLimit || client->wait.reason == WaitReason::kShare;
    const bool is_free = entry.free_at < queue.free.size() && queue.free[entry.free_at] == client;
    if (held != entry.held || held == is_free) return broken("limits keep it, or not?");
    free += !held;
    ending += client->last_turn.due;
    const Account* account = client->indexed.tenancy->account;
    const WaitReason held_for = account != nullptr ? account->held_for : WaitReason::kNone;
    const bool rotates = held_for == WaitReason::kShare && account->held_in_rotation;
    if (held_for != WaitReason::kNone && (held_for != client->wait.reason || rotates != client->wait.for_memory))
      return broken("its tenant's clients wait for something else");
    const std::vector<Client*>& of_tenant = client->indexed.tenancy->waiting;
    if (std::find(of_tenant.begin(), of_tenant.end(), client) == of_tenant.end()) return broken("is missing among those of its tenant");
  }
  const bool same = placed == queue.order.size() && placed + queue.fresh.size() + several == gpu.waiting.size() &&
                    several == queue.of_several && looked_at == queue.looked_at.size() && late == queue.late.size() &&
                    unplaced == queue.unplaced.size() && unnoted == queue.unnoted.size() && ordinary == queue.ordinary.size() &&
                    below == queue.low.size() + queue.promoted.size() &&
                    queue.by_room.size() == (queue.rooms_kept ? gpu.waiting.size() : 0) && waiters == queue.waiters &&
                    memory_waiters == queue.memory_waiters && free == queue.free.size() && ending == queue.ending;
  return same ? std::nullopt : std::optional("the queue of GPU " + std::to_string(gpu.id) + " has clients that do not wait");
}

// Its clients that contend on a GPU (on all: nullptr), and those that all others on it are.
Contenders contenders_on(const State& state, const Gpu& gpu, const Gang* but, const Client* but_one) {
  Contenders all;
  for (const auto& [id, client] : gpu.clients) {
    if (&client == but_one || (but != nullptr && gang_of(state, client) == but)) continue;
    const bool grows = client.stays() && client.growth;
    all.waiters += (client.waits() && client.wait.reason != WaitReason::kLimit) || grows;
    all.memory_waiters += (client.waits() && client.wait.for_memory) || grows;
  }
  return all;
}

// Everybody was told whether others wait, whether its gang runs, and whether it waits without a scheduler.
Broken check_contention(const State& state, const Gpu& gpu) {
  for (const auto& [id, client] : gpu.clients) {
    const Gang* gang = gang_of(state, client);
    const bool gang_runs = gang != nullptr && others_run(state, client);
    if (!client.sent.rules) return fault(client, "was not told whether it waits without a scheduler");
    if (client.sent.rules->held != (gpu.quota.limited || gang != nullptr || state.suspended.contains(client.tenant)))
      return fault(client, "was told otherwise whether it waits without a scheduler");
    if (client.sent.rules->gang_runs != gang_runs) return fault(client, "was told otherwise whether its gang runs");
    if (!client.holds_lock()) continue;
    Contenders others;
    if (gang == nullptr) {
      others = contenders_on(state, gpu, nullptr, &client);
    } else {
      for (const Gang::OnGpu& on : gang->on) {
        const Contenders here = contenders_on(state, *on.gpu, gang, nullptr);
        others = {std::max(others.waiters, here.waiters), std::max(others.memory_waiters, here.memory_waiters)};
      }
      for (const auto& [other_id, other] : gpu.clients)
        others.memory_waiters += other_id != id && other.stays() && other.growth && gang_of(state, other) == gang;
    }
    if ((others.waiters > 0) != (client.sent.waiters > 0)) return fault(client, "was told otherwise whether others wait");
    const CostsTold& costs = gpu.contention.costs;
    if (client.sent.memory_waiters > 0 && (client.sent.cost < costs.least || client.sent.cost > costs.most))
      return fault(client, "was told of another cost than is known");
    if ((others.memory_waiters > 0) != (client.sent.memory_waiters > 0))
      return fault(client, "was told otherwise whether others wait for memory");
  }
  return std::nullopt;
}

bool knows_accounts_without_clients(const State& state) {
  std::ptrdiff_t away = 0;
  for (const auto& [id, gpu] : state.gpus) {
    for (const Accounts* accounts : {&gpu.quota.accounts, &gpu.quota.left.accounts}) {
      for (const Account& account : *accounts) {
        if (account.here != nullptr) continue;
        if (!state.away.contains({account.tenant, id})) return false;
        ++away;
      }
    }
  }
  return away == std::distance(state.away.begin(), state.away.end());
}

}  // namespace

std::optional<std::string> check_invariants(const State& state) {
  if (state.broken) return state.broken;
  size_t clients = 0;
  if (state.limited.size() != static_cast<size_t>(std::count_if(state.gpus.begin(), state.gpus.end(),
                                                                [](const auto& entry) { return entry.second.quota.limited; })))
    return "the GPUs with limits are not all known";
  if (!knows_accounts_without_clients(state)) return "it is not known where tenants without clients have accounts";
  for (const auto& [id, gpu] : state.gpus) {
    if (gpu.quota.behind != nullptr) return "the accounts of GPU " + std::to_string(id) + " wait for a step that has ended";
    if (gpu.quota.limited && !state.limited.contains(id)) return "the limits of GPU " + std::to_string(id) + " are not known";
    if (gpu.wake.at && !state.wakes.contains({*gpu.wake.at, id})) return "nobody wakes for GPU " + std::to_string(id);
    clients += gpu.clients.size();
    if (gpu.prefetch.client != 0 && !gpu.clients.contains(gpu.prefetch.client)) return "memory comes in for a client that left";
    if (sums_of(gpu) != gpu.sums) return "the running sums of GPU " + std::to_string(id) + " are not those of its clients";
    if (auto found = check_indexes(state, gpu)) return found;
    if (auto found = check_roles(gpu)) return found;
    if (auto found = check_queue(gpu)) return found;
    if (auto found = check_tenancies(gpu)) return found;
    if (auto found = check_changes(state.config, gpu)) return found;
    if (auto found = check_ranking(state.config, gpu)) return found;
    if (auto found = check_contention(state, gpu)) return found;
    for (const auto& [client_id, client] : gpu.clients) {
      if (auto found = check(state, gpu, client)) return found;
    }
  }
  if (clients != state.clients.size()) return "the index holds clients that left";
  if (auto found = check_gangs(state)) return found;
  for (const auto& [tenant, spread] : state.spread) {
    size_t sum = 0;
    for (const auto& [gpu, count] : spread.on) sum += static_cast<size_t>(count);
    if (sum != spread.clients) return "the count of a tenant's clients is not that of its clients on each GPU";
    const bool may_be_gang = state.config.gang_turns && spread.on.size() > 1 && spread.clients <= kGangMost;
    if (may_be_gang != state.on_several.contains(tenant)) return "the tenants on several GPUs are not all known";
  }
  return std::nullopt;
}

}  // namespace nvshare::policy
