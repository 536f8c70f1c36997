// Compute limits: which accounts a step looks at. Those that changed (note_change), and those that were busy and whose time to count as
// active, or as present, is over. With gangs all of them. And what follows for who runs, who may owe, and who is present.
#include <algorithm>
#include <utility>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"

namespace nvshare::policy {

void note_change(Quota& quota, Account& account) {
  Seen& seen = account.seen;
  if (!seen.to_look) quota.changes.to_look.push_back(&account);
  if (!seen.to_judge) quota.changes.to_judge.push_back(&account);
  seen.to_look = seen.to_judge = true;
  note_verdict(quota, account);
}

void note_verdict(Quota& quota, Account& account) {
  unrank(quota, account);
  if (account.here == nullptr) return;
  if (!std::exchange(account.seen.to_hold, true)) quota.changes.to_hold.push_back(&account);
  note_to_rank(quota.changes, account);
}

static auto place_in(std::vector<Account*>& accounts, const Account* account) {
  const auto before = [&](const Account* other) { return other->tenant < account->tenant; };
  return accounts.begin() + (first_not(accounts.data(), accounts.size(), before) - accounts.data());
}

void insert_by_tenant(std::vector<Account*>& accounts, Account* account) { accounts.insert(place_in(accounts, account), account); }

void erase_by_tenant(std::vector<Account*>& accounts, const Account* account) { accounts.erase(place_in(accounts, account)); }

Account& add_account(Quota& quota, std::unique_ptr<Account> account) {
  insert_by_tenant(quota.changes.apart, account.get());
  return quota.accounts.insert(std::move(account));
}

void set_owner(Quota& quota, Account* owner) {
  const TenantId tenant = owner != nullptr ? owner->tenant : 0;
  if (quota.owner == tenant) return;
  for (Account* account : {quota.owner != 0 ? quota.owners_account() : nullptr, owner}) {
    if (account != nullptr) note_verdict(quota, *account);
  }
  quota.owner = tenant;
  quota.changes.owner = owner;
}

Instant last_busy(const Quota& quota, const Account& account) { return account.seen.busy ? quota.changes.looked_at : account.last_busy; }

static void note_until(FlatMap<std::pair<Instant, TenantId>, Account*>& index, Account& account, Instant& known, Instant until) {
  if (known == until) return;
  if (known != 0) index.erase({known, account.tenant});
  if (until != 0) index.emplace({until, account.tenant}, &account);
  known = until;
}

static void look_at(Context& context, Quota& quota, Account& account) {
  Changes& changes = quota.changes;
  Seen& seen = account.seen;
  const bool here = account.here != nullptr, busy = account.does.busy > 0;
  if (seen.busy) account.last_busy = changes.looked_at;
  if (busy) account.last_busy = context.now;
  seen.busy = busy;
  const bool may_count = here && account.used;
  const bool present = busy || (may_count && context.now - account.last_busy < kPresentGrace);
  account.active = busy || (may_count && context.now - account.last_busy < kActiveGrace);
  if (account.present != present) quota.changes.counted.reset();
  account.present = present;
  account.gang = here && !context.state.gangs.empty() &&
                 any_client(*account.here, [&](const Client& client) { return gang_of(context.state, client) != nullptr; });
  note_until(changes.active, account, seen.active_until, account.active && !busy ? account.last_busy + kActiveGrace : 0);
  note_until(changes.present, account, seen.present_until, present && !busy ? account.last_busy + kPresentGrace : 0);
  const bool limited = here && account.limit.is_limited();
  changes.limited += limited - seen.limited;
  seen.limited = limited;
  quota.shares_known &= account.shares_are_known();
  if (!here && !seen.gone) changes.gone.push_back(&account);
  seen.gone |= !here;
}

static void look_at_all(Context& context, Quota& quota) {
  quota.changes.counted.reset();
  for (Account& account : quota.accounts) {
    look_at(context, quota, account);
    note_change(quota, account);  // to be judged
  }
}

static void look_at_due(Context& context, Quota& quota, const FlatMap<std::pair<Instant, TenantId>, Account*>& index) {
  while (!index.empty() && index.begin()->first.first <= context.now) look_at(context, quota, *index.begin()->second);
}

// Of tenants without clients here: those that owe nothing, or nothing any more.
static void forget_gone(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  Changes& changes = quota.changes;
  std::erase_if(changes.gone, [](Account* account) { return account->here != nullptr && std::exchange(account->seen.gone, false); });
  const auto over = [&](const Account* account) { return account->here == nullptr && !outlives_clients(quota, *account, context.now); };
  if (std::none_of(changes.gone.begin(), changes.gone.end(), over)) return;
  quota.shares_known = false;
  changes.forget(over);
  quota.accounts.extract_if(nullptr, [&](const Account& account) {
    const bool is_over = over(&account);
    if (is_over) context.state.away.erase({account.tenant, gpu.id});
    return is_over;
  });
}

void look_at_accounts(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  Changes& changes = quota.changes;
  const bool gangs = !context.state.gangs.empty();
  if (gangs || changes.all) {
    look_at_all(context, quota);
  } else {
    for (Account* account : changes.to_look) look_at(context, quota, *account);
    look_at_due(context, quota, changes.active);
    look_at_due(context, quota, changes.present);
  }
  for (Account* account : changes.to_look) account->seen.to_look = false;
  changes.to_look.clear();
  changes.all = gangs;  // once more when they are gone
  changes.looked_at = context.now;
  quota.limited = changes.limited > 0;
  forget_gone(context, gpu);
}

static void judge_turn(Context& context, Gpu& gpu, Account& account) {
  const bool runs = account.does.works > 0;
  if (runs && !account.slice.runs) account.slice.began = context.now;
  account.slice.runs = runs;
  // A tenant that nobody interrupts shows by holding on that it leaves no gaps.
  const Instant long_turn = account.slice.began + 3 * std::max(gpu.quota.period, kPeriodMax);
  if (runs && account.slice.gappy && context.now >= long_turn) account.slice.gaps = 0;
  if (runs && account.slice.gappy && context.now < long_turn) context.wake(gpu, long_turn);
}

static void judge_use(Context& context, Gpu& gpu, Account& account) {
  if (account.slice.runs || account.does.works > 0) judge_turn(context, gpu, account);
  const bool gappy = account.slice.gaps >= (account.slice.gappy ? kGapsToLeave : kGapsToJoin);
  if (std::exchange(account.slice.gappy, gappy) == gappy) return;
  note_verdict(gpu.quota, account);
  gpu.quota.changes.counted.reset();
  gpu.quota.changes.balances = true;
}

void judge_uses(Context& context, Gpu& gpu) {
  Changes& changes = gpu.quota.changes;
  for (Account* account : changes.to_judge) {
    account->seen.to_judge = false;
    if (!std::exchange(account->seen.runs, true)) changes.runs.push_back(account);
    if (!std::exchange(account->seen.held, true)) insert_by_tenant(changes.held, account);
  }
  changes.to_judge.clear();
  std::erase_if(changes.runs, [&](Account* account) {
    judge_use(context, gpu, *account);
    account->seen.runs = account->slice.runs;
    return !account->slice.runs;
  });
}

HeldAnew::HeldAnew(Changes& changes) : changes_(changes) {
  for (Account* account : changes.held) account->seen.held = false;
  changes.held.resize(changes.apart.size() + 1);  // a place past the last
}

HeldAnew::~HeldAnew() {
  changes_.held.resize(size_);
  for (Account* account : changes_.held) account->seen.held = true;
  changes_.balances = false;
}

const std::vector<Account*>& accounts_held(const Config& config, Gpu& gpu) {
  Changes& changes = gpu.quota.changes;
  if (!changes.balances) return changes.held;
  const Exclusive is_exclusive(config, gpu);
  HeldAnew held(changes);
  for (Account* account : changes.apart) held.add(*account, may_be_held(is_exclusive, *account));
  return changes.held;
}

Present count_present(const Config& config, const Gpu& gpu) {
  Present present;
  present.rotates = gpu.quota.mode == GpuMode::kRotation;
  const Exclusive is_exclusive(config, gpu);
  const auto add = [&](int64_t tenants, bool exclusive, int64_t quota) {
    present.tenants += tenants;
    present.exclusive += exclusive ? tenants : 0;
    present.least = std::min(present.least, std::max<int64_t>(quota, kWholeGpu / 200));
  };
  const Ranking& ranking = gpu.quota.changes.ranking;
  if (!ranking.places.empty()) add(std::ssize(ranking.places), true, ranking.quota);
  for (const Account* account : gpu.quota.changes.apart) {
    if (account->present) add(1, is_exclusive(*account), account->quota);
  }
  return present;
}

}  // namespace nvshare::policy
