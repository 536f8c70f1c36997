#include "policy/limits/quota.h"

#include "policy/clients.h"
#include "policy/limits/limits.h"
#include "policy/limits/quota_earnings.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {

Duration portion_of_long(Duration time, int64_t millionths) {
  return time / kWholeGpu * millionths + time % kWholeGpu * millionths / kWholeGpu;
}

Duration time_for(Duration amount, int64_t rate) {
  if (amount <= 0 || rate <= 0) return amount <= 0 ? 0 : kRotationMax;
  const Duration whole = amount / rate;
  if (whole > kRotationMax / kWholeGpu) return kRotationMax;
  return whole * kWholeGpu + amount % rate * kWholeGpu / rate + 1;
}

Duration window_of(const Config& config, const Pace& pace) {
  if (pace.rotates) return std::max(pace.period, kSliceMin);
  return config.compute_window > 0 ? config.compute_window : kWindowAuto;
}

bool is_windowed(const Config& config, const Pace& pace) { return config.compute_window > 0 && !pace.rotates; }

Duration rest_of_window(const Config& config, const Gpu& gpu, Instant now) {
  return std::max<Duration>(gpu.quota.window_start + window_of(config, gpu) - now, 0);
}

Duration hand_over(const Gpu& gpu) { return gpu.quota.hand_overs.cost; }

