// Which of the tenants that take turns comes next: the one that is owed most. Of many that wait for their turns nearly all are entitled to
// the same, and time changes what they are owed alike: these are ranked (Ranking), and cost nothing in a step that is about others. All
// others stand apart, and are gone over.
#include <cmath>
#include <limits>

#include "policy/limits/limits.h"
#include "policy/limits/quota_earnings.h"

namespace nvshare::policy {
namespace {

constexpr size_t kTimesMost = 256;  // then what ceilings allow is worked out for all that are ranked

void forget_times(Ranking& ranking) {
  ranking.times.clear();
  ranking.earned_most = ranking.earned;
  ranking.period_most = ranking.slice_most = 0;
}

// What its ceiling allows now. It mostly has all that waiting brings, and then no time adds anything.
Duration ceiling_balance_of(const Ranking& ranking, const Account& account) {
  const int ceiling = account.limit.ceiling;
  const Duration start = account.ranked.start;
  const Duration enough = std::max({start + ranking.earned_most, percent_of(ranking.period_most, ceiling), ranking.slice_most / 2});
  Duration balance = account.ceiling_balance;
  for (size_t i = account.ranked.since; i < ranking.times.size() && balance < enough; ++i) {
    const RankedTime& time = ranking.times[i];
    balance = grown_ceiling_balance(balance, start + time.earned, ceiling, time.time, time.period, time.slice);
  }
  return balance;
}

void bring_up_to_date(const Ranking& ranking, Account& account) {
  account.quota = ranking.quota;
  account.balance = account.ranked.start + ranking.earned;
  if (account.limit.has_ceiling()) account.ceiling_balance = ceiling_balance_of(ranking, account);
  account.ranked.is = false;
}

// Of one that waits for its turn: nothing but its balances changes with time, and those as they do for all that are ranked. `saved_most`:
// with more it may soon have saved up all that it can.
bool may_be_ranked(const Quota& quota, const Account& account, Duration saved_most) {
  const bool at_ceiling = account.limit.has_ceiling() && account.ceiling_balance <= 0;
  return may_stay_ranked(quota.changes.ranking, account) && account.quota == quota.changes.ranking.quota && !at_ceiling &&
         account.balance <= saved_most;
}

void rank(Changes& changes, Account& account) {
  Ranking& ranking = changes.ranking;
  if (ranking.places.empty()) forget_times(ranking);
  account.ranked = {true, account.balance - ranking.earned, ranking.times.size()};
  ranking.places.insert({account.ranked.start, account.tenant, &account});
  ++ranking.ceilings[static_cast<size_t>(account.limit.ceiling)];
  erase_by_tenant(changes.apart, &account);
}

// Finds the first place of many.
class First {
 public:
  // Nearly all are owed less by far, which a product of floating point shows: so little is not worth a call.
  [[gnu::always_inline]] void add(Account& account) {
    const double own = static_cast<double>(account.balance) * kWholeGpu;
    if (own < surely_less_ * static_cast<double>(std::max<int64_t>(account.quota, 1))) [[likely]]
      return;
    add(account, owed(account));
  }
  [[gnu::noinline]] void add(Account& account, Duration owed) {
    const bool comes_later =
        owed < next_.owed || (owed == next_.owed && next_.account != nullptr && account.tenant > next_.account->tenant);
    if (next_.account != nullptr && comes_later) return;
    next_ = {&account, owed};
    const auto most = static_cast<double>(owed);
    surely_less_ = most - std::abs(most) * 1e-9 - 1;
  }
  const NextTurn& next() const { return next_; }

