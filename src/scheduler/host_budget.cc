#include "scheduler/host_budget.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max() / 4;

int64_t round_up(int64_t bytes) { return (bytes + HostBudget::kUnit - 1) / HostBudget::kUnit * HostBudget::kUnit; }
int64_t round_down(int64_t bytes) { return std::max<int64_t>(bytes, 0) / HostBudget::kUnit * HostBudget::kUnit; }

}  // namespace

const char* describe(HostBudget::Bound bound) {
  switch (bound) {
    case HostBudget::Bound::kNone:
      return "nothing";
    case HostBudget::Bound::kBudget:
      return "the node's budget (host_memory_budget)";
    case HostBudget::Bound::kAvailable:
      return "the memory that the machine has left, less what is kept free";
    case HostBudget::Bound::kOwnCgroup:
      return "the memory limit of the scheduler's own cgroup";
    case HostBudget::Bound::kCannotMake:
      return "the scheduler's failure to make shared memory (its log says why)";
  }
  return "nothing";
}

int64_t HostBudget::Account::lent() const {
  int64_t sum = 0;
  for (const auto& [id, segment] : segments) sum += segment.bytes;
  return sum;
}

// ---- what happened ----

void HostBudget::observe(const Machine& machine) {
  machine_ = machine;
  if (!kept_free_) kept_free_ = machine.available / 5;
}

void HostBudget::join(policy::ClientId client, policy::TenantId tenant) { accounts_[client].tenant = tenant; }

void HostBudget::leave(policy::ClientId client) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  // Not for its tenant's next use: the GPU may still be writing to what a killed process had. It goes when the last mapping does.
  for (const auto& [id, segment] : at->second.segments) {
    if (segment.owner != Owner::kScheduler || segment.adopted) continue;
    if (segment.there) {
      discard(id);
    } else {
      making_[id] = 0;
    }
  }
  accounts_.erase(at);
}

void HostBudget::request(policy::ClientId client, uint64_t request, int64_t total, Owner owner, bool urgent) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  Account& account = at->second;
  account.request = request;
  account.wanted = round_up(total);
  account.owner = owner;
  account.urgent = urgent;
  account.answered = false;
  account.missing = 0;
  account.bound = Bound::kNone;
  account.arrival = next_arrival_++;
}

void HostBudget::returned(policy::ClientId client, SegmentId id, policy::Instant now) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  Account& account = at->second;
  auto found = account.segments.find(id);
  if (found == account.segments.end() || !found->second.there) return;
  const Segment segment = found->second;
  account.segments.erase(found);
  account.ready = std::max(account.used, account.ready - segment.bytes);
  account.wanted = std::min(account.wanted, account.lent());  // it does not want back at once what it gives
  if (segment.owner == Owner::kScheduler && !segment.adopted) pool_[id] = {account.tenant, segment.bytes, now + kPoolKept};
}

void HostBudget::shrunk(policy::ClientId client, uint64_t shrink, int64_t bytes, policy::Instant now) {
  auto at = accounts_.find(client);
  if (at == accounts_.end() || !at->second.shrinking || at->second.shrinking->id != shrink) return;
  at->second.shrinking.reset();
  if (bytes == 0) at->second.shrink_not_before = now + kShrinkAgain;
}

void HostBudget::held(policy::ClientId client, SegmentId segment, int64_t bytes, Owner owner) {
  auto at = accounts_.find(client);
  if (at == accounts_.end() || knows(segment)) return;
  at->second.segments[segment] = {bytes, owner, true, true};
  at->second.wanted = std::max(at->second.wanted, at->second.lent());
}

bool HostBudget::knows(SegmentId segment) const {
  if (making_.contains(segment) || discarding_.contains(segment) || pool_.contains(segment)) return true;
  return std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& entry) { return entry.second.segments.contains(segment); });
}

SegmentId HostBudget::fresh_id() const {
  SegmentId id = make_id_();
  while (knows(id)) id = make_id_();
  return id;
}

void HostBudget::report(policy::ClientId client, int64_t ready, int64_t used) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  // A claim: more than was lent to it there cannot be.
  at->second.ready = std::min(ready, at->second.lent());
  at->second.used = std::min(used, at->second.ready);
}

void HostBudget::made(SegmentId id, bool there) {
  auto making = making_.find(id);
  if (making == making_.end()) return;
  const policy::ClientId client = making->second;
  making_.erase(making);
  auto at = accounts_.find(client);
  auto segment = at == accounts_.end() ? std::map<SegmentId, Segment>::iterator() : at->second.segments.find(id);
  if (at == accounts_.end() || segment == at->second.segments.end()) {
    if (there) discard(id);
    return;
  }
  if (there) {
    segment->second.there = true;
    decisions_.push_back(Lend{client, id, segment->second.bytes, segment->second.owner});
    return;
  }
  fail(client, at->second, id);
}

