// Which of the tenants that take turns comes next: the one that is owed most. Most steps find whom the step before found, so the first few
// places are kept (Ranking).
#include <cmath>
#include <limits>

#include "policy/concerns.h"

namespace nvshare::policy {
namespace {

// Without an overflow.
bool owed_fits(const Account& account) {
  constexpr Duration kProductFits = 9'000'000'000'000;
  return account.balance >= -kProductFits && account.balance <= kProductFits;
}

// Finds the first few places of many accounts.
class FirstPlaces {
 public:
  FirstPlaces(std::vector<Ranking::Place>& places, size_t most) : places_(places), most_(most) { places_.clear(); }

  // Nearly all are owed less by far, which a product of floating point shows: so little is not worth a call.
  [[gnu::always_inline]] void add(Account& account) {
    const double own = static_cast<double>(account.balance) * kWholeGpu;
    if (own < surely_less_ * static_cast<double>(std::max<int64_t>(account.quota, 1))) [[likely]] {
      complete_ = false;
      return;
    }
    insert(account);
  }
  bool complete() const { return complete_; }

 private:
  [[gnu::noinline]] void insert(Account& account) {
    const Ranking::Place place{owed(account), account.tenant, &account};
    if (places_.size() == most_ && !place.is_before(places_.back())) {
      complete_ = false;
      return;
    }
    const auto after = std::find_if(places_.begin(), places_.end(), [&](const Ranking::Place& other) { return place.is_before(other); });
    places_.insert(after, place);
    if (places_.size() > most_) {
      complete_ = false;
      places_.pop_back();
    }
    if (places_.size() < most_) return;
    const auto last = static_cast<double>(places_.back().owed);
    surely_less_ = last - std::abs(last) * 1e-9 - 1;
  }

  std::vector<Ranking::Place>& places_;
  const size_t most_;
  bool complete_ = true;                                        // no other was added
  double surely_less_ = std::numeric_limits<double>::lowest();  // who is owed less than that comes after the last
};

void rank_all(Quota& quota, const Exclusive& is_exclusive) {
  constexpr size_t kFirst = 2;  // whose turn begins now, and who comes after it
  Ranking& ranking = quota.changes.ranking;
  // Most often they are the same as before, or nearly as far behind: so these are compared with first.
  std::array<Account*, kFirst> former{};
  for (size_t i = 0; i < std::min(kFirst, ranking.first.size()); ++i) former[i] = ranking.first[i].account;
  FirstPlaces first(ranking.first, kFirst);
  const auto is_former = [&](const Account& account) { return std::find(former.begin(), former.end(), &account) != former.end(); };
  for (Account* account : former) {
    if (account != nullptr && waits_for_turn(is_exclusive, *account)) first.add(*account);
  }
  for (Account& account : quota.accounts) {
    if (waits_for_turn(is_exclusive, account) && !is_former(account)) first.add(account);
  }
  ranking.known = true;
  ranking.bound.reset();
  if (!first.complete()) ranking.bound = ranking.first.back();
}

void rank_anew(Ranking& ranking, const Exclusive& is_exclusive, Account& account) {
  std::erase_if(ranking.first, [&](const Ranking::Place& place) { return place.account == &account; });
  if (!waits_for_turn(is_exclusive, account)) return;
  const Ranking::Place place{owed(account), account.tenant, &account};
  if (ranking.bound && !place.is_before(*ranking.bound)) return;
  const auto after = std::find_if(ranking.first.begin(), ranking.first.end(), [&](const auto& other) { return place.is_before(other); });
  ranking.first.insert(after, place);
}

const Ranking& ranking_on(Gpu& gpu, const Exclusive& is_exclusive) {
  Changes& changes = gpu.quota.changes;
  for (Account* account : changes.to_rank) {
    account->seen.to_rank = false;
    if (changes.ranking.known) rank_anew(changes.ranking, is_exclusive, *account);
  }
  changes.to_rank.clear();
  if (!changes.ranking.known || (changes.ranking.first.empty() && changes.ranking.bound)) rank_all(gpu.quota, is_exclusive);
  return changes.ranking;
}

// Of those that wait for their turn the first that may have it.
NextTurn first_of(Gpu& gpu, const Exclusive& is_exclusive, TenantId but_not) {
  Quota& quota = gpu.quota;
  const auto may = [&](const Account& account) { return account.tenant != but_not && !quota.skipped.contains(account.tenant); };
  const Ranking& ranking = ranking_on(gpu, is_exclusive);
  for (const Ranking::Place& place : ranking.first) {
    if (may(*place.account)) return {place.account, place.owed};
  }
  if (!ranking.bound) return {};
  std::vector<Ranking::Place> others;
  FirstPlaces first(others, 1);
  for (Account& account : quota.accounts) {
    if (waits_for_turn(is_exclusive, account) && may(account)) first.add(account);
  }
  return others.empty() ? NextTurn{} : NextTurn{others.front().account, others.front().owed};
}

// Of those that are throttled. Above a ceiling that is more than its quota, one waits, whoever stands still.
NextTurn first_throttled(Quota& quota, const Exclusive& is_exclusive) {
  std::vector<Ranking::Place> places;
  FirstPlaces first(places, 1);
  for (Account* account : quota.changes.held) {
    if (account->throttled && account->does.waits > 0 && is_exclusive(*account) && account->quota >= account->limit.ceiling_rate() &&
        !quota.skipped.contains(account->tenant))
      first.add(*account);
  }
  return places.empty() ? NextTurn{} : NextTurn{places.front().account, places.front().owed};
}

// Those that take turns, and wait or will in a moment, are together entitled to all of the GPU.
bool is_wanted_in_full(const Quota& quota, const Exclusive& is_exclusive) {
  int64_t demand = 0;
  for (const Account& account : quota.accounts) {
    const bool wants = account.does.waits > 0 || (account.slice.interrupted && account.active);
    if (wants && is_exclusive(account)) demand += account.quota;
  }
  return demand >= kWholeGpu - kWholeGpu / 1000;
}

}  // namespace

Duration owed(const Account& account) {
  const int64_t quota = std::max<int64_t>(account.quota, 1);
  if (owed_fits(account)) return account.balance * kWholeGpu / quota;
  return account.balance / quota * kWholeGpu + account.balance % quota * kWholeGpu / quota;
}

NextTurn next_of(Context& context, Gpu& gpu, const Exclusive& is_exclusive, TenantId but_not) {
  const NextTurn best = first_of(gpu, is_exclusive, but_not);
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
