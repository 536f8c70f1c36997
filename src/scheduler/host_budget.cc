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
    case HostBudget::Bound::kShare:
      return "what is kept for other tenants, or the size of its GPU";
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

void HostBudget::join(policy::ClientId client, const Member& member) {
  Account& account = accounts_[client];
  account.tenant = member.tenant;
  account.most = member.most > 0 ? round_up(member.most) : kNoBound;
  account.held_process = member.held_process;
  account.held_scheduler = member.held_scheduler;
  if (member.former == 0) return;
  for (auto& [id, leaving] : leaving_) {
    if (leaving.holder == member.former) leaving.holder = client;
  }
}

void HostBudget::leave(policy::ClientId client) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  // Not for its tenant's next use: the GPU may still be writing to what a killed process had, and a process whose connection broke has its
  // data there.
  for (const auto& [id, segment] : at->second.segments) {
    if (!segment.there) {
      making_[id].client = 0;
      continue;
    }
    leaving_[id] = {at->second.tenant, client, segment.bytes, segment.owner, segment.adopted};
    decisions_.push_back(Discard{id, client});
  }
  used_ -= at->second.used;
  shrinking_ -= at->second.shrinking.has_value();
  accounts_.erase(at);
}

void HostBudget::request(policy::ClientId client, uint64_t request, int64_t total, Owner owner, bool urgent) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  Account& account = at->second;
  account.request = request;
  account.beyond = std::max<int64_t>(round_up(total) - account.most, 0);
  account.wanted = round_up(total) - account.beyond;
  account.owner = owner;
  account.urgent = urgent;
  account.answered = false;
  account.missing = 0;
  account.bound = Bound::kNone;
  account.arrival = next_arrival_++;
  // It has said by now what it has of its connection before. The rest of that is nobody's.
  for (auto& [id, leaving] : leaving_) {
    if (leaving.holder == client) leaving.holder = 0;
  }
}

void HostBudget::returned(policy::ClientId client, SegmentId id, policy::Instant now) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  Account& account = at->second;
  auto found = account.segments.find(id);
  if (found == account.segments.end() || !found->second.there) return;
  const Segment segment = found->second;
  account.segments.erase(found);
  account.ready = account.said_ready = std::max(account.used, account.ready - segment.bytes);
  account.wanted = std::min(account.wanted, account.lent());  // it does not want back at once what it gives
  if (segment.owner == Owner::kScheduler && !segment.adopted) pool_[id] = {account.tenant, segment.bytes, now + kPoolKept};
}

void HostBudget::shrunk(policy::ClientId client, uint64_t shrink, int64_t bytes, policy::Instant now) {
  auto at = accounts_.find(client);
  if (at == accounts_.end() || !at->second.shrinking || at->second.shrinking->id != shrink) return;
  at->second.shrinking.reset();
  --shrinking_;
  if (bytes == 0) at->second.shrink_not_before = now + kShrinkAgain;
}

void HostBudget::held(policy::ClientId client, SegmentId segment, int64_t bytes, Owner owner) {
  auto at = accounts_.find(client);
  if (at == accounts_.end()) return;
  Account& account = at->second;
  if (auto former = leaving_.find(segment); former != leaving_.end() && former->second.holder == client) {
    account.segments[segment] = {former->second.bytes, former->second.owner, true, former->second.adopted};
    leaving_.erase(former);
  } else {
    int64_t& believed = owner == Owner::kProcess ? account.held_process : account.held_scheduler;
    if (knows(segment) || bytes > believed || account.lent() + bytes > account.most) return;
    believed -= bytes;
    account.segments[segment] = {bytes, owner, true, true};
  }
  account.wanted = std::max(account.wanted, account.lent());
  apply_report(account);  // it came before the segments were known
}

void HostBudget::discarded(SegmentId segment) {
  leaving_.erase(segment);
  // Where a client said meanwhile that it had it, that was not so.
  for (auto& [id, account] : accounts_) account.segments.erase(segment);
}

void HostBudget::still_held(SegmentId segment, policy::Instant now) {
  auto at = leaving_.find(segment);
  if (at == leaving_.end()) return;
  at->second.looking = false;
  at->second.held = true;
  at->second.look_at = now + at->second.pause;
  at->second.pause = std::min(2 * at->second.pause, kLookAgainMost);
}

