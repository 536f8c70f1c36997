// Compute limits: which accounts a step looks at. Those that changed (note_change), and those that were busy and whose time to count as
// active, or as present, is over. With gangs all of them.
#include <algorithm>

#include "policy/concerns.h"

namespace nvshare::policy {

void note_change(Quota& quota, Account& account) {
  Seen& seen = account.seen;
  if (!seen.to_look) quota.changes.to_look.push_back(&account);
  if (!seen.to_judge) quota.changes.to_judge.push_back(&account);
  seen.to_look = seen.to_judge = true;
}

Instant last_busy(const Quota& quota, const Account& account) { return account.seen.busy ? quota.changes.looked_at : account.last_busy; }

static void note_until(std::set<std::pair<Instant, TenantId>>& index, TenantId tenant, Instant& known, Instant until) {
  if (known == until) return;
  if (known != 0) index.erase({known, tenant});
  if (until != 0) index.emplace(until, tenant);
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
  note_until(changes.active, account.tenant, seen.active_until, account.active && !busy ? account.last_busy + kActiveGrace : 0);
  note_until(changes.present, account.tenant, seen.present_until, present && !busy ? account.last_busy + kPresentGrace : 0);
  const bool limited = here && account.is_limited();
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

static void look_at_due(Context& context, Quota& quota, std::set<std::pair<Instant, TenantId>>& index) {
  while (!index.empty() && index.begin()->first <= context.now) look_at(context, quota, *quota.accounts.find(index.begin()->second));
}

// Of tenants without clients here: those that owe nothing, or nothing any more.
static void forget_gone(Context& context, Quota& quota) {
  Changes& changes = quota.changes;
  std::erase_if(changes.gone, [](Account* account) { return account->here != nullptr && std::exchange(account->seen.gone, false); });
  const auto over = [&](const Account* account) { return account->here == nullptr && !outlives_clients(quota, *account, context.now); };
  if (std::none_of(changes.gone.begin(), changes.gone.end(), over)) return;
  quota.shares_known = false;
  changes.forget(over);
  quota.accounts.extract_if(nullptr, [&](const Account& account) { return over(&account); });
}

void look_at_accounts(Context& context, Quota& quota) {
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
  forget_gone(context, quota);
}

}  // namespace nvshare::policy
