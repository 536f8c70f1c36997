// Which tenants may run on a GPU with compute limits. Each tenant's balance swings around zero: it is throttled half a band below, and runs
// again half a band above, which makes one turn a period. Tenants that saturate the GPU run one after the other: next is who is owed most,
// measured in the time in which its quota would have given it so much.
#include <optional>
#include <utility>
#include <vector>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {

Exclusive::Exclusive(const Config& config, const Gpu& gpu) {
  constexpr unsigned kTurns = bits_of(TenantSharing::kTurns), kTogether = bits_of(TenantSharing::kTogether);
  constexpr unsigned kNode = bits_of(TenantSharing::kNode), kNodeFull = 1U << manner(false, false, TenantSharing::kNode);
  if (gpu.quota.mode == GpuMode::kRotation) {
    exclusive_ = kTurns | kNode | kTogether;
    return;
  }
  using InTurns = SchedulingMode::InTurns;
  switch (config.scheduling_mode.in_turns) {
    case InTurns::kNone:
      exclusive_ = kTurns;
      return;
    case InTurns::kAll:
      exclusive_ = kTurns | kNode;
      return;
    case InTurns::kSaturating:
      exclusive_ = kTurns | kNodeFull;
      return;
    case InTurns::kAllWhereCeilingsPass100:
      exclusive_ = gpu.quota.over_asked ? kTurns | kNode : kTurns;
      return;
  }
}