namespace {

enum class Use { kNone, kRuns, kDrains };

// A client that loads uses nothing yet. What it says about being idle does not count: only giving the lock up ends the bill.
Use use_of(const Client& client) {
  if (!client.holds_lock() || !client.turn.start) return Use::kNone;
  return client.stays() ? Use::kRuns : Use::kDrains;
}

Use use_of(const Doing& does) {
  if (does.works == 0) return Use::kNone;
  return does.works_on > 0 ? Use::kRuns : Use::kDrains;
}

Duration balance_least(const Gpu& gpu, const Account& account) {
  if (!account.limit.has_ceiling()) return -portion(std::max(10 * kWindowAuto, 2 * gpu.quota.period), account.quota);
  return -portion(std::max(kDebtMax, 2 * gpu.quota.period), account.quota);
}

Duration ceiling_balance_least(const Gpu& gpu, const Account& account) {
  return -portion(std::max(kDebtMax, 2 * gpu.quota.period), account.limit.ceiling_rate());
}

void spend(const Gpu& gpu, Account& account, Duration billed, bool pressed) {
  if (account.limit.has_ceiling())
    account.ceiling_balance = std::max(account.ceiling_balance - billed, ceiling_balance_least(gpu, account));
  // Up to its ceiling it owes nobody what nobody wants.
  const bool owes = pressed || (account.limit.has_ceiling() && account.quota >= account.limit.ceiling_rate());
  const Duration least = balance_least(gpu, account);
  account.balance = std::max(account.balance - billed, owes ? least : std::max(least, std::min<Duration>(account.balance, 0)));
}

// `window`: the length of the one that begins.
void end_window(Context& context, Gpu& gpu, Duration length, Duration window) {
  const Config& config = context.config();
  Quota& quota = gpu.quota;
  if (config.explains) unrank_all(quota);
  note_window(context, gpu, length);
  quota.window_start += length;
  quota.last_window_length = length;
  quota.changes.balances = true;
  const auto end = [&](Account& account) {
    account.consumed.last_window = account.consumed.in_window;
    account.consumed.in_window = 0;
    if (!is_windowed(config, gpu)) return;
    const int64_t carried = config.quota_carryover_percent.value_or(100) * (kWholeGpu / 100);
    account.balance = portion(std::min<Duration>(account.balance, 0), carried) + portion(window, account.quota);
    account.ceiling_balance =
        portion(std::min<Duration>(account.ceiling_balance, 0), carried) + portion(window, account.limit.ceiling_rate());
  };
  if (is_windowed(config, gpu) && quota.left.earns > 0) earn_left(config, gpu);  // windows have just begun to count
  for (Account& account : quota.accounts) end(account);
  for (Account& account : quota.left.accounts) end(account);
}

// To a tenant that ran in it: a time, as of `to`, in which nothing changed and no window ended.
void bill_use(const Context& context, const Gpu& gpu, Account& account, Duration time, const Pressers& others) {
  const Config& config = context.config();
  const bool drains = use_of(account.does) == Use::kDrains;
  Duration billed = portion(time, billing_rate(config, gpu, account));
  if (drains) billed = billed * config.drop_tail_billing_percent.value_or(100) / 100;
  spend(gpu, account, billed, others.press(account));
  const Duration taken_back = std::min(account.consumed.taken_back, billed);  // so that what people see never goes down
  account.consumed.taken_back -= taken_back;
  account.consumed.billed += billed - taken_back;
  account.consumed.in_window += billed - taken_back;
  use_recently(account, gpu.quota.until, billed);
  if (!config.explains) return;
  context.note(Note::Level::kDebug, gpu, account.tenant,
               "billed " + std::to_string(billed / 1000) + " us of " + std::to_string(time / 1000) + " us, " +
                   std::to_string(gpu.tenants_working) + (drains ? " ran, draining" : " ran") + "; balance " +
                   std::to_string(account.balance / 1000) + " us, ceiling balance " +
                   (account.limit.has_ceiling() ? std::to_string(account.ceiling_balance / 1000) + " us" : std::string("unbounded")));
}

// Bills a time in which nothing changed and no window ended.
void bill(Context& context, Gpu& gpu, bool swaps, Instant to) {
  const Config& config = context.config();
  Quota& quota = gpu.quota;
  const Duration time = to - quota.until;
  if (time <= 0) return;
  quota.until = to;
  const bool nobodys = gpu.tenants_working == 0 && swaps && quota.limited;
  if (nobodys) quota.swap_time += time;
  const Pressers others = gpu.tenants_working > 0 ? pressers(gpu) : Pressers();  // as of the beginning of the time
  const bool windowed = is_windowed(config, gpu);
  if (!nobodys && !windowed) quota.left.earns += time;
  Earnings earnings(config, gpu, time, to);
  const Exclusive is_exclusive(config, gpu);
  if (!nobodys && !windowed) earnings.add_to_ranked(quota);
  HeldAnew held(quota.changes);
  each_of(quota.changes.apart, [&](Account& account) {
    const bool waits = account.does.waits > 0, works = account.does.works > 0;
    if (works) account.used = true;
    if (waits && (account.throttled || account.yields)) account.throttling.waiting += time;
    if (!nobodys) {
      if (works) note_overlap(account.overlap, time, gpu.tenants_working);
      if (!windowed && (account.used || waits)) earnings.add_to(account, waits || works);
      if (works) bill_use(context, gpu, account, time, others);
    }
    held.add(account, may_be_held(is_exclusive, account));
  });
}

bool loads(const Gpu& gpu) {
  return std::any_of(gpu.unsettled.begin(), gpu.unsettled.end(),
                     [](const auto& entry) { return entry.second->state == ClientState::kLoading; });
}

void bring_up_to(Context& context, Gpu& gpu) {
  const Config& config = context.config();
  const Instant now = context.now;
  Quota& quota = gpu.quota;
  if (quota.until >= now) return;
  const bool swaps = loads(gpu);
  const Duration window = window_of(config, gpu);
  constexpr int64_t kWindowsMost = 1000;  // after a long time without events only the latest are gone through
  if (now - quota.window_start > kWindowsMost * window) {
    const Instant jump = std::max(now - (now - quota.window_start) % window - kWindowsMost / 2 * window, quota.until);
    bill(context, gpu, swaps, jump);
    quota.window_start = jump - window;
  }
  while (quota.window_start + window <= now) {
    // Windows may have become shorter, so that this one should have ended before: it ends where the accounts are.
    const Instant end = std::max(quota.window_start + window, quota.until);
    bill(context, gpu, swaps, end);
    end_window(context, gpu, end - quota.window_start, window);
  }
  bill(context, gpu, swaps, now);
}

}  // namespace

Pressers pressers(const Gpu& gpu) {
  Pressers found;
  const auto add = [&](const Account& account) {
    const auto may_soon = [](const Client& client) { return client.waits() && !cannot_have_it_soon(client.wait.reason); };
    const auto wants = [&] { return account.held_for != WaitReason::kNone || any_client(*account.here, may_soon); };  // limits end soon
    if (account.does.works == 0 && (account.does.waits == 0 || !wants())) return;
    found.several = found.any;
    found.any = true;
    found.tenant = account.tenant;
  };
  const Ranking& ranking = gpu.quota.changes.ranking;
  for (const Ranking::Place& place : ranking.places) {
    if (found.several || ranking.balance(place) < 0) break;
    add(*place.account);
  }
  for (const Account* account : gpu.quota.changes.apart) {
    if (found.several) break;
    if (!account->throttled && account->balance >= 0) add(*account);
  }
  return found;
}