bool HostBudget::awaits(policy::ClientId client) const {
  return std::any_of(leaving_.begin(), leaving_.end(), [&](const auto& entry) { return entry.second.holder == client; });
}

void HostBudget::look_again(policy::Instant now) {
  for (auto& [id, leaving] : leaving_) {
    if (leaving.looking || leaving.look_at > now) continue;
    leaving.looking = true;
    decisions_.push_back(Discard{id, leaving.holder});
  }
}

bool HostBudget::knows(SegmentId segment) const {
  if (making_.contains(segment) || leaving_.contains(segment) || pool_.contains(segment)) return true;
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
  at->second.said_ready = ready;
  at->second.said_used = used;
  apply_report(at->second);
}

// A claim: more than was lent to it there cannot be.
void HostBudget::apply_report(Account& account) {
  account.ready = std::min(account.said_ready, account.lent());
  const int64_t used_before = std::exchange(account.used, std::min(account.said_used, account.ready));
  used_ += account.used - used_before;
}

void HostBudget::made(SegmentId id, bool there) {
  auto making = making_.find(id);
  if (making == making_.end()) return;
  const auto [client, tenant, bytes] = making->second;
  making_.erase(making);
  auto at = accounts_.find(client);
  auto segment = at == accounts_.end() ? std::map<SegmentId, Segment>::iterator() : at->second.segments.find(id);
  if (at == accounts_.end() || segment == at->second.segments.end()) {
    if (there) discard(id, tenant, bytes);
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
  discard(segment, at->second.tenant, at->second.segments.find(segment)->second.bytes);
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
  int64_t sum = elsewhere_ + pooled() + leaving();
  for (const auto& [id, account] : accounts_) sum += account.lent();
  for (const auto& [id, making] : making_) sum += making.client == 0 ? making.bytes : 0;
  return sum;
}

int64_t HostBudget::leaving() const {
  int64_t sum = 0;
  for (const auto& [id, leaving] : leaving_) sum += leaving.bytes;
  return sum;
}

int64_t HostBudget::held_by(policy::TenantId tenant, bool of_scheduler_only) const {
  int64_t sum = 0;
  const auto add = [&](policy::TenantId whose, Owner owner, int64_t bytes) {
    if (whose == tenant && (owner == Owner::kScheduler || !of_scheduler_only)) sum += bytes;
  };
  for (const auto& [id, account] : accounts_) {
    for (const auto& [segment_id, segment] : account.segments) add(account.tenant, segment.owner, segment.bytes);
  }
  for (const auto& [id, segment] : pool_) add(segment.tenant, Owner::kScheduler, segment.bytes);
  for (const auto& [id, segment] : leaving_) add(segment.tenant, segment.owner, segment.bytes);
  for (const auto& [id, making] : making_) add(making.client == 0 ? making.tenant : 0, Owner::kScheduler, making.bytes);
  return sum;
}

// Each tenant's that is there, and as much for one that comes.
int64_t HostBudget::share(int64_t total) const {
  std::vector<policy::TenantId> tenants;
  for (const auto& [id, account] : accounts_) tenants.push_back(account.tenant);
  std::sort(tenants.begin(), tenants.end());
  const auto count = std::unique(tenants.begin(), tenants.end()) - tenants.begin();
  return total / (count + 1);
}

int64_t HostBudget::left_for(int64_t held, int64_t raw, int64_t total, int64_t share) const {
  const int64_t kept = kept_part_ > 0 ? total / kept_part_ : 0;
  if (kept < kPieceMax) return raw;
  // Of what is kept, a tenant within its share may have as much as it leaves the next.
  const int64_t within = std::min(share - held, raw - std::min(kept / 2, (raw + held) / 2));
  return std::clamp<int64_t>(std::max(within, raw - kept), 0, std::max<int64_t>(raw, 0));
}

int64_t HostBudget::unbuilt() const {
  int64_t sum = 0;
  for (const auto& [id, account] : accounts_) sum += std::max<int64_t>(0, account.lent() - account.ready);
  return sum;
}

// Of the scheduler's own cgroup's room, which what is in the making will take.
int64_t HostBudget::own_cgroup_free() const {
  int64_t under_way = 0;
  for (const auto& [id, making] : making_) under_way += making.bytes;
  return *machine_.own_room - under_way;
}

int64_t HostBudget::free_for(Owner owner, std::optional<policy::TenantId> tenant, Bound* bound) const {
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
    bounded_by(own_cgroup_free(), Bound::kOwnCgroup);
  }
  if (tenant && *bound != Bound::kNone) {
    const int64_t raw = std::max<int64_t>(free, 0);
    bounded_by(left_for(held_by(*tenant, false), raw, raw + reserved(), share(raw + reserved())), Bound::kShare);
    if (owner == Owner::kScheduler && machine_.own_room) {
      int64_t of_all = pooled();
      for (const auto& [id, account] : accounts_) {
        for (const auto& [segment_id, segment] : account.segments) of_all += segment.owner == Owner::kScheduler ? segment.bytes : 0;
      }
      const int64_t own = std::max<int64_t>(own_cgroup_free(), 0);
      bounded_by(left_for(held_by(*tenant, true), own, own + of_all, share(own + of_all)), Bound::kShare);
    }
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
    const auto oldest =
        std::min_element(pool_.begin(), pool_.end(), [](const auto& a, const auto& b) { return a.second.until < b.second.until; });
    const auto [id, pooled] = *oldest;
    pool_.erase(oldest);
    freed += pooled.bytes;
    discard(id, pooled.tenant, pooled.bytes);
  }
  return freed;
}