namespace {

bool waits(const Account& account) { return account.does.waits > 0; }

bool stays(const Account& account) { return account.does.stays > 0; }

bool holds_any(const Account& account) { return account.does.holds > 0; }

// It has the lock for longer than a moment, and nobody knows that it cannot give it up.
bool blocks(const Context& context, const Account& account) {
  return holds_any(account) && any_client(*account.here, [&](const Client& client) {
           const bool ends_soon = client.state == ClientState::kDropping && client.drain.ends_soon;
           return client.holds_lock() && !ends_soon && !drain_is_doubtful(context.state, client, context.now);
         });
}

// It is about to be ended from outside and has its last turn (../turns/README.md, "A tenant that ends"), for one turn limit, loading
// included.
bool has_last_turn(Context& context, Gpu& gpu, const Account& account) {
  if (!stays(account)) return false;
  return any_client(*account.here, [&](const Client& client) {
    if (!client.last_turn.runs || !client.stays()) return false;
    const Instant until = client.turn.granted_at + turn_limit(context.config(), gpu) - client.last_turn.ran;
    if (context.now >= until) return false;
    context.wake(gpu, until);
    return true;
  });
}

// The least that a turn is to last for such swaps, though limits would end it.
Duration worth_of(const Config& config, Duration swap_cost) {
  return std::min(switch_time(config, swap_cost), swap_cost * config.switch_time_multiplier);
}

Duration slice_of(const Config& config, const Gpu& gpu, const Account& account) { return Slices(config, gpu).of(account); }

// ---- how things stand ----

// Whether those that have been here lately fit together; else what the swaps between them cost.
std::optional<Switch> cost_of_turns(const Context& context, const Gpu& gpu) {
  if (gpu.sums.charged <= safe_limit(context.config(), gpu)) return std::nullopt;  // all that there are
  std::vector<ClientId> all;
  Bytes sum = 0;
  for (const auto& [id, client] : gpu.clients) {
    const Account& account = *client.indexed.tenancy->account;
    if (account.gang) return std::nullopt;
    if (!account.present) continue;
    all.push_back(id);
    sum += charge(client);
  }
  if (room_if(context.state, gpu, {.comers = all, .departed_freed = true}, context.now).fits()) return std::nullopt;
  const Bytes excess = std::max<Bytes>(sum - safe_limit(context.config(), gpu), 0);
  return Switch{.out = excess, .in = excess, .cost = swap_time(gpu, excess, excess)};
}

// Of a rotation, whose turns are as long as the shares ask. A tenant that wants shorter ones than those has them by a shorter period, so
// that nobody's share changes; no turn is shorter than is worth its swaps.
Duration period_of_rotation(const Config& config, const Gpu& gpu, Duration swap_cost, int64_t least) {
  const Duration length = switch_time(config, swap_cost);
  const Duration worth = worth_of(config, swap_cost);
  Duration period = time_for(length, least);
  for (const Account& account : gpu.quota.accounts) {
    if (account.present && account.turn_most > 0) period = std::min(period, time_for(account.turn_most, std::max(account.quota, least)));
  }
  return std::max(period, time_for(worth, least));
}

const Present& present_on(const Config& config, Gpu& gpu) {
  std::optional<Present>& known = gpu.quota.changes.counted;
  if (!known || known->rotates != (gpu.quota.mode == GpuMode::kRotation)) known = count_present(config, gpu);
  return *known;
}

Duration period_of(const Config& config, const Gpu& gpu, const Present& present, const std::optional<Switch>& turns) {
  if (turns) return period_of_rotation(config, gpu, turns->cost, present.least);
  const bool in_turns = gpu.quota.mode == GpuMode::kTurns;
  const int64_t per_hand_over = in_turns ? kPeriodOfTurnsPerHandOver : kPeriodPerHandOver;
  return std::clamp(present.tenants * per_hand_over * hand_over(gpu), kPeriodMin, in_turns ? kPeriodOfTurns : kPeriodMax);
}

void choose_mode(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  const std::optional<Switch> turns = quota.limited ? cost_of_turns(context, gpu) : std::nullopt;
  GpuMode mode = GpuMode::kUnlimited;
  if (turns.has_value() != (quota.mode == GpuMode::kRotation)) unrank_all(quota);  // who takes turns may be others
  const GpuMode before = std::exchange(quota.mode, turns ? GpuMode::kRotation : GpuMode::kTurns);
  const Present present = present_on(context.config(), gpu);
  quota.mode = before;
  if (quota.limited) {
    if (turns) {
      gpu.switches.cost = turns->cost;
      note_switch_time(context, gpu, *turns);
    }
    mode = turns ? GpuMode::kRotation : present.exclusive > 1 ? GpuMode::kTurns : GpuMode::kTogether;
  }
  const GpuMode former = std::exchange(quota.mode, mode);
  quota.period = period_of(context.config(), gpu, present, turns);
  if (former == mode) return;
  quota.changes.balances = quota.changes.hold_all = true;
  unrank_all(quota);
  ++quota.mode_changes;
  note_mode(context, gpu, former);
}

// What the GPU could not give, because it was handed over or did swap, is lost to all alike.
void forget_common_arrears(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  if (!quota.full_demand || is_windowed(context.config(), gpu)) return;
  std::optional<Duration> least;
  Ranking& ranking = quota.changes.ranking;
  if (!ranking.places.empty()) {
    const Duration last = ranking.balance(*ranking.places.rbegin());
    if (last <= 0) return;
    least = owed(last, ranking.quota);
  }
  int64_t tenants = std::ssize(ranking.places);
  for (const Account* account : quota.changes.apart) {
    if (!account->active) continue;
    if (account->balance <= 0) return;
    ++tenants;
    const Duration own = owed(*account);
    least = std::min(least.value_or(own), own);
  }
  if (tenants < 2 || *least <= quota.period) return;
  ranking.earned -= portion(*least - quota.period, ranking.quota);
  for (Account* account : quota.changes.apart) {
    if (!account->active) continue;
    account->balance -= portion(*least - quota.period, account->quota);
    // All are owed: nobody is above its share. Else two gangs that yield on a GPU each wait for each other.
    if (std::exchange(account->yields, false)) note_verdict(quota, *account);
  }
}

// ---- limits ----

void drop_tenant(Context& context, Gpu& gpu, Account& account, const char* why) {
  if (!stays(account)) return;
  each_client(*account.here, [&](Client& client) {
    if (!client.stays()) return;
    if (const Instant retry_at = drain_retry_at(context.state, client); retry_at > context.now) return context.wake(gpu, retry_at);
    client.turn.interrupted = false;
    note_drop_asked(context, gpu, account);
    ask_to_drop(context, gpu, client, why);
  });
}

// When the turn that it has now is as long as its slice.
Instant slice_end(const Context& context, const Gpu& gpu, const Account& account) {
  Instant began = account.slice.began;
  if (!account.slice.runs) {
    began = 0;
    if (account.here != nullptr) {
      for (const auto& [id, client] : account.here->clients) began = client->stays() ? std::max(began, client->turn.began()) : began;
    }
  }
  return began + slice_of(context.config(), gpu, account);
}

// It may have to make room until its next turn: on one of its GPUs not all that are there fit together.
bool loads_again(const Context& context, const Gang& gang) {
  return std::any_of(gang.members.begin(), gang.members.end(), [&](const Gang::Member& member) {
    const Gpu& gpu = *member.on;
    return gpu.sums.charged > safe_limit(context.config(), gpu);
  });
}

// A gang is billed where it has loaded while it still loads elsewhere: it may use what it loaded, also where a member gave the GPU up
// meanwhile, because it had nothing to do before the others.
struct GangTurn {
  Instant loaded = 0;       // when all of it has, at the latest
  Instant worth_until = 0;  // then the turn has been worth its load, as one of a rotation is worth its swaps. 0: it loads but once
};

// nullopt: no gang runs.
std::optional<GangTurn> turn_of_gang(const Context& context, const Gpu& gpu, const Account& account) {
  std::optional<GangTurn> turn;
  if (!account.gang) return turn;
  const Config& config = context.config();
  any_client(gpu, account.tenant, [&](const Client& client) {
    const Gang* gang = gang_of(context.state, client);
    if (gang == nullptr || phase_of(*gang) != GangPhase::kRunning) return false;
    const Instant loaded = gang_began(*gang);
    if (!turn) turn.emplace();
    turn->loaded = std::max(turn->loaded, loaded);
    if (!loads_again(context, *gang)) return false;
    turn->worth_until = std::max(turn->worth_until, loaded + worth_of(config, gang_loaded_for(*gang)));
    return false;
  });
  return turn;
}

// hold_to_ceiling() would change nothing: it is throttled, owes and has nothing to give up, or is not, and has hardly used anything up. So
// are nearly all that it would be asked of.
bool stays_as_held(const Account& account, bool windowed) {
  const bool throttled = account.throttled, owes = account.ceiling_balance < 0, has_none = account.does.stays == 0;
  const bool ceiling = account.limit.has_ceiling(), stays_throttled = (throttled & owes & has_none & ceiling) != 0;
  const bool near = windowed || account.ceiling_balance <= -kHalfBandLeast;
  return stays_throttled || (!throttled && !near);
}

// `looks`: the time to look at limits has come.
void hold_to_ceiling(Context& context, Gpu& gpu, Account& account, bool looks) {
  const Config& config = context.config();
  const auto set_throttled = [&](bool throttled) {
    if (std::exchange(account.throttled, throttled) != throttled) note_verdict(gpu.quota, account);
  };
  if (!account.limit.has_ceiling()) return set_throttled(false);
  const bool windowed = is_windowed(config, gpu);
  if (!account.throttled && !windowed && account.ceiling_balance > -kHalfBandLeast) return;  // such as tenants that have yet to run
  const bool near =
      account.throttled ? account.ceiling_balance >= 0 : account.ceiling_balance <= 0;  // else its band, which is dear, says nothing
  const Duration band = windowed || !near ? 0 : half_band(config, gpu, account, account.limit.ceiling_rate());
  if (account.throttled && near && (windowed ? account.ceiling_balance > 0 : account.ceiling_balance >= band)) {
    set_throttled(false);
    note_released(context, gpu, account);
  }
  const bool holds = stays(account);
  if (!account.throttled && near && account.ceiling_balance <= -band && looks) {
    // Where turns cost swaps, one that has begun is worth its time; the rest is owed.
    const bool whole_slice = holds && (gpu.quota.mode == GpuMode::kRotation || account.slice.borrows);
    Instant end = whole_slice ? slice_end(context, gpu, account) : context.now;
    if (const auto turn = turn_of_gang(context, gpu, account))
      end = std::max({end, turn->loaded + slice_of(config, gpu, account), turn->worth_until});
    if (end <= context.now) {
      set_throttled(true);
      account.throttling.at = context.now;
      account.slice.borrows = false;
      note_throttled(context, gpu, account);
    } else {
      context.wake(gpu, end);
    }
  }
  if (account.throttled && holds && !has_last_turn(context, gpu, account))
    drop_tenant(context, gpu, account, "its tenant has used up its compute limit");
}

// Among tenants that run together: one that is above its quota makes way while another is below its own. Those that run one after the other
// need no such word, because next is always who is owed most.
void hold_to_quota(Context& context, Gpu& gpu, Account& account, const Exclusive& is_exclusive, const Pressers& others, bool looks) {
  const Config& config = context.config();
  const bool yielded = std::exchange(account.yields, false);
  if (yielded) note_verdict(gpu.quota, account);
  if (!others.press(account) || (!yielded && account.balance > 0)) return;
  if (!config.scheduling_mode.scales || is_exclusive(account)) return;
  const Duration band = is_windowed(config, gpu) ? 0 : half_band(config, gpu, account, account.quota);
  if (yielded ? account.balance > band : account.balance > -band) return;
  // So that neighbours with short bursts do not drop it at each of them.
  const std::optional<GangTurn> turn = turn_of_gang(context, gpu, account);
  Instant long_enough = account.slice.began + kSliceMin;
  if (turn) long_enough = std::max({long_enough, turn->loaded + kSliceMin, turn->worth_until});
  if (!yielded && (account.slice.runs || turn) && (context.now < long_enough || !looks))
    return context.wake(gpu, std::max(long_enough, context.now + kMillisecond));
  account.yields = true;
  note_verdict(gpu.quota, account);
  if (stays(account) && !has_last_turn(context, gpu, account))
    drop_tenant(context, gpu, account, "it is above its share, and another tenant is below its own");
}

// When that will have to be looked at again.
void watch_quota_of(Context& context, Gpu& gpu, const Account& account, const Exclusive& is_exclusive, int64_t billed) {
  const Config& config = context.config();
  if (!account.yields && !account.slice.runs) return;
  if (!config.scheduling_mode.scales || is_exclusive(account)) return;
  const bool windowed = is_windowed(config, gpu);
  const Duration band = windowed ? 0 : half_band(config, gpu, account, account.quota);
  if (account.yields) {
    if (waits(account)) context.wake(gpu, context.now + std::max(time_for(band - account.balance, account.quota), kStepMin));
  } else if (account.slice.runs && stays(account) && gpu.quota.accounts.size() + gpu.quota.left.accounts.size() > 1) {
    const int64_t rate = billed - (windowed ? 0 : account.quota);
    const bool above = account.balance <= -band;
    if (above || rate > 0)
      context.wake(gpu, context.now + (above ? kSliceMin : std::max(time_for(account.balance + band, rate), kStepMin)));
  }
}

// When its ceiling will have to be looked at again.
void watch_ceiling(Context& context, Gpu& gpu, const Account& account, bool stalled, int64_t billed) {
  if (!account.limit.has_ceiling() || (!account.throttled && !account.slice.runs)) return;
  const Config& config = context.config();
  const bool windowed = is_windowed(config, gpu);
  if (windowed) {  // its end may be past: windows have just become shorter
    context.wake(gpu, std::max(gpu.quota.window_start + window_of(config, gpu), context.now + kStepMin));
  } else if (account.throttled && (stalled || !waits(account))) {
    return;
  }
  const Duration band = windowed ? 0 : half_band(config, gpu, account, account.limit.ceiling_rate());
  if (account.throttled) {
    if (windowed) return;
    context.wake(gpu, context.now + std::max(time_for(band - account.ceiling_balance, account.limit.ceiling_rate()), kStepMin));
  } else if (account.slice.runs && stays(account)) {
    const int64_t rate = billed - (windowed ? 0 : account.limit.ceiling_rate());
    if (account.ceiling_balance <= -band) return context.wake(gpu, std::max(slice_end(context, gpu, account), context.now + kMillisecond));
    if (rate > 0) context.wake(gpu, context.now + std::max(time_for(account.ceiling_balance + band, rate), kStepMin));
  }
}

// ---- turns ----

// Those with the lock that take turns, in the order of tenants: where few have it they are not looked for among all.
const std::vector<Account*>& accounts_that_hold(Gpu& gpu, const Exclusive& is_exclusive) {
  std::vector<Account*>& holding = gpu.quota.changes.holding;
  holding.clear();
  if (gpu.holders.size() < gpu.quota.accounts.size() / 8) {
    for (const auto& [grant, client] : gpu.holders) {
      Account* const account = client->indexed.tenancy->account;
      if (account != nullptr && is_exclusive(*account)) holding.push_back(account);
    }
    std::sort(holding.begin(), holding.end(), [](const Account* a, const Account* b) { return a->tenant < b->tenant; });
    holding.erase(std::unique(holding.begin(), holding.end()), holding.end());
  } else {
    for (Account* account : gpu.quota.changes.apart) {
      if (holds_any(*account) && is_exclusive(*account)) holding.push_back(account);
    }
  }
  return holding;
}

// Of those that do not make way for a burst. Where many wait only the first are asked.
NextTurn next_that_runs(Context& context, Gpu& gpu, const Exclusive& is_exclusive) {
  for (int asked = 0; asked < kAskedToMakeWay; ++asked) {
    const NextTurn next = next_of(context, gpu, is_exclusive, 0);
    if (!next.account || gpu.quota.changes.foreseen.empty()) return next;
    const std::optional<Instant> from = makes_way_from(context, gpu, *next.account);
    if (!from) return next;
    context.wake(gpu, *from);
    if (context.now < *from - kTurnWorth) return next;
    gpu.quota.skipped.insert(next.account->tenant);
  }
  return {};
}

// Whose turn it is, for a burst that is about to begin.
bool makes_way(Context& context, Gpu& gpu, Account& owner) {
  const std::optional<Instant> from = makes_way_from(context, gpu, owner);
  if (!from) return false;
  if (*from > context.now) {
    context.wake(gpu, *from);
    return false;
  }
  drop_tenant(context, gpu, owner, "another's burst is about to begin, and it has to pause for its limit in any case");
  return true;
}

void hold_to_turns(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  const Exclusive is_exclusive(context.config(), gpu);
  const std::vector<Account*>& holding = accounts_that_hold(gpu, is_exclusive);
  NextTurn holder;
  bool leaving = false, last_turn = false;
  for (Account* account : holding) {
    // Nobody's turn waits for a tenant that does not give the lock up when asked: it runs beside the others, and is asked again.
    const bool holds = stays(*account) && blocks(context, *account);
    leaving |= !stays(*account) && blocks(context, *account);
    if (!holds) continue;
    const bool lasts = has_last_turn(context, gpu, *account);
    if (!holder.account || (lasts && !last_turn) || (lasts == last_turn && owed(*account) > holder.owed))
      holder = {account, owed(*account)};
    last_turn |= lasts;
  }
  if (!holder.account) {
    const NextTurn next = leaving ? NextTurn{} : next_that_runs(context, gpu, is_exclusive);
    set_owner(quota, next.account);
    if (!next.account) return;
    for (Account* account : holding) {
      if (stays(*account) && account->tenant != quota.owner)
        drop_tenant(context, gpu, *account, "it keeps the GPU against requests, and it is another tenant's turn");
    }
    return;
  }
  Account& owner = *holder.account;
  set_owner(quota, &owner);
  for (Account* account : holding) {  // from a time when they ran together
    if (stays(*account) && account->tenant != owner.tenant && !has_last_turn(context, gpu, *account))
      drop_tenant(context, gpu, *account, "tenants take turns now, and it is another's");
  }
  if (last_turn) return;
  if (!quota.changes.foreseen.empty() && makes_way(context, gpu, owner)) return set_owner(quota, nullptr);
  const NextTurn next = next_of(context, gpu, is_exclusive, owner.tenant);
  if (!next.account) return;
  const Duration lead = owed(owner) - next.owed;  // it shrinks by the holder's use and by what the next one is owed meanwhile
  const Duration lasts = lead > kStepMin ? portion(lead, owner.quota) + kStepMin : 0;
  const Instant due = std::max(slice_end(context, gpu, owner), context.now + lasts);
  if (due > context.now) return context.wake(gpu, due);
  drop_tenant(context, gpu, owner, "its slice of the GPU's time is over, and another tenant is owed more");
  set_owner(quota, nullptr);
}

// What limits ask to be woken for, while that function runs.
template <typename Part>
void note_wakes(Gpu& gpu, Part part) {
  const std::optional<Instant> others = std::exchange(gpu.wake.at, std::nullopt);
  part();
  Quota& quota = gpu.quota;
  if (gpu.wake.at) quota.wake = std::min(quota.wake.value_or(*gpu.wake.at), *gpu.wake.at);
  if (others) gpu.wake.at = std::min(gpu.wake.at.value_or(*others), *others);
}

}  // namespace