 private:
  NextTurn next_;
  double surely_less_ = std::numeric_limits<double>::lowest();  // who is owed less than that comes later
};

// Of those that wait for their turn the first that may have it. Those apart that may be ranked are from now on.
NextTurn first_of(const Config& config, Gpu& gpu, const Exclusive& is_exclusive, TenantId but_not) {
  Quota& quota = gpu.quota;
  Ranking& ranking = quota.changes.ranking;
  const auto may = [&](const Account& account) { return account.tenant != but_not && !quota.skipped.contains(account.tenant); };
  const bool in_turns = quota.mode == GpuMode::kTurns || quota.mode == GpuMode::kRotation;
  const bool ranks = ranking.open && in_turns && !is_windowed(config, gpu);    // in windows nothing is earned
  const Duration saved_most = portion(window_of(config, gpu), ranking.quota);  // half of all
  First first;
  std::erase_if(quota.changes.to_rank, [&](Account* account) {
    const bool waits = waits_for_turn(is_exclusive, *account), joins = waits && ranks && may_be_ranked(quota, *account, saved_most);
    if (joins) rank(quota.changes, *account);
    if (waits && !joins && may(*account)) first.add(*account);
    account->seen.to_rank = waits && !joins;
    return !account->seen.to_rank;
  });
  const auto ranked = std::find_if(ranking.places.begin(), ranking.places.end(), [&](const auto& place) { return may(*place.account); });
  if (ranked != ranking.places.end()) first.add(*ranked->account, owed(ranking.balance(*ranked), ranking.quota));
  return first.next();
}

// Of those that are throttled. Above a ceiling that is more than its quota, one waits, whoever stands still.
NextTurn first_throttled(Quota& quota, const Exclusive& is_exclusive) {
  First first;
  for (Account* account : quota.changes.held) {
    if (account->throttled && account->does.waits > 0 && is_exclusive(*account) && account->quota >= account->limit.ceiling_rate() &&
        !quota.skipped.contains(account->tenant))
      first.add(*account);
  }
  return first.next();
}

// Those that take turns, and wait or will in a moment, are together entitled to all of the GPU.
bool is_wanted_in_full(const Quota& quota, const Exclusive& is_exclusive) {
  int64_t demand = std::ssize(quota.changes.ranking.places) * quota.changes.ranking.quota;
  for (const Account* account : quota.changes.apart) {
    const bool wants = account->does.waits > 0 || (account->slice.interrupted && account->active);
    if (wants && is_exclusive(*account)) demand += account->quota;
  }
  return demand >= kWholeGpu - kWholeGpu / 1000;
}

}  // namespace

bool may_stay_ranked(const Ranking& ranking, const Account& account) {
  const bool waits = account.does.waits > 0 && account.does.holds == 0 && account.active && account.present && !account.seen.to_look;
  const bool is_held = account.throttled || account.yields;
  const bool shares_alike = account.shares_are_known() && account.limit.reserved == 0 && account.limit.ceiling_rate() >= ranking.quota;
  const bool saves_alike = !account.slice.gappy;  // one that leaves gaps saves up for another period, also where it is told to take turns
  return waits && !is_held && shares_alike && saves_alike && account.turn_most == 0;
}

void unrank(Quota& quota, Account& account) {
  if (!account.ranked.is) return;
  Ranking& ranking = quota.changes.ranking;
  bring_up_to_date(ranking, account);
  ranking.places.erase({account.ranked.start, account.tenant, nullptr});
  --ranking.ceilings[static_cast<size_t>(account.limit.ceiling)];
  insert_by_tenant(quota.changes.apart, &account);
  note_to_rank(quota.changes, account);
}

void note_to_rank(Changes& changes, Account& account) {
  if (!std::exchange(account.seen.to_rank, true)) changes.to_rank.push_back(&account);
}

void unrank_all(Quota& quota) {
  Ranking& ranking = quota.changes.ranking;
  for (const Ranking::Place& place : ranking.places) bring_up_to_date(ranking, *place.account);
  ranking.places.clear();
  ranking.ceilings.fill(0);
  quota.changes.apart = quota.accounts.all();
  for (Account* account : quota.changes.apart) note_to_rank(quota.changes, *account);
}

Account unranked(const Quota& quota, const Account& account) {
  Account apart = account;
  if (account.ranked.is) bring_up_to_date(quota.changes.ranking, apart);
  return apart;
}

void note_ranked_time(Quota& quota, const RankedTime& time) {
  Ranking& ranking = quota.changes.ranking;
  if (ranking.places.empty()) return;
  ranking.times.push_back(time);
  ranking.earned_most = std::max(ranking.earned_most, time.earned);
  ranking.period_most = std::max(ranking.period_most, time.period);
  ranking.slice_most = std::max(ranking.slice_most, time.slice);
  if (ranking.times.size() < kTimesMost) return;
  for (const Ranking::Place& place : ranking.places) {
    Account& account = *place.account;
    if (account.limit.has_ceiling()) account.ceiling_balance = ceiling_balance_of(ranking, account);
    account.ranked.since = 0;
  }
  forget_times(ranking);
}

void set_ranked_quota(Quota& quota, int64_t quota_of_each) {
  Ranking& ranking = quota.changes.ranking;
  std::vector<Account*> below;
  for (int64_t percent = 0; percent <= 100 && percent * (kWholeGpu / 100) < quota_of_each; ++percent) {
    if (ranking.ceilings[static_cast<size_t>(percent)] == 0) continue;
    for (const Ranking::Place& place : ranking.places) {
      if (place.account->limit.ceiling == percent) below.push_back(place.account);
    }
  }
  for (Account* account : below) unrank(quota, *account);
  ranking.quota = quota_of_each;
}

Duration owed(Duration balance, int64_t quota) {
  constexpr Duration kProductFits = 9'000'000'000'000;
  quota = std::max<int64_t>(quota, 1);
  if (balance >= -kProductFits && balance <= kProductFits) return balance * kWholeGpu / quota;
  return balance / quota * kWholeGpu + balance % quota * kWholeGpu / quota;
}

NextTurn next_of(Context& context, Gpu& gpu, const Exclusive& is_exclusive, TenantId but_not) {
  const NextTurn best = first_of(context.config(), gpu, is_exclusive, but_not);
  if (but_not != 0 || is_windowed(context.config(), gpu)) return best;
  // Where all of the GPU is wanted who is owed most comes next, and nobody waits until a whole turn is saved up.
  const NextTurn throttled = first_throttled(gpu.quota, is_exclusive);
  const bool comes_first = throttled.account != nullptr && (best.account == nullptr || best.owed < throttled.owed);
  if (!comes_first || !is_wanted_in_full(gpu.quota, is_exclusive)) return best;
  Account& borrower = *throttled.account;
  borrower.throttled = false;
  note_verdict(gpu.quota, borrower);
  note_released(context, gpu, borrower);
  borrower.slice.borrows = true;
  return throttled;
}

}  // namespace nvshare::policy