void HostBudget::cannot_hand_over(policy::ClientId client, SegmentId segment) {
  auto at = accounts_.find(client);
  if (at == accounts_.end() || !at->second.segments.contains(segment)) return;
  discard(segment);
  fail(client, at->second, segment);
}

// The rest of its request is refused too: it waits for an answer.
void HostBudget::fail(policy::ClientId client, Account& account, SegmentId segment) {
  account.segments.erase(segment);
  account.answered = true;
  account.missing = std::max<int64_t>(account.wanted - account.lent(), 0);
  account.wanted = account.lent();
  account.bound = Bound::kCannotMake;
  decisions_.push_back(Refuse{client, account.request, account.missing});
}

// ---- what is to be done ----

int64_t HostBudget::pooled() const {
  int64_t sum = 0;
  for (const auto& [id, segment] : pool_) sum += segment.bytes;
  return sum;
}

int64_t HostBudget::reserved() const {
  int64_t sum = elsewhere_ + pooled();
  for (const auto& [id, account] : accounts_) sum += account.lent();
  return sum;
}

int64_t HostBudget::unbuilt() const {
  int64_t sum = 0;
  for (const auto& [id, account] : accounts_) sum += std::max<int64_t>(0, account.lent() - account.ready);
  return sum;
}

int64_t HostBudget::free_for(Owner owner, Bound* bound) const {
  *bound = Bound::kNone;
  int64_t free = kNoBound;
  auto bounded_by = [&](int64_t bytes, Bound by) {
    if (bytes >= free) return;
    free = bytes;
    *bound = by;
  };
  if (budget_) bounded_by(*budget_ - reserved(), Bound::kBudget);
  bounded_by(machine_.available - kept_free() - unbuilt(), Bound::kAvailable);
  if (owner == Owner::kScheduler && machine_.own_room) {
    int64_t under_way = 0;
    for (const auto& [client, account] : accounts_) {
      for (const auto& [id, segment] : account.segments) under_way += segment.there ? 0 : segment.bytes;
    }
    bounded_by(*machine_.own_room - under_way, Bound::kOwnCgroup);
  }
  return std::max<int64_t>(free, 0);
}

bool HostBudget::lend_pooled(policy::ClientId client, Account& account) {
  for (auto at = pool_.begin(); at != pool_.end(); ++at) {
    if (at->second.tenant != account.tenant) continue;
    const SegmentId id = at->first;
    const int64_t bytes = at->second.bytes;
    pool_.erase(at);
    account.segments[id] = {bytes, Owner::kScheduler, true, false};
    decisions_.push_back(Lend{client, id, bytes, Owner::kScheduler});
    return true;
  }
  return false;
}

int64_t HostBudget::discard_pooled(int64_t bytes) {
  int64_t freed = 0;
  while (!pool_.empty() && freed < bytes) {
    freed += pool_.begin()->second.bytes;
    discard(pool_.begin()->first);
    pool_.erase(pool_.begin());
  }
  return freed;
}

void HostBudget::discard(SegmentId segment) {
  discarding_.insert(segment);
  decisions_.push_back(Discard{segment});
}

bool HostBudget::memory_comes_back() const {
  return !discarding_.empty() ||
         std::any_of(accounts_.begin(), accounts_.end(), [](const auto& entry) { return entry.second.shrinking.has_value(); });
}

void HostBudget::reclaim(int64_t bytes, const Account* beneficiary, policy::Instant now) {
  for (const auto& [id, account] : accounts_) {
    if (account.shrinking) bytes -= account.shrinking->bytes;
  }
  std::vector<std::pair<int64_t, policy::ClientId>> order;  // who has the most unused first
  for (const auto& [id, account] : accounts_) {
    const bool needs_it_itself = account.urgent && !account.answered;
    if (&account == beneficiary || account.shrinking || needs_it_itself || account.shrink_not_before > now) continue;
    if (account.empty() >= kUnit) order.emplace_back(-account.empty(), id);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [minus_empty, id] : order) {
    if (bytes <= 0) return;
    Account& account = accounts_.at(id);
    const int64_t share = std::min(bytes, -minus_empty);
    account.shrinking = Shrinking{next_shrink_++, share, now + kShrinkPatience};
    account.wanted = std::min(account.wanted, account.lent());
    decisions_.push_back(Shrink{id, account.shrinking->id, share});
    bytes -= share;
  }
}