static void settle_all(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  if (!quota.limited && quota.mode == GpuMode::kUnlimited) return;
  quota.skipped.clear();
  choose_mode(context, gpu);
  if (!quota.limited) {
    set_owner(quota, nullptr);
    for (auto* accounts : {&quota.accounts, &quota.left.accounts}) {
      for (Account& account : *accounts) account.throttled = account.yields = account.slice.runs = account.seen.runs = false;
    }
    quota.changes.runs.clear();
    for (Account& account : quota.accounts) note_change(quota, account);  // to be judged when limits come back
    return;
  }
  judge_uses(context, gpu);
  const Duration interval = context.config().quota_sample_interval;
  const bool looks = context.now >= quota.next_sample || interval == 0;
  if (looks) quota.next_sample = context.now + interval;
  if (interval > 0) context.wake(gpu, quota.next_sample);
  forget_common_arrears(context, gpu);
  look_at_foreseen(context, gpu);
  const std::vector<Account*>& held = accounts_held(context.config(), gpu);
  const bool windowed = is_windowed(context.config(), gpu);
  for (Account* account : held) {
    if (is_at_ceiling(*account) && !stays_as_held(*account, windowed)) hold_to_ceiling(context, gpu, *account, looks);
  }
  const Exclusive is_exclusive(context.config(), gpu);
  std::optional<Pressers> others;  // few steps ask for them
  const auto hold_if_above = [&](Account& account, bool at_once) {
    if (!is_above_quota(is_exclusive, account)) return;
    if (!others) others = pressers(gpu);
    hold_to_quota(context, gpu, account, is_exclusive, *others, at_once);
  };
  for (Account* account : held) hold_if_above(*account, looks);
  if (quota.left.settles) {
    each_of(quota.left.looked_at, [&](Account& account) {
      if (is_at_ceiling(account)) hold_to_ceiling(context, gpu, account, true);
      hold_if_above(account, true);
    });
    let_left_rest(context.config(), quota);
  }
  hold_to_turns(context, gpu);
}

