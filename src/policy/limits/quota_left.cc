// Accounts of tenants that left a debt (Left). They are looked at ten times a second. Those that owe nothing any more rest: limits do not
// hold them back, and say nothing of them, whatever time adds to their balances, which is nothing for most. So what time has passed is
// kept in a list, and added, in the same steps as for those that are looked at, when the tenant is back or somebody asks. A seventh of what
// a step cost beside limits was to go over them, where tenants come and go.
#include <algorithm>
#include <utility>
#include <vector>

#include "policy/limits/limits.h"
#include "policy/limits/quota_earnings.h"

namespace nvshare::policy {
namespace {

constexpr size_t kTimesKept = 32;  // then they are added to all that rest

// hold_to_ceiling() and hold_to_quota() change nothing, and go on to: what has left does not become less, and is told to nobody.
bool may_rest(const Account& account) {
  const bool held = account.throttled || account.yields, owes = std::min(account.balance, account.ceiling_balance) <= -kHalfBandLeast;
  return account.limit.has_ceiling() && account.limit.reserved == 0 && !held && !owes;
}

void add_times(const Config& config, Left& left) {
  LeftTimes times(config, left.times);
  for (const auto& [busy, account] : left.resting) {
    times.add_to(*account);
    account->seen.rests_since = 0;
  }
  left.times.clear();
}

// Those whose debt no limit asks for any more, and those that left too long ago.
void forget_left(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  Left& left = quota.left;
  std::vector<Account*> gone;
  const auto is_over = [&](Account* account) {
    if (outlives_clients(quota, *account, context.now)) return false;
    gone.push_back(account);
    return true;
  };
  std::erase_if(left.looked_at, is_over);
  while (!left.resting.empty() && is_over(left.resting.begin()->second)) left.resting.erase(left.resting.begin());
  for (const Account* account : gone) context.state.away.erase({account->tenant, gpu.id});
  left.accounts.erase(gone);
}

void earn_looked_at(const Config& config, Gpu& gpu, Duration time) {
  Earnings earnings(config, gpu, time, gpu.quota.until);
  if (!earnings.any()) return;
  each_of(gpu.quota.left.looked_at, [&](Account& account) {
    if (account.used) earnings.add_to(account, false);
  });
}

}  // namespace

void set_left_apart(Context& context, Gpu& gpu) {
  const Config& config = context.config();
  Quota& quota = gpu.quota;
  Left& left = quota.left;
  left.settles = context.now - left.at >= kLeftPause;
  if (!left.settles) return;
  left.at = context.now;
  const Duration time = std::exchange(left.earns, 0);
  forget_left(context, gpu);
  earn_looked_at(config, gpu, time);
  if (left.resting.empty() || left.times.size() == kTimesKept) add_times(config, left);
  if (!left.resting.empty()) left.times.push_back({time, quota.until, pace_of(gpu)});
  if (quota.accounts.size() == quota.accounts_here) return;
  const auto is_gone = [](const Account* account) { return account->here == nullptr; };
  for (Account* account : quota.changes.gone) {
    account->slice.runs = false;
    account->seen = {};
    account->rhythm = {};
  }
  quota.changes.forget(is_gone);
  quota.accounts.extract_if(&left.accounts, [&](Account& account) {
    if (!is_gone(&account)) return false;
    insert_by_tenant(left.looked_at, &account);
    return true;
  });
}

void let_left_rest(const Config& config, Quota& quota) {
  Left& left = quota.left;
  if (!quota.most_of_idle || config.compute_window > 0) return;
  std::erase_if(left.looked_at, [&](Account* account) {
    if (!may_rest(*account)) return false;
    account->seen.rests = true;
    account->seen.rests_since = left.times.size();
    left.resting.emplace({account->last_busy, account->tenant}, account);
    return true;
  });
}

void look_at_all_left(const Config& config, Gpu& gpu) {
  Left& left = gpu.quota.left;
  if (left.resting.empty()) return;
  add_times(config, left);
  for (const auto& [busy, account] : left.resting) account->seen.rests = false;
  left.resting.clear();
  left.looked_at = left.accounts.all();
}

void earn_left(const Config& config, Gpu& gpu) {
  look_at_all_left(config, gpu);
  earn_looked_at(config, gpu, std::exchange(gpu.quota.left.earns, 0));
}

std::unique_ptr<Account> take_left(const Config& config, Gpu& gpu, TenantId tenant) {
  Quota& quota = gpu.quota;
  Left& left = quota.left;
  std::unique_ptr<Account> account = left.accounts.extract(tenant);
  if (account == nullptr) return nullptr;
  if (account->seen.rests) {
    LeftTimes(config, left.times).add_to(*account);
    left.resting.erase(std::pair(account->last_busy, tenant));
    account->seen = {};
  } else {
    erase_by_tenant(left.looked_at, account.get());
  }
  if (account->used) Earnings(config, gpu, left.earns, quota.until).add_to(*account, false);
  return account;
}

}  // namespace nvshare::policy