void HostBudget::discard(SegmentId segment, policy::TenantId tenant, int64_t bytes) {
  leaving_[segment] = {tenant, 0, bytes};
  decisions_.push_back(Discard{segment, 0});
}

// Bytes of which it is not known yet that somebody keeps them.
int64_t HostBudget::on_its_way_back() const {
  int64_t sum = 0;
  for (const auto& [id, leaving] : leaving_) sum += leaving.held ? 0 : leaving.bytes;
  return sum;
}

bool HostBudget::memory_comes_back() const {
  return on_its_way_back() > 0 ||
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
    ++shrinking_;
    account.wanted = std::min(account.wanted, account.lent());
    decisions_.push_back(Shrink{id, account.shrinking->id, share});
    bytes -= share;
  }
}

int64_t HostBudget::segments_of(policy::TenantId tenant) const {
  size_t count = 0;
  for (const auto& [id, account] : accounts_) count += account.tenant == tenant ? account.segments.size() : 0;
  for (const auto& [id, leaving] : leaving_) count += leaving.tenant == tenant ? 1U : 0U;
  for (const auto& [id, pooled] : pool_) count += pooled.tenant == tenant ? 1U : 0U;
  return static_cast<int64_t>(count);
}

void HostBudget::serve(policy::ClientId client, Account& account, policy::Instant now) {
  Bound bound = Bound::kNone;
  int64_t missing = account.wanted - account.lent();
  const int64_t least = segments_of(account.tenant) >= kSegmentsSmall ? kPieceMax : 0;
  while (missing > 0) {
    if (account.owner == Owner::kScheduler && lend_pooled(client, account)) {
      missing = account.wanted - account.lent();
      continue;
    }
    int64_t bytes = std::clamp(missing, least, kSegmentMax);
    const int64_t free = round_down(free_for(account.owner, account.tenant, &bound));
    if (bytes > free) {
      // Smaller pieces serve as well, but nothing that is too small for what swapping moves at once.
      if (account.urgent) discard_pooled(missing - free - on_its_way_back());
      if (account.urgent && on_its_way_back() > 0) break;  // and then again
      if (free < std::max(least, std::min(missing, kPieceMax))) break;
      bytes = std::min(bytes, free);
    }
    const SegmentId id = fresh_id();
    account.segments[id] = {bytes, account.owner, account.owner == Owner::kProcess, false};
    missing -= bytes;
    if (account.owner == Owner::kScheduler) {
      making_[id] = {client, account.tenant, bytes};
      decisions_.push_back(Make{id, bytes});
    } else {
      decisions_.push_back(Lend{client, id, bytes, Owner::kProcess});
    }
  }
  if (missing <= 0) {
    account.answered = true;
    if (account.beyond > 0) decisions_.push_back(Refuse{client, account.request, std::exchange(account.beyond, 0)});
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
  decisions_.push_back(Refuse{client, account.request, missing + std::exchange(account.beyond, 0)});
}

std::vector<HostBudget::Decision> HostBudget::settle(policy::Instant now) {
  for (auto& [id, account] : accounts_) {
    if (shrinking_ == 0) break;
    if (!account.shrinking || account.shrinking->until > now) continue;
    account.shrinking.reset();  // it does not answer; stopped, perhaps
    --shrinking_;
    account.shrink_not_before = now + kShrinkAgain;
  }
  for (auto at = pool_.begin(); at != pool_.end();) {
    if (at->second.until > now) {
      ++at;
      continue;
    }
    discard(at->first, at->second.tenant, at->second.bytes);
    at = pool_.erase(at);
  }
  look_again(now);
  std::vector<std::tuple<bool, uint64_t, policy::ClientId>> order;  // the urgent first, then by arrival
  for (const auto& [id, account] : accounts_) {
    if (!account.answered) order.emplace_back(!account.urgent, account.arrival, id);
  }
  std::sort(order.begin(), order.end());
  for (const auto& entry : order) serve(std::get<2>(entry), accounts_.at(std::get<2>(entry)), now);
  for (auto& [id, account] : accounts_) {
    Bound ignored;
    if (account.missing > 0 && account.answered && account.bound != Bound::kCannotMake &&
        free_for(account.owner, account.tenant, &ignored) >= account.missing)
      account.missing = 0;
  }
  // The machine runs short: what is unused goes first.
  const int64_t deficit = kept_free() - machine_.available;
  if (deficit > 0) {
    const int64_t coming = on_its_way_back();
    reclaim(deficit - coming - discard_pooled(deficit - coming), nullptr, now);
  }
  return std::exchange(decisions_, {});
}

std::optional<policy::Instant> HostBudget::next_deadline() const {
  std::optional<policy::Instant> next;
  auto at = [&](policy::Instant deadline) {
    if (!next || deadline < *next) next = deadline;
  };
  for (const auto& [id, account] : accounts_) {
    if (shrinking_ == 0) break;
    if (account.shrinking) at(account.shrinking->until);
  }
  for (const auto& [id, segment] : pool_) at(segment.until);
  for (const auto& [id, leaving] : leaving_) {
    if (!leaving.looking) at(leaving.look_at);
  }
  return next;
}

// ---- how things stand ----

int64_t HostBudget::room() const {
  int64_t empty = pooled();
  int64_t used = elsewhere_ + leaving();
  std::map<policy::TenantId, int64_t> used_by;
  for (const auto& [id, segment] : leaving_) used_by[segment.tenant] += segment.bytes;
  int64_t empty_of_scheduler = pooled();
  bool needs_scheduler = false;
  for (const auto& [id, account] : accounts_) {
    used += account.used;
    used_by[account.tenant] += account.used;
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
  room = std::max<int64_t>(room, 0);
  // Tenants differ in what they may still have. What a tenant within its share could not move could not be moved for anybody; one beyond it
  // is only asked for what it has room for already.
  const int64_t total = room + used;
  const int64_t share_of_each = share(total);
  std::optional<int64_t> within, any;
  for (const auto& [tenant, held] : used_by) {
    const int64_t left = left_for(held, room, total, share_of_each);
    any = std::min(any.value_or(left), left);
    if (held < share_of_each) within = std::min(within.value_or(left), left);
  }
  room = within ? *within : any.value_or(room);
  // Somebody can have no other memory than the scheduler's: better too little is moved than a movement begun that cannot end.
  if (needs_scheduler && machine_.own_room) room = std::min(room, *machine_.own_room + empty_of_scheduler);
  return std::max<int64_t>(room, 0);
}

HostBudget::View HostBudget::view() const {
  View view;
  view.reserved = reserved();
  view.pooled = pooled();
  view.used = used();
  bool needs_scheduler = false;
  for (const auto& [id, account] : accounts_) {
    needs_scheduler = needs_scheduler || account.owner == Owner::kScheduler;
  }
  const int64_t free = free_for(needs_scheduler ? Owner::kScheduler : Owner::kProcess, std::nullopt, &view.bound);
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