int64_t billing_rate(const Config& config, const Gpu& gpu, const Account& account) {
  const int64_t running = gpu.tenants_working;
  if (running <= 1 || config.scheduling_mode.bills == SchedulingMode::Bills::kAllOfIt) return kWholeGpu;
  return account.overlap.kept / running;
}

void bring_accounts_up_to(Context& context, Gpu& gpu) {
  gpu.quota.behind = nullptr;
  if (gpu.quota.limited) bring_up_to(context, gpu);
}

void limits_change(Gpu& gpu) {
  if (gpu.quota.behind != nullptr) bring_accounts_up_to(*gpu.quota.behind, gpu);
}

bool limits_rest(const Context& context, const Gpu& gpu) {
  const Quota& quota = gpu.quota;
  return context.now < quota.due && context.state.gangs.empty() && gpu.unsettled.empty() && quota.skipped.empty() &&
         quota.mode != GpuMode::kRotation && gpu.sums.charged <= safe_limit(context.config(), gpu);
}

void begin_accounts(Gpu& gpu, Instant now) {
  if (!gpu.quota.limited && gpu.quota.until < now) gpu.quota.until = gpu.quota.window_start = now;
}

AccountsAt::~AccountsAt() = default;

AccountsAt::AccountsAt(const Config& config, const Gpu& gpu, Instant now)
    : quota_(gpu.quota), rested_(std::make_unique<LeftTimes>(config, gpu.quota.left.times)) {
  const bool goes_on = quota_.limited && !is_windowed(config, gpu) && (gpu.tenants_working > 0 || !loads(gpu));
  const Duration time = goes_on ? std::max<Duration>(now - quota_.until, 0) : 0;
  here_ = std::make_unique<Earnings>(config, gpu, time, now);
  left_ = std::make_unique<Earnings>(config, gpu, time + quota_.left.earns, now);
}

Account AccountsAt::of(const Account& as_billed) {
  Account account = unranked(quota_, as_billed);
  if (account.seen.rests) rested_->add_to(account);
  const bool waits = account.does.waits > 0, has_left = account.here == nullptr && quota_.accounts.find(account.tenant) == nullptr;
  if (use_of(account.does) == Use::kNone && (account.used || waits)) (has_left ? *left_ : *here_).add_to(account, waits);
  return account;
}

Account* known_account(const Config& config, Gpu& gpu, TenantId tenant) {
  Quota& quota = gpu.quota;
  if (Account* account = quota.accounts.find(tenant)) return account;
  std::unique_ptr<Account> left = take_left(config, gpu, tenant);
  if (left == nullptr || !outlives_clients(quota, *left, quota.until)) return nullptr;
  quota.shares_known = false;
  Account& account = add_account(quota, std::move(left));
  note_change(quota, account);
  return &account;
}

size_t Accounts::place_of(TenantId tenant) const {
  const TenantId* const at = first_not(tenants_.data(), tenants_.size(), [&](TenantId other) { return other < tenant; });
  return static_cast<size_t>(at - tenants_.data());
}

Account* Accounts::find(TenantId tenant) {
  const size_t at = place_of(tenant);
  return at < tenants_.size() && tenants_[at] == tenant ? order_[at] : nullptr;
}

const Account* Accounts::find(TenantId tenant) const { return const_cast<Accounts*>(this)->find(tenant); }

Account& Accounts::insert(std::unique_ptr<Account> account) {
  const auto at = static_cast<std::ptrdiff_t>(place_of(account->tenant));
  order_.insert(order_.begin() + at, account.get());
  tenants_.insert(tenants_.begin() + at, account->tenant);
  return **owned_.insert(owned_.begin() + at, std::move(account));
}

std::unique_ptr<Account> Accounts::extract(TenantId tenant) {
  if (find(tenant) == nullptr) return nullptr;
  const auto at = static_cast<std::ptrdiff_t>(place_of(tenant));
  std::unique_ptr<Account> account = std::move(owned_[static_cast<size_t>(at)]);
  order_.erase(order_.begin() + at);
  tenants_.erase(tenants_.begin() + at);
  owned_.erase(owned_.begin() + at);
  return account;
}

