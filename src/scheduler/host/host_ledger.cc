#include "scheduler/host/host_ledger.h"

#include <algorithm>

namespace nvshare::scheduler {

// ---- clients ----

std::optional<HostLedger::Account> HostLedger::close(policy::ClientId client) {
  Account* const account = accounts_.find(client);
  if (account == nullptr) return std::nullopt;
  count(client, *account, -1);
  std::optional<Account> closed = std::move(*account);
  accounts_.erase(client);
  for (const auto& [id, segment] : closed->segments) client_of_.erase(id);
  return closed;
}

// All that this client adds to the sums.
void HostLedger::count(policy::ClientId client, const Account& account, int sign) {
  sums_.all.lent += sign * account.lent;
  sums_.all.lent_scheduler += sign * account.lent_scheduler;
  sums_.all.unbuilt += sign * std::max<int64_t>(0, account.lent - std::max(account.ready, account.adopted));
  sums_.all.used += sign * account.used;
  sums_.all.empty += sign * account.empty();
  sums_.all.empty_scheduler += sign * std::min(account.empty(), account.there_scheduler);
  sums_.all.scheduler_owners += account.owner == Owner::kScheduler ? sign : 0;
  sums_.change_tenant(account.tenant, [&](HostSums::OfTenant& tenant) {
    tenant.clients += sign;
    tenant.held += sign * account.lent;
    tenant.held_scheduler += sign * account.lent_scheduler;
    tenant.segments += sign * static_cast<int64_t>(account.segments.size());
    tenant.used += sign * account.used;
  });
  const auto keep = [&](std::set<policy::ClientId>& set, bool is_in) {
    if (is_in && sign > 0) set.insert(client);
    if (is_in && sign < 0) set.erase(client);
  };
  keep(unanswered_, !account.answered);
  keep(missing_, account.answered && account.missing > 0);
  keep(may_have_empty_, account.may_have_empty());
  keep(shrinking_, account.is_awaited());
}

// ---- segments of clients ----

void HostLedger::count_segment(Account* account, const Segment& segment, int sign) {
  account->lent += sign * segment.bytes;
  if (segment.adopted) account->adopted += sign * segment.bytes;
  if (segment.owner != Owner::kScheduler) return;
  account->lent_scheduler += sign * segment.bytes;
  if (segment.there) account->there_scheduler += sign * segment.bytes;
}

void HostLedger::put(policy::ClientId client, SegmentId id, const Segment& segment) {
  change(client, [&](Account& account) {
    const auto [at, is_new] = account.segments.try_emplace(id, segment);
    if (!is_new) return;
    count_segment(&account, segment, +1);
    client_of_[id] = client;
  });
}

void HostLedger::take(SegmentId id) {
  const auto client = client_of_.find(id);
  if (client == client_of_.end()) return;
  change(client->second, [&](Account& account) {
    const auto at = account.segments.find(id);
    count_segment(&account, at->second, -1);
    account.segments.erase(at);
  });
  client_of_.erase(client);
}

void HostLedger::set_there(policy::ClientId client, SegmentId id) {
  change(client, [&](Account& account) {
    const auto at = account.segments.find(id);
    if (at == account.segments.end()) return;
    count_segment(&account, at->second, -1);
    at->second.there = true;
    count_segment(&account, at->second, +1);
  });
}

std::string HostLedger::wrong_in_sums() const {
  HostLedger anew;
  for (const auto& entry : accounts()) {
    const policy::ClientId client = entry.first;
    const Account& account = entry.second;
    anew.open(client, [&](Account& copy) {
      copy = account;
      copy.segments.clear();
      copy.lent = copy.lent_scheduler = copy.there_scheduler = copy.adopted = 0;
    });
    for (const auto& [id, segment] : account.segments) anew.put(client, id, segment);
  }
  unowned_.copy_to(&anew.unowned_);
  if (anew.sums_.all != sums_.all) return "the sums over all clients";
  if (anew.sums_ != sums_) return "the sums of tenants";
  if (anew.client_of_ != client_of_) return "whose segment is whose";
  if (anew.unanswered_ != unanswered_ || anew.missing_ != missing_ || anew.shrinking_ != shrinking_) return "the lists of clients";
  if (anew.may_have_empty_ != may_have_empty_) return "who may have something unused";
  const char* differs = unowned_.differs_from(anew.unowned_);
  return differs != nullptr ? differs : "";
}

}  // namespace nvshare::scheduler