void settle_quota(Context& context, Gpu& gpu) {
  if (gpu.quota.behind != nullptr) return;
  gpu.quota.wake.reset();
  note_wakes(gpu, [&] { settle_all(context, gpu); });
}

// Neighbours' quotas grow when a tenant has been idle for long enough.
static void watch_idle(Context& context, Gpu& gpu) {
  const Quota& quota = gpu.quota;
  const auto look = [&](const Account& account) {
    const bool counts = !waits(account) && account.active && !account.slice.runs;
    if (counts) context.wake(gpu, last_busy(quota, account) + kActiveGrace);
    return counts;
  };
  for (const auto& [until, account] : quota.changes.active) {
    if (look(*account)) break;
  }
  for (const Account* account : quota.changes.to_look) look(*account);
  for (const auto& [id, client] : gpu.unsettled) {  // such as those that load
    if (client->indexed.tenancy->account != nullptr) look(*client->indexed.tenancy->account);
  }
}

static void watch_all(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  if (!quota.limited) return;
  const bool stalled = std::any_of(gpu.unsettled.begin(), gpu.unsettled.end(),
                                   [](const auto& entry) { return entry.second->state == ClientState::kLoading; });
  const Exclusive is_exclusive(context.config(), gpu);
  judge_uses(context, gpu);
  const auto watch = [&](const Account& account) {
    const int64_t billed = billing_rate(context.config(), gpu, account);
    watch_ceiling(context, gpu, account, stalled, billed);
    watch_quota_of(context, gpu, account, is_exclusive, billed);
  };
  for (const Account* account : quota.changes.runs) watch(*account);
  for (const Account* account : quota.changes.held) {
    if ((account->throttled || account->yields) && !account->slice.runs) watch(*account);
  }
  watch_idle(context, gpu);
  const Account* const owner = quota.owners_account();
  if (owner == nullptr || !stays(*owner)) return;
  const bool exclusive_waits = std::any_of(gpu.waiting.begin(), gpu.waiting.end(), [&](const auto& entry) {
    const Account* account = entry.second->indexed.tenancy->account;
    return account != nullptr && !account->throttled && is_exclusive(*account);
  });
  if (exclusive_waits) context.wake(gpu, slice_end(context, gpu, *owner));
}