void Accounts::erase(std::vector<Account*>& gone) {
  if (gone.empty()) return;
  std::sort(gone.begin(), gone.end(), [](const Account* a, const Account* b) { return a->tenant < b->tenant; });
  auto next = gone.begin();
  size_t kept = place_of((*next)->tenant);
  for (size_t i = kept; i < order_.size(); ++i) {
    if (next != gone.end() && order_[i] == *next) {
      ++next;
      continue;
    }
    order_[kept] = order_[i];
    tenants_[kept] = tenants_[i];
    owned_[kept++].swap(owned_[i]);
  }
  order_.resize(kept);
  tenants_.resize(kept);
  owned_.resize(kept);
}

void open_account(Gpu& gpu, Tenancy& tenancy, Account& account) {
  account.here = &tenancy;
  account.does = tenancy.does;
  account.held_for = WaitReason::kNone;
  tenancy.account = &account;
  ++gpu.quota.accounts_here;
  gpu.quota.changes.counted.reset();
  note_change(gpu.quota, account);
}

void take_turns_of_tenant(const State& state, Account& account) {
  const auto turns = state.turns.find(account.tenant);
  account.sharing = turns == state.turns.end() ? TenantSharing::kNode : turns->second.sharing;
  account.turn_most = turns == state.turns.end() ? 0 : turns->second.most;
}

Account& account_of(State& state, Gpu& gpu, TenantId tenant, Instant now) {
  if (Account* known = gpu.quota.accounts.find(tenant)) {
    take_turns_of_tenant(state, *known);  // it may have been away, with a debt
    return *known;
  }
  auto owned = std::make_unique<Account>();
  owned->tenant = tenant;
  take_turns_of_tenant(state, *owned);
  Account& account = add_account(gpu.quota, std::move(owned));
  if (const auto here = gpu.of_tenant.find(tenant); here != gpu.of_tenant.end()) open_account(gpu, here->second, account);
  if (const auto limit = state.core_limits.find(tenant); limit != state.core_limits.end()) {
    account.limit.ceiling = limit->second.ceiling;
    account.limit.reserved = limit->second.reserved;
    // A tenant that comes in mid-window has the rest of it, as set_share has it for the quota.
    if (is_windowed(state.config, gpu))
      account.ceiling_balance = portion(rest_of_window(state.config, gpu, now), account.limit.ceiling_rate());
  }
  account.joined_at = account.last_busy = now;
  note_change(gpu.quota, account);
  return account;
}

void begin_account(State& state, Gpu& gpu, TenantId tenant, Instant now) {
  if (gpu.of_tenant.at(tenant).account != nullptr) return;
  begin_accounts(gpu, now);
  account_of(state, gpu, tenant, now);
}

// Its ceiling is taken away: another one may come, and what it owes must not be gone for that.
static void keep_what_is_owed(const Config& config, const Gpu& gpu, Account& account) {
  account.lifted.owed = std::max<Duration>(-account.ceiling_balance, 0);
  account.lifted.spent =
      portion(window_of(config, gpu), account.limit.ceiling_rate()) - account.ceiling_balance;  // what it owed before the window included
  account.lifted.spent_until = is_windowed(config, gpu) ? gpu.quota.window_start + window_of(config, gpu) : 0;
}

// It had none. What it used, or saved, without a ceiling is nobody's business; what it owed when it lost its last one it still owes.
static void begin_ceiling(const Config& config, const Gpu& gpu, Account& account, Instant now) {
  const bool windowed = is_windowed(config, gpu), in_its_window = windowed && now < account.lifted.spent_until;
  const int64_t rate = account.limit.ceiling_rate();
  const Duration owed = in_its_window ? account.lifted.spent : std::min(account.lifted.owed, portion(kDebtMax, rate));
  const Duration window = in_its_window ? window_of(config, gpu) : windowed ? rest_of_window(config, gpu, now) : 0;
  account.ceiling_balance = portion(window, rate) - owed;
  account.consumed.recent.newer = account.consumed.recent.before = 0;
  account.slice.saves = false;
  account.lifted.owed = account.lifted.spent = 0;
  account.lifted.spent_until = 0;
  // Among others its place stays what it was: no change of a ceiling clears what it owes them. What it saved by another rule is not spent
  // under this one.
  if (gpu.quota.limited) {
    if (!windowed) account.balance = std::min<Duration>(account.balance, 0);
    return;
  }
  account.balance = -owed;
  account.used = owed > 0;
  account.quota = in_its_window ? 1 : 0;  // set_share: the rest of a window that it knows, or all of a new one
}

// A lower limit came: what was saved under the former one is worth one period of it.
static void lower_savings(const Config& config, const Gpu& gpu, Account& account) {
  if (is_windowed(config, gpu)) return;
  const Duration most = portion(gpu.quota.period, account.limit.ceiling_rate());
  account.balance = std::min(account.balance, most);
  account.ceiling_balance = std::min(account.ceiling_balance, most);
}

