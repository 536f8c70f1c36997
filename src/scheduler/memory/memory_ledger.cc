#include "scheduler/memory/memory_ledger.h"

#include <algorithm>
#include <utility>

#include "base/fetch_ahead.h"

namespace nvshare::scheduler {
namespace {

// 0 means none.
int64_t lower_limit(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return a + b;
  return std::min(a, b);
}

}  // namespace

// ---- figures ----

int64_t MemoryLedger::limit_of_part(const Account& account, uint64_t part) {
  int64_t limit = 0;
  for (const auto& [id, lessee] : account.lessees) {
    if (lessee.part == part) limit = lower_limit(limit, lessee.own_limit);
  }
  return limit;
}

int64_t MemoryLedger::limit_in(const Account& account) {
  // One client, as most tenants have: a report asks for each.
  if (account.lessees.size() == 1) return lower_limit(account.node_limit, account.lessees.begin()->second.own_limit);
  std::map<uint64_t, int64_t> limit_of;  // each part; few
  for (const auto& [id, lessee] : account.lessees) limit_of[lessee.part] = lower_limit(limit_of[lessee.part], lessee.own_limit);
  int64_t sum = 0;
  for (const auto& [part, limit] : limit_of) {
    if (limit == 0) return account.node_limit;
    sum = std::min(sum + limit, kUnlimited);
  }
  return lower_limit(account.node_limit, sum);
}

int64_t MemoryLedger::bound_of(const Account& account, const Lessee& lessee, int64_t limit) {
  return lower_limit(limit, limit_of_part(account, lessee.part));
}

int64_t MemoryLedger::room_for(const Account& account, const Lessee& lessee, int64_t limit) {
  const int64_t of_part = limit_of_part(account, lessee.part);
  int64_t room = kUnlimited;
  if (limit != 0) room = std::min(room, limit - leased_in(account));
  if (of_part != 0) room = std::min(room, of_part - leased_in(account, lessee.part));
  return room;
}

int64_t MemoryLedger::others_of(const Account& account, const Lessee& lessee, int64_t limit) {
  const int64_t of_part = limit_of_part(account, lessee.part);
  const int64_t bound = lower_limit(limit, of_part);
  if (bound == 0) return charged_in(account) - lessee.charged;
  int64_t room = kUnlimited;
  if (limit != 0) room = std::min(room, limit - charged_in(account));
  if (of_part != 0) room = std::min(room, of_part - charged_in(account, lessee.part));
  return std::max<int64_t>(bound - lessee.charged - room, 0);
}

int64_t MemoryLedger::charged_in(const Account& account, Part part) {
  int64_t sum = 0;
  for (const auto& [id, lessee] : account.lessees) sum += !part || lessee.part == *part ? lessee.charged : 0;
  return sum;
}

// What nobody else may be given: the lease, which all that is charged came out of. What a client said last of its use may be older than
// its lease is. Only who had no limit before and does not answer counts with that.
int64_t MemoryLedger::counted(const Lessee& lessee) {
  return lessee.silent && lessee.lease > kUnlimited / 2 ? lessee.charged : lessee.lease;
}

int64_t MemoryLedger::leased_in(const Account& account, Part part) {
  int64_t sum = 0;
  for (const auto& [id, lessee] : account.lessees) sum = std::min(sum + (!part || lessee.part == *part ? counted(lessee) : 0), kUnlimited);
  return sum;
}

MemoryLedger::Account* MemoryLedger::account_of(ClientId client) {
  const auto place = places_.find(client);
  return place == places_.end() ? nullptr : place->second.account;
}

const MemoryLedger::Account* MemoryLedger::account_of(ClientId client) const {
  const auto place = places_.find(client);
  return place == places_.end() ? nullptr : place->second.account;
}

const MemoryLedger::Lessee* MemoryLedger::lessee_of(ClientId client) const {
  const auto place = places_.find(client);
  return place == places_.end() ? nullptr : place->second.lessee;
}

// ---- changes ----

MemoryLedger::Decisions MemoryLedger::join(const Member& member, Instant now) {
  Decisions decisions;
  const Key key{member.tenant, member.gpu};
  // What it holds already goes to nobody else in between.
  if (const auto known = places_.find(member.client); known == places_.end() || known->second.key != key)
    decisions = leave(member.client, now);
  Account& account = accounts_[key];
  account.lessees.erase(member.client);
  std::erase_if(account.asks, [&](const Ask& ask) { return ask.client == member.client; });
  account.node_limit = member.node_limit;
  Lessee& lessee = account.lessees[member.client];
  lessee.part = member.part;
  lessee.own_limit = member.own_limit;
  lessee.charged = member.charged;
  lessee.lease = std::clamp(member.lease, int64_t{0}, kUnlimited);
  lessee.silent = member.absent;
  if (member.absent) {
    absent_.insert(member.client);
  } else {
    absent_.erase(member.client);
  }
  places_[member.client] = {key, &account, &lessee};
  const int64_t limit = limit_in(account);
  const int64_t bound = bound_of(account, lessee, limit);
  if (bound == 0) {
    lessee.lease = kUnlimited;
  } else if (!frozen_ && account.asks.empty() && !member.absent) {
    lessee.lease += generous(account, room_for(account, lessee, limit));
  }
  lessee.told_limit = bound;
  lessee.told_others = others_of(account, lessee, limit);
  account.news = true;
  ++account.round;  // its own limit may be lower than what was leased
  settle(account, now, decisions);
  note_due(key);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::leave(ClientId client, Instant now) {
  Decisions decisions;
  const auto at = places_.find(client);
  if (at == places_.end()) return decisions;
  const Key key = at->second.key;
  places_.erase(at);
  absent_.erase(client);
  Account& account = accounts_.at(key);
  account.lessees.erase(client);
  account.news = true;
  std::erase_if(account.asks, [&](const Ask& ask) { return ask.client == client; });
  if (account.lessees.empty()) {
    accounts_.erase(key);
  } else {
    settle(account, now, decisions);
  }
  note_due(key);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::set_limit(TenantId tenant, GpuId gpu, int64_t limit, Instant now) {
  Decisions decisions;
  auto at = accounts_.find({tenant, gpu});
  if (at == accounts_.end()) return decisions;
  at->second.node_limit = limit;
  ++at->second.round;
  settle(at->second, now, decisions);
  note_due(at->first);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::ask(ClientId client, uint64_t request, int64_t bytes, int64_t returned, Instant now) {
  Decisions decisions;
  Account* account = account_of(client);
  if (account == nullptr) return decisions;
  Lessee& lessee = account->lessees.at(client);
  lessee.lease -= std::clamp(returned, int64_t{0}, lessee.lease);
  std::erase_if(account->asks, [&](const Ask& ask) { return ask.client == client; });
  ++account->asked;
  account->asks.push_back({client, request, std::clamp(bytes, int64_t{0}, kUnlimited), 0});
  settle(*account, now, decisions);
  note_due(places_.at(client).key);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::returned(ClientId client, uint64_t recall, int64_t bytes, int64_t charged, Instant now) {
  Decisions decisions;
  Account* account = account_of(client);
  if (account == nullptr) return decisions;
  Lessee& lessee = account->lessees.at(client);
  lessee.lease -= std::clamp(bytes, int64_t{0}, lessee.lease);
  lessee.silent = false;
  if (charged != lessee.charged) account->news = true;
  lessee.charged = charged;
  if (recall == lessee.recall) {
    lessee.recall = 0;
    lessee.answered_round = lessee.recall_round;
  }
  settle(*account, now, decisions);
  note_due(places_.at(client).key);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::taken(ClientId client, int64_t bytes, Instant now) {
  Decisions decisions;
  Account* account = account_of(client);
  if (account == nullptr) return decisions;
  Lessee& lessee = account->lessees.at(client);
  lessee.lease = std::min(lessee.lease + bytes, kUnlimited);
  ++account->round;
  settle(*account, now, decisions);
  note_due(places_.at(client).key);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::report(ClientId client, int64_t charged, Instant now) {
  Decisions decisions;
  Account* account = account_of(client);
  if (account == nullptr) return decisions;
  Lessee& lessee = account->lessees.at(client);
  if (lessee.charged == charged) return decisions;
  lessee.charged = charged;
  account->news = true;
  tell(*account, now, decisions);
  note_due(places_.at(client).key);
  return decisions;
}

MemoryLedger::Decisions MemoryLedger::freeze(bool frozen, Instant now) {
  Decisions decisions;
  if (std::exchange(frozen_, frozen) == frozen) return decisions;
  for (auto& [key, account] : accounts_) {
    settle(account, now, decisions);
    note_due(key);
  }
  return decisions;
}

// ---- deciding ----

// Beyond what was asked for: all of it for who is alone, else half, so that the others find some, too.
int64_t MemoryLedger::generous(const Account& account, int64_t room) {
  if (room <= 0) return 0;
  if (account.lessees.size() == 1) return room;
  return room / 2 / kHeadroomUnit * kHeadroomUnit;
}

void MemoryLedger::settle(Account& account, Instant now, Decisions& decisions) {
  const int64_t limit = limit_in(account);
  settle_unbounded(account, limit, decisions);
  if (!frozen_) {
    recall_excess(account, limit, now, decisions);
    while (!account.asks.empty() && serve(account, account.asks.front(), limit, now, decisions)) account.asks.pop_front();
  }
  tell(account, now, decisions);
}

// More is leased than there is: after a lowering, or what could not be refused.
void MemoryLedger::recall_excess(Account& account, int64_t limit, Instant now, Decisions& decisions) {
  if (limit != 0 && leased_in(account) > limit) recall(account, std::nullopt, 0, account.round, kUnlimited, now, decisions);
  std::optional<uint64_t> last;
  for (const auto& [id, lessee] : account.lessees) {
    if (last == lessee.part) continue;
    last = lessee.part;
    const int64_t of_part = limit_of_part(account, *last);
    if (of_part != 0 && leased_in(account, last) > of_part) recall(account, last, 0, account.round, kUnlimited, now, decisions);
  }
}

void MemoryLedger::settle_unbounded(Account& account, int64_t limit, Decisions& decisions) {
  if (limit != 0) return;
  std::erase_if(account.asks, [&](const Ask& ask) {
    Lessee& lessee = account.lessees.at(ask.client);
    if (bound_of(account, lessee, limit) != 0) return false;
    const int64_t bytes = kUnlimited - lessee.lease;
    decisions.emplace_back(Grant{ask.client, ask.request, ask.bytes <= bytes, bytes});
    lessee.lease = kUnlimited;
    return true;
  });
  for (auto& [id, lessee] : account.lessees) {
    if (lessee.lease >= kUnlimited || bound_of(account, lessee, limit) != 0) continue;
    decisions.emplace_back(Grant{id, 0, true, kUnlimited - lessee.lease});
    lessee.lease = kUnlimited;
  }
}

bool MemoryLedger::serve(Account& account, Ask& ask, int64_t limit, Instant now, Decisions& decisions) {
  Lessee& lessee = account.lessees.at(ask.client);
  const int64_t room = room_for(account, lessee, limit);
  if (ask.bytes <= room) {
    const int64_t bytes = ask.bytes + generous(account, room - ask.bytes);
    lessee.lease += bytes;
    decisions.emplace_back(Grant{ask.client, ask.request, true, bytes});
    return true;
  }
  if (ask.round == 0) ask.round = ++account.round;
  // The part that could give: its own where that one lacks, else all.
  const bool all_lack = limit != 0 && limit - leased_in(account) < ask.bytes;
  const Part part = all_lack ? std::nullopt : Part(lessee.part);
  if (ask.bytes <= bound_of(account, lessee, limit) && !recall(account, part, ask.client, ask.round, ask.bytes - room, now, decisions)) {
    return false;
  }
  // Refused. What is free helps the next, smaller allocation.
  const int64_t bytes = generous(account, room);
  lessee.lease += bytes;
  decisions.emplace_back(Grant{ask.client, ask.request, false, bytes, ask.bytes});
  return true;
}

bool MemoryLedger::recall(Account& account, Part part, ClientId but, uint64_t round, int64_t bytes, Instant now, Decisions& decisions) {
  bool all_answered = true;
  for (auto& [id, lessee] : account.lessees) {
    if (id == but || (part && lessee.part != *part) || lessee.lease == 0 || lessee.answered_round >= round) continue;
    if (lessee.recall == 0) {
      lessee.recall = ++last_recall_;
      lessee.recall_round = round;
      lessee.recalled_at = now;
      decisions.emplace_back(Recall{id, lessee.recall, bytes});
    }
    if (!lessee.silent) all_answered = false;
  }
  return all_answered;
}

// The limit at once; what others use now and then.
void MemoryLedger::tell(Account& account, Instant now, Decisions& decisions) {
  const int64_t limit = limit_in(account);
  const bool all = account.news && now - account.told_at >= kTellInterval;
  if (all) account.told_at = now;
  account.news = false;
  for (auto& [id, lessee] : account.lessees) {
    const int64_t others = others_of(account, lessee, limit);
    const int64_t bound = bound_of(account, lessee, limit);
    if (lessee.told_limit != bound || (all && lessee.told_others != others)) {
      lessee.told_limit = bound;
      lessee.told_others = others;
      decisions.emplace_back(Tell{id});
    }
    account.news |= lessee.told_others != others;
  }
}

std::optional<MemoryLedger::Instant> MemoryLedger::next_deadline() const {
  std::optional<Instant> earliest;
  auto at = [&](Instant deadline) {
    if (!earliest || deadline < *earliest) earliest = deadline;
  };
  for (const Key& key : due_) {
    const Account& account = accounts_.at(key);
    if (account.news) at(account.told_at + kTellInterval);
    for (const auto& [id, lessee] : account.lessees) {
      if (lessee.recall != 0 && !lessee.silent) at(lessee.recalled_at + kAnswerPatience);
    }
  }
  return earliest;
}

MemoryLedger::Decisions MemoryLedger::tick(Instant now) {
  Decisions decisions;
  const std::set<Key> due = due_;
  for (const Key& key : due) {
    Account& account = accounts_.at(key);
    for (auto& [id, lessee] : account.lessees) {
      if (lessee.recall != 0 && now - lessee.recalled_at >= kAnswerPatience) lessee.silent = true;
    }
    settle(account, now, decisions);
    note_due(key);
  }
  return decisions;
}

void MemoryLedger::note_due(const Key& key) {
  const auto account = accounts_.find(key);
  const bool due =
      account != accounts_.end() &&
      (account->second.news || std::any_of(account->second.lessees.begin(), account->second.lessees.end(),
                                           [](const auto& entry) { return entry.second.recall != 0 && !entry.second.silent; }));
  if (due) {
    due_.insert(key);
  } else {
    due_.erase(key);
  }
}

// ---- views ----

MemoryLedger::View MemoryLedger::view_of(const Key& key, const Account& account) {
  View view{key.first, key.second, limit_in(account), charged_in(account), leased_in(account), account.asks.size(), 0, account.asked};
  for (const auto& [id, lessee] : account.lessees) view.silent += lessee.silent ? 1 : 0;
  return view;
}

std::vector<MemoryLedger::View> MemoryLedger::view() const {
  std::vector<View> views;
  for (const auto& [key, account] : accounts_) views.push_back(view_of(key, account));
  return views;
}

void MemoryLedger::add_views_of_absent(std::vector<View>& views) const {
  for (const ClientId client : absent_) {
    const Place& place = places_.at(client);
    if (place.account->lessees.begin()->first == client) views.push_back(view_of(place.key, *place.account));
  }
}

std::optional<MemoryLedger::View> MemoryLedger::view_of(TenantId tenant, GpuId gpu) const {
  const auto at = accounts_.find({tenant, gpu});
  return at == accounts_.end() ? std::nullopt : std::optional(view_of(at->first, at->second));
}

MemoryLedger::ClientView MemoryLedger::view_of(ClientId client) const {
  const auto place = places_.find(client);
  return place == places_.end() ? ClientView() : view_of(place->second);
}

MemoryLedger::ClientView MemoryLedger::view_of(const Place& place) {
  return {bound_of(*place.account, *place.lessee, limit_in(*place.account)), place.lessee->charged, place.lessee->lease};
}

void MemoryLedger::views_of(std::span<const ClientId> clients, std::span<ClientView> views, std::vector<View>& accounts) const {
  std::vector<const Place*> places;
  places.reserve(clients.size());
  for (const ClientId client : clients) {
    const auto place = places_.find(client);
    places.push_back(place == places_.end() ? nullptr : &place->second);
    if (places.back() == nullptr) continue;
    fetch_lines_of(*places.back()->account);
    fetch_lines_of(*places.back()->lessee);
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    views[i] = places[i] == nullptr ? ClientView() : view_of(*places[i]);
    if (places[i] == nullptr || places[i]->account->lessees.begin()->first != clients[i]) continue;
    accounts.push_back(view_of(places[i]->key, *places[i]->account));
  }
}

int64_t MemoryLedger::lease_of(ClientId client) const {
  const Lessee* lessee = lessee_of(client);
  return lessee == nullptr ? 0 : lessee->lease;
}

int64_t MemoryLedger::charged_by_others(ClientId client) const {
  const Account* account = account_of(client);
  return account == nullptr ? 0 : others_of(*account, account->lessees.at(client), limit_in(*account));
}

std::vector<MemoryLedger::GpuId> MemoryLedger::gpus_of(TenantId tenant) const {
  std::vector<GpuId> gpus;
  for (auto at = accounts_.lower_bound({tenant, 0}); at != accounts_.end() && at->first.first == tenant; ++at)
    gpus.push_back(at->first.second);
  return gpus;
}

}  // namespace nvshare::scheduler