void HostBudget::serve(policy::ClientId client, Account& account, policy::Instant now) {
  Bound bound = Bound::kNone;
  int64_t missing = account.wanted - account.lent();
  while (missing > 0) {
    if (account.owner == Owner::kScheduler && lend_pooled(client, account)) {
      missing = account.wanted - account.lent();
      continue;
    }
    int64_t bytes = std::min(missing, kSegmentMax);
    const int64_t free = round_down(free_for(account.owner, &bound));
    if (bytes > free) {
      // Smaller pieces serve as well, but nothing that is too small for what swapping moves at once.
      if (account.urgent && discard_pooled(bytes - free) > 0) continue;
      if (free < std::min(missing, kPieceMax)) break;
      bytes = std::min(bytes, free);
    }
    const SegmentId id = fresh_id();
    account.segments[id] = {bytes, account.owner, account.owner == Owner::kProcess, false};
    missing -= bytes;
    if (account.owner == Owner::kScheduler) {
      making_[id] = client;
      decisions_.push_back(Make{id, bytes});
    } else {
      decisions_.push_back(Lend{client, id, bytes, Owner::kProcess});
    }
  }
  if (missing <= 0) {
    account.answered = true;
    return;
  }
  if (account.urgent) {
    reclaim(missing, &account, now);
    if (memory_comes_back()) return;  // answered when it has
  }
  account.answered = true;
  account.missing = missing;
  account.bound = bound;
  account.wanted = account.lent();
  decisions_.push_back(Refuse{client, account.request, missing});
}

std::vector<HostBudget::Decision> HostBudget::settle(policy::Instant now) {
  for (auto& [id, account] : accounts_) {
    if (!account.shrinking || account.shrinking->until > now) continue;
    account.shrinking.reset();  // it does not answer; stopped, perhaps
    account.shrink_not_before = now + kShrinkAgain;
  }
  for (auto at = pool_.begin(); at != pool_.end();) {
    if (at->second.until > now) {
      ++at;
      continue;
    }
    discard(at->first);
    at = pool_.erase(at);
  }
  std::vector<std::tuple<bool, uint64_t, policy::ClientId>> order;  // the urgent first, then by arrival
  for (const auto& [id, account] : accounts_) {
    if (!account.answered) order.emplace_back(!account.urgent, account.arrival, id);
  }
  std::sort(order.begin(), order.end());
  for (const auto& entry : order) serve(std::get<2>(entry), accounts_.at(std::get<2>(entry)), now);
  for (auto& [id, account] : accounts_) {
    Bound ignored;
    if (account.missing > 0 && account.answered && account.bound != Bound::kCannotMake &&
        free_for(account.owner, &ignored) >= account.missing)
      account.missing = 0;
  }
  // The machine runs short: what is unused goes first.
  const int64_t deficit = kept_free() - machine_.available;
  if (deficit > 0) reclaim(deficit - discard_pooled(deficit), nullptr, now);
  return std::exchange(decisions_, {});
}

std::optional<policy::Instant> HostBudget::next_deadline() const {
  std::optional<policy::Instant> next;
  auto at = [&](policy::Instant deadline) {
    if (!next || deadline < *next) next = deadline;
  };
  for (const auto& [id, account] : accounts_) {
    if (account.shrinking) at(account.shrinking->until);
  }
  for (const auto& [id, segment] : pool_) at(segment.until);
  return next;
}

// ---- how things stand ----

int64_t HostBudget::room() const {
  int64_t empty = pooled();
  int64_t used = elsewhere_;
  int64_t empty_of_scheduler = pooled();
  bool needs_scheduler = false;
  for (const auto& [id, account] : accounts_) {
    used += account.used;
    empty += account.empty();
    needs_scheduler = needs_scheduler || account.owner == Owner::kScheduler;
    int64_t of_scheduler = 0;
    for (const auto& [segment_id, segment] : account.segments) {
      if (segment.owner == Owner::kScheduler && segment.there) of_scheduler += segment.bytes;
    }
    empty_of_scheduler += std::min(account.empty(), of_scheduler);
  }
  int64_t room = machine_.available + empty - kept_free();
  if (budget_) room = std::min(room, *budget_ - used);
  // Somebody can have no other memory than the scheduler's: better too little is moved than a movement begun that cannot end.
  if (needs_scheduler && machine_.own_room) room = std::min(room, *machine_.own_room + empty_of_scheduler);
  return std::max<int64_t>(room, 0);
}

HostBudget::View HostBudget::view() const {
  View view;
  view.reserved = reserved();
  view.pooled = pooled();
  view.used = elsewhere_;
  bool needs_scheduler = false;
  for (const auto& [id, account] : accounts_) {
    view.used += account.used;
    needs_scheduler = needs_scheduler || account.owner == Owner::kScheduler;
  }
  const int64_t free = free_for(needs_scheduler ? Owner::kScheduler : Owner::kProcess, &view.bound);
  view.budget = view.reserved + free;
  if (view.bound == Bound::kBudget) view.budget = *budget_;
  return view;
}

HostBudget::ClientView HostBudget::view(policy::ClientId client) const {
  ClientView view;
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return view;
  for (const auto& [id, segment] : at->second.segments) {
    (segment.owner == Owner::kProcess ? view.lent_process : view.lent_scheduler) += segment.bytes;
  }
  view.missing = at->second.missing;
  view.urgent = at->second.urgent;
  view.bound = at->second.bound;
  return view;
}

}  // namespace nvshare::scheduler