void set_core_limit(Context& context, const ComputeLimit& event) {
  const int limit = std::clamp(event.ceiling, 1, 100), reserved = std::clamp(event.reserved, 0, limit);
  if (limit == 100 && reserved == 0) {
    context.state.core_limits.erase(event.tenant);
  } else {
    context.state.core_limits[event.tenant] = {limit, reserved};
  }
  for (Gpu* const there : gpus_of(context.state, event.tenant)) {
    Gpu& gpu = *there;
    Account* const known = known_account(context.config(), gpu, event.tenant);
    if (known == nullptr) {
      context.state.away.erase({event.tenant, gpu.id});
      continue;
    }
    begin_accounts(gpu, context.now);
    Account& account = *known;
    const CoreLimit former = account.limit;
    note_change(gpu.quota, account);
    if (former.ceiling == limit && former.reserved == reserved) continue;
    if (limit == 100 && former.ceiling < 100) keep_what_is_owed(context.config(), gpu, account);
    account.limit.ceiling = limit;
    account.limit.reserved = reserved;
    if (former.ceiling == 100 && limit < 100) {
      begin_ceiling(context.config(), gpu, account, context.now);
    } else if (limit < 100 && is_windowed(context.config(), gpu)) {  // it counts from its window's beginning: what was used stays used
      account.ceiling_balance += portion(window_of(context.config(), gpu), (limit - former.ceiling) * (kWholeGpu / 100));
    } else if (limit < former.ceiling || reserved < former.reserved) {
      lower_savings(context.config(), gpu, account);
    }
    note_limit(context, gpu, account, former);
  }
}

void take_kept_account(Context& context, const AccountKept& event) {
  const auto gpu = context.state.gpus.find(event.gpu);
  if (gpu == context.state.gpus.end()) return;
  Account* const known = gpu->second.quota.accounts.find(event.tenant);
  if (known == nullptr) return;  // it has no client here
  Account& account = *known;
  unrank(gpu->second.quota, account);
  account.joined_at = std::min(account.joined_at, event.joined_at);
  account.consumed.billed += std::max<Duration>(event.used, 0);
  account.throttling.waiting += std::max<Duration>(event.throttled_time, 0);
  const Duration debt = std::clamp<Duration>(event.debt, 0, std::max(kDebtMax, 2 * gpu->second.quota.period));
  if (debt == 0) return;
  if (!account.limit.has_ceiling()) account.lifted.owed = std::max(account.lifted.owed, debt);
  account.balance = std::min<Duration>(account.balance, 0) - debt;
  account.ceiling_balance = std::min<Duration>(account.ceiling_balance, 0) - debt;
  account.used = true;
  note_change(gpu->second.quota, account);
}

void quota_config_changed(Context& context, const Config& former) {
  const Config& config = context.config();
  for (auto& [id, gpu] : context.state.gpus) {
    gpu.quota.shares_known = false;
    gpu.quota.changes.all = gpu.quota.changes.balances = gpu.quota.changes.hold_all = true;
    earn_left(former, gpu);
    gpu.quota.left.accounts.extract_if(&gpu.quota.accounts, [](const Account&) { return true; });  // until they are looked at again
    gpu.quota.left.looked_at.clear();
    unrank_all(gpu.quota);
    gpu.quota.changes.ranking.open = false;
    if (!gpu.quota.limited) continue;
    if (former.scheduling_mode != config.scheduling_mode) {
      ++gpu.quota.mode_changes;
      const std::string now(config.scheduling_mode.name), before(former.scheduling_mode.name);
      context.note(Note::Level::kInfo, gpu, 0, "scheduling mode " + now + " now (was " + before + ")");
    }
    if (former.compute_window == config.compute_window) continue;
    if (is_windowed(config, gpu)) {  // a window begins; what is owed stays owed
      end_window(context, gpu, context.now - gpu.quota.window_start, config.compute_window);
    } else {  // what a long window allowed is not saved up for the time after it
      for (Account& account : gpu.quota.accounts) {
        account.balance = std::min(account.balance, portion(window_of(config, gpu), 2 * account.quota));
        account.ceiling_balance = std::min(account.ceiling_balance, portion(window_of(config, gpu), 2 * account.limit.ceiling_rate()));
      }
    }
  }
}