void watch_quota(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  if (quota.behind != nullptr) {
    if (quota.wake) context.wake(gpu, *quota.wake);
    return;
  }
  note_wakes(gpu, [&] { watch_all(context, gpu); });
  quota.due = context.now + kRestMost;
  if (quota.wake) quota.due = std::min(quota.due, *quota.wake);
}

bool pass_over_blocked(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  if (!quota.limited || quota.owner == 0) return false;
  const Account& owner = *quota.owners_account();
  const bool blocked = !blocks(context, owner) && waits(owner) && !any_client(*owner.here, [](const Client& client) {
    return client.waits() && !cannot_have_it_soon(client.wait.reason);
  });
  if (!blocked) return false;
  quota.skipped.insert(quota.owner);
  hold_to_turns(context, gpu);
  return quota.owner != 0;
}

static Verdict may_run_here(const State& state, const Client& client) {
  const Account* account = client.indexed.tenancy->account;
  if (account == nullptr || client.last_turn.due)
    return Verdict::kRun;  // who is about to be ended owes for its last turn, as for any other
  const Gpu& gpu = *client.indexed.home;
  return gpu.quota.limited ? may_run(Exclusive(state.config, gpu), gpu.quota, *account) : Verdict::kRun;
}

Verdict may_run(const State& state, const Client& client) {
  const Gang* gang = gang_of(state, client);
  if (!gang) return may_run_here(state, client);
  if (cannot_drain(*gang)) return Verdict::kRun;
  for (const Gang::Member& member : gang->members) {
    const Verdict verdict = may_run_here(state, *member.is);
    if (verdict != Verdict::kRun) return verdict;
  }
  return Verdict::kRun;
}

// Where giving the GPU up costs a swap, a pause has to be worth it.
Duration idle_release(const Gpu& gpu) {
  if (gpu.share_turn.group) return kIdleRelease;               // a slice would else be over before a client gives the GPU up
  if (gpu.share_turn.bursts_apart()) return kIdleRelease / 5;  // the next burst waits for it, and that decides about nothing else
  if (gpu.share_turn.watches || gpu.share_turn.lingers) return kIdleRelease;
  if (!gpu.quota.limited) return 0;
  return gpu.quota.mode == GpuMode::kRotation ? std::clamp(gpu.switches.cost, kIdleRelease, 10 * kSecond) : kIdleRelease;
}

// One that takes turns, and pauses for hardly less than that after each short piece of work, would never show that it leaves gaps.
Duration idle_release(const Gpu& gpu, const Client& client, Duration of_all) {
  const Account* const account = client.indexed.tenancy->account;
  const bool probed = gpu.quota.limited && gpu.quota.mode != GpuMode::kRotation && account != nullptr && account->limit.has_ceiling() &&
                      account->slice.probe.turns > 0 && !account->slice.gappy && !account->gang;
  return probed ? std::min(of_all, kIdleRelease / 2) : of_all;
}

}  // namespace nvshare::policy