// What of the turn that ends is not billed, because nobody worked then: from the grant to its first work, and from the end of its last
// to the end of the turn. Only the client saw that; so far as it is not believed, nothing but what a hand-over is known to take.
static Duration unused_in(const Context& context, const Gpu& gpu, Account& account, const Client& client, bool dropped,
                          std::optional<Duration> used) {
  const Duration turn = context.now - *client.turn.start;
  const Duration known = dropped ? std::min(hand_over(gpu), turn) : 0;
  // Of a turn that began beside another of its tenant's processes, the tenant may have used what this one did not.
  if (!used || *client.turn.start > account.slice.began) return known;
  const Duration unused = account.trust.believe(turn - std::max<Duration>(*used, 0), context.now);
  return portion(unused, billing_rate(context.config(), gpu, account));
}

// How a turn ended. What is known of a pause that was looked for is only that it is longer than half of what ends turns else.
static void note_gap(Account& account, bool by_choice, Duration used, Instant now) {
  Probe& probe = account.slice.probe;
  const bool probed = probe.turns > 0;
  if (probed) {
    --probe.turns;
    probe.at = now;
  } else if (now - probe.at >= kProbePause) {
    probe.turns = kProbedAgain;
  }
  if (probed && by_choice && used > kProbedBurstMost && !account.slice.gappy) {
    probe.turns = 0;
    return;
  }
  account.slice.gaps = (3 * account.slice.gaps + (by_choice ? 100 : 0)) / 4;
}

void take_back(Account& account, Duration unused) {
  account.balance += unused;
  account.ceiling_balance += unused;
  account.consumed.taken_back += unused;
}

// A client waits for kPauseAfter before it pauses, because it is asked to, and the GPU runs each burst a little later than it is submitted:
// what it did not use then is not billed, but of what it says no more than the pause lasts. Returns what it used for the rest of the rules.
std::optional<Duration> note_unused_before_pause(const Context& context, const Gpu& gpu, Client& client, std::optional<Duration> used) {
  client.turn.pause.unused_before = 0;
  Account* const account = client.indexed.tenancy->account;
  if (!gpu.quota.limited || account == nullptr || !client.turn.start || !used || *client.turn.start > account->slice.began) return used;
  const Duration turn = context.now - *client.turn.start;
  const Duration unused = turn - std::max<Duration>(*used, 0);
  const Duration start = std::clamp<Duration>(unused - kPauseAfter, 0, std::min(kStartMost, turn / kStartPart));
  client.turn.pause.unused_before = std::clamp<Duration>(unused, 0, kPauseAfter) + account->trust_of_bursts.believe(start, context.now);
  client.turn.pause.billed_before = billing_rate(context.config(), gpu, *account);
  return *used + client.turn.pause.unused_before;
}

void quota_pause_ended(const Context& context, const Gpu& gpu, Client& client) {
  const Duration unused = std::exchange(client.turn.pause.unused_before, 0);
  Account* const account = client.indexed.tenancy->account;
  if (unused == 0 || !client.turn.pause.since || !gpu.quota.limited || account == nullptr) return;
  take_back(*account, std::min(portion(unused, client.turn.pause.billed_before), context.now - *client.turn.pause.since));
  note_verdict(client.indexed.home->quota, *account);
}

void quota_turn_ended(Context& context, Gpu& gpu, const Client& client, bool by_choice, std::optional<Duration> used) {
  Quota& quota = gpu.quota;
  if (!quota.limited || client.indexed.tenancy->account == nullptr || !client.turn.start) return;
  Account& account = *client.indexed.tenancy->account;
  const bool goes_on =
      any_client(*client.indexed.tenancy, [&](const Client& other) { return other.id != client.id && use_of(other) != Use::kNone; });
  if (goes_on) return;
  account.slice.interrupted = !by_choice;
  note_change(quota, account);
  note_gap(account, by_choice, used.value_or(context.now - *client.turn.start), context.now);
  const bool dropped = !by_choice && client.state == ClientState::kDropping;
  if (dropped) quota.hand_overs.note(context.now - client.drain.asked_at);
  const Duration unused = unused_in(context, gpu, account, client, dropped, used);
  take_back(account, unused);
  if (!dropped || is_windowed(context.config(), gpu)) return;
  const int64_t carried = context.config().quota_carryover_percent.value_or(100) * (kWholeGpu / 100);
  if (account.balance < 0) account.balance = portion(account.balance, carried);
  if (account.ceiling_balance < 0) account.ceiling_balance = portion(account.ceiling_balance, carried);
}

}  // namespace nvshare::policy
