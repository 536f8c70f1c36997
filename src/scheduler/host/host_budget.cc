#include "scheduler/host/host_budget.h"

#include <algorithm>
#include <limits>
#include <set>
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

// ---- what happened ----

void HostBudget::observe(const Machine& machine) {
  machine_ = machine;
  if (!kept_free_) kept_free_ = machine.available / 5;
}

void HostBudget::join(policy::ClientId client, const Member& member) {
  ledger_.open(client, [&](Account& account) {
    account.tenant = member.tenant;
    account.most = member.most > 0 ? round_up(member.most) : kNoBound;
    account.held_process = member.held_process;
    account.held_scheduler = member.held_scheduler;
  });
  if (member.former == 0) return;
  for (const SegmentId id : ledger_.unowned().left_by(member.former)) {
    ledger_.unowned().change_leaving(id, [&](UnownedSegments::Leaving& leaving) { leaving.holder = client; });
  }
}

void HostBudget::leave(policy::ClientId client) {
  const std::optional<Account> account = ledger_.close(client);
  if (!account) return;
  // Not for its tenant's next use: the GPU may still be writing to what a killed process had, and a process whose connection broke has its
  // data there.
  for (const auto& [id, segment] : account->segments) {
    if (!segment.there) {
      if (std::optional<UnownedSegments::Making> making = ledger_.unowned().take_making(id)) {
        making->client = 0;
        ledger_.unowned().put_making(id, *making);
      }
      continue;
    }
    ledger_.unowned().put_leaving(id, {.tenant = account->tenant,
                                       .holder = client,
                                       .bytes = segment.bytes,
                                       .owner = segment.owner,
                                       .adopted = segment.adopted,
                                       .pause = kLookAgain});
    decisions_.push_back(Discard{id, client});
  }
}

void HostBudget::request(policy::ClientId client, uint64_t request, int64_t total, Owner owner, bool urgent) {
  if (ledger_.find(client) == nullptr) return;
  ledger_.change(client, [&](Account& account) {
    account.request = request;
    account.beyond = std::max<int64_t>(round_up(total) - account.most, 0);
    account.wanted = round_up(total) - account.beyond;
    account.owner = owner;
    account.urgent = urgent;
    account.answered = false;
    if (account.shrinking) account.shrinking->asked_since = true;
    account.missing = 0;
    account.bound = Bound::kNone;
    account.arrival = next_arrival_++;
    account.waits_since = 0;
  });
  // It has said by now what it has of its connection before. The rest of that is nobody's.
  for (const SegmentId id : ledger_.unowned().left_by(client)) {
    ledger_.unowned().change_leaving(id, [](UnownedSegments::Leaving& leaving) { leaving.holder = 0; });
  }
}

void HostBudget::returned(policy::ClientId client, SegmentId id, policy::Instant now) {
  const Account* account = ledger_.find(client);
  if (account == nullptr) return;
  const auto found = account->segments.find(id);
  if (found == account->segments.end() || !found->second.there) return;
  const HostLedger::Segment segment = found->second;
  ledger_.take(id);
  ledger_.change(client, [&](Account& changed) {
    changed.ready = changed.said_ready = std::max(changed.used, changed.ready - segment.bytes);
    if (!changed.shrinking || !changed.shrinking->asked_since) {
      changed.wanted = std::min(changed.wanted, changed.lent);  // it does not want back at once what it gives
    } else if (changed.lent < changed.wanted) {
      changed.answered = false;  // it was, perhaps, as long as this was lent
    }
  });
  if (segment.owner == Owner::kScheduler && !segment.adopted)
    ledger_.unowned().put_pooled(id, {account->tenant, segment.bytes, now + kPoolKept});
}

void HostBudget::shrunk(policy::ClientId client, uint64_t shrink, int64_t bytes, policy::Instant now) {
  const Account* account = ledger_.find(client);
  if (account == nullptr || !account->shrinking || account->shrinking->id != shrink) return;
  ledger_.change(client, [&](Account& changed) {
    const bool overdue = changed.shrinking->overdue;
    const bool gave =
        bytes > 0 && changed.lent < changed.shrinking->lent_then;  // who says so and gave nothing is asked again for ever else
    changed.shrinking.reset();
    if (overdue) return;
    changed.slack_then = 0;
    if (gave) return;
    changed.shrink_not_before = now + kShrinkAgain;
    changed.slack_then = changed.slack();
  });
}

void HostBudget::held(policy::ClientId client, SegmentId segment, int64_t bytes, Owner owner) {
  const Account* account = ledger_.find(client);
  if (account == nullptr) return;
  if (const UnownedSegments::Leaving* former = ledger_.unowned().leaving(segment); former != nullptr && former->holder == client) {
    ledger_.put(client, segment, {former->bytes, former->owner, true, former->adopted});
    ledger_.unowned().take_leaving(segment);
  } else {
    const int64_t believed = owner == Owner::kProcess ? account->held_process : account->held_scheduler;
    if (ledger_.knows(segment) || bytes > believed || account->lent + bytes > account->most || bytes > claimable(account->tenant)) return;
    ledger_.change(client, [&](Account& changed) { (owner == Owner::kProcess ? changed.held_process : changed.held_scheduler) -= bytes; });
    ledger_.put(client, segment, {bytes, owner, true, true});
  }
  ledger_.change(client, [](Account& changed) { changed.wanted = std::max(changed.wanted, changed.lent); });
  apply_report(client);  // it came before the segments were known
}

// What was lent under the budget is within it. Who claims more than anybody could be lent takes what is kept for others.
int64_t HostBudget::claimable(policy::TenantId tenant) const {
  if (!budget_) return kNoBound;
  const int64_t raw = std::max<int64_t>(*budget_ - reserved(), 0);
  return left_for(ledger_.sums().held_by(tenant, false), raw, *budget_, share(*budget_));
}

void HostBudget::discarded(SegmentId segment) {
  ledger_.unowned().take_leaving(segment);
  ledger_.take(segment);  // where a client said meanwhile that it had it, that was not so
}

void HostBudget::still_held(SegmentId segment, policy::Instant now) {
  ledger_.unowned().change_leaving(segment, [&](UnownedSegments::Leaving& leaving) {
    leaving.looking = false;
    leaving.held = true;
    leaving.look_at = now + leaving.pause;
    leaving.pause = std::min(2 * leaving.pause, kLookAgainMost);
  });
}

void HostBudget::look_again(policy::Instant now) {
  while (const std::optional<SegmentId> id = ledger_.unowned().to_look_at(now)) {
    ledger_.unowned().change_leaving(*id, [](UnownedSegments::Leaving& leaving) { leaving.looking = true; });
    decisions_.push_back(Discard{*id, ledger_.unowned().leaving(*id)->holder});
  }
}

SegmentId HostBudget::fresh_id() const {
  SegmentId id = make_id_();
  while (ledger_.knows(id)) id = make_id_();
  return id;
}

void HostBudget::report(policy::ClientId client, int64_t ready, int64_t used) {
  ledger_.change(client, [&](Account& changed) {
    changed.said_ready = ready;
    changed.said_used = used;
  });
  apply_report(client);
}

// A claim: more than was lent to it there cannot be.
void HostBudget::apply_report(policy::ClientId client) {
  ledger_.change(client, [](Account& account) {
    account.ready = std::min(account.said_ready, account.lent);
    account.used = std::min(account.said_used, account.ready);
    if (account.slack() >= account.slack_then + kPieceMax) account.shrink_not_before = 0;  // it may have something by now
    if (account.slack_then != kNoBound) account.slack_then = std::min(account.slack_then, account.slack());
  });
}

void HostBudget::made(SegmentId id, bool there) {
  const std::optional<UnownedSegments::Making> making = ledger_.unowned().take_making(id);
  if (!making) return;
  const Account* account = ledger_.find(making->client);
  const bool is_awaited = account != nullptr && account->segments.contains(id);
  if (there && !is_awaited) return discard(id, making->tenant, making->bytes);
  if (!is_awaited) return;
  if (!there) return fail(making->client, id);
  ledger_.set_there(making->client, id);
  decisions_.push_back(Lend{making->client, id, making->bytes, account->segments.at(id).owner});
}

void HostBudget::cannot_hand_over(policy::ClientId client, SegmentId segment) {
  const Account* account = ledger_.find(client);
  if (account == nullptr) return;
  const auto at = account->segments.find(segment);
  if (at == account->segments.end()) return;
  const int64_t bytes = at->second.bytes;
  ledger_.take(segment);
  discard(segment, account->tenant, bytes);
  fail(client, segment);
}

// The rest of its request is refused too: it waits for an answer.
void HostBudget::fail(policy::ClientId client, SegmentId segment) {
  ledger_.take(segment);
  const Account& account = *ledger_.find(client);
  refuse(client, std::max<int64_t>(account.wanted - account.lent, 0), 0, Bound::kCannotMake);
}

void HostBudget::refuse(policy::ClientId client, int64_t missing, int64_t beyond, Bound bound) {
  ledger_.change(client, [&](Account& account) {
    account.answered = true;
    account.missing = missing;
    account.beyond -= beyond;
    account.wanted = account.lent;
    account.bound = bound;
  });
  decisions_.push_back(Refuse{client, ledger_.find(client)->request, missing + beyond});
}

// ---- what is to be done ----

int64_t HostBudget::reserved() const {
  const HostSums::Totals& sums = ledger_.sums().all;
  return elsewhere_ + sums.pooled + sums.leaving + sums.lent + sums.making_unowned;
}

int64_t HostBudget::left_for(int64_t held, int64_t raw, int64_t total, int64_t share) const {
  return kept(total) > 0 ? policy::host_left_for(held, raw, kept(total), share) : raw;
}

int64_t HostBudget::kept(int64_t total) const {
  const int64_t kept = kept_part_ > 0 ? total / kept_part_ : 0;
  return kept >= kPieceMax ? kept : 0;
}

int64_t HostBudget::free_for(Owner owner, std::optional<policy::TenantId> tenant, Bound* bound) const {
  const HostSums::Totals& sums = ledger_.sums().all;
  *bound = Bound::kNone;
  int64_t free = kNoBound;
  auto bounded_by = [&](int64_t bytes, Bound by) {
    if (bytes >= free) return;
    free = bytes;
    *bound = by;
  };
  if (budget_) bounded_by(*budget_ - reserved(), Bound::kBudget);
  bounded_by(machine_.available - kept_free() - sums.unbuilt, Bound::kAvailable);
  if (owner == Owner::kScheduler && machine_.own_room) {
    bounded_by(own_cgroup_free(), Bound::kOwnCgroup);
  }
  if (tenant && *bound != Bound::kNone) {
    const int64_t raw = std::max<int64_t>(free, 0);
    bounded_by(left_for(ledger_.sums().held_by(*tenant, false), raw, raw + reserved(), share(raw + reserved())), Bound::kShare);
    if (owner == Owner::kScheduler && machine_.own_room) {
      const int64_t of_all = sums.pooled + sums.lent_scheduler;
      const int64_t own = std::max<int64_t>(own_cgroup_free(), 0);
      bounded_by(left_for(ledger_.sums().held_by(*tenant, true), own, own + of_all, share(own + of_all)), Bound::kShare);
    }
  }
  return std::max<int64_t>(free, 0);
}

bool HostBudget::lend_pooled(policy::ClientId client, policy::TenantId tenant) {
  const auto pooled = ledger_.unowned().take_pooled_of(tenant);
  if (!pooled) return false;
  ledger_.put(client, pooled->first, {pooled->second.bytes, Owner::kScheduler, true, false});
  decisions_.push_back(Lend{client, pooled->first, pooled->second.bytes, Owner::kScheduler});
  return true;
}

int64_t HostBudget::discard_pooled(int64_t bytes) {
  int64_t freed = 0;
  while (freed < bytes) {
    const auto oldest = ledger_.unowned().take_oldest_pooled(std::numeric_limits<policy::Instant>::max());
    if (!oldest) break;
    freed += oldest->second.bytes;
    discard(oldest->first, oldest->second.tenant, oldest->second.bytes);
  }
  return freed;
}

void HostBudget::discard(SegmentId segment, policy::TenantId tenant, int64_t bytes) {
  ledger_.unowned().put_leaving(segment, {.tenant = tenant, .bytes = bytes, .pause = kLookAgain});
  decisions_.push_back(Discard{segment, 0});
}

void HostBudget::reclaim(int64_t bytes, std::optional<policy::ClientId> beneficiary, policy::Instant now) {
  for (const policy::ClientId id : ledger_.shrinking()) bytes -= ledger_.find(id)->shrinking->bytes;
  if (bytes <= 0 || (ledger_.sums().all.empty < kUnit && ledger_.may_have_empty().empty())) return;
  std::vector<std::tuple<int64_t, policy::ClientId, int64_t>> order;  // who has the most unused first, then who may have some
  for (const auto& [id, account] : ledger_.accounts()) {
    const bool needs_it_itself = account.urgent && !account.answered;
    if (id == beneficiary || account.is_awaited() || needs_it_itself || account.shrink_not_before > now) continue;
    const int64_t most = account.may_have_empty() ? account.ready : account.empty();
    if (most >= kUnit) order.emplace_back(-account.empty(), id, most);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [minus_empty, id, most] : order) {
    if (bytes <= 0) return;
    HostLedger::Shrinking shrinking{.id = next_shrink_++, .bytes = std::min(bytes, most), .until = now + kShrinkPatience};
    ledger_.change(id, [&](Account& account) {
      // It answers an overdue one first, and what it has asked for since then counts beside that.
      shrinking.asked_since = account.shrinking && account.shrinking->asked_since;
      shrinking.lent_then = account.lent;
      account.shrinking = shrinking;
      account.wanted = std::min(account.wanted, account.lent);
    });
    decisions_.push_back(Shrink{id, shrinking.id, shrinking.bytes});
    bytes -= shrinking.bytes;
  }
}

void HostBudget::serve(policy::ClientId client, policy::Instant now) {
  const Account& account = *ledger_.find(client);
  Bound bound = Bound::kNone;
  int64_t missing = account.wanted - account.lent;
  const int64_t least = ledger_.sums().segments_of(account.tenant) >= kSegmentsSmall ? kPieceMax : 0;
  while (missing > 0) {
    if (account.owner == Owner::kScheduler && lend_pooled(client, account.tenant)) {
      missing = account.wanted - account.lent;
      continue;
    }
    int64_t bytes = std::clamp(missing, least, kSegmentMax);
    const int64_t free = round_down(free_for(account.owner, account.tenant, &bound));
    if (bytes > free) {
      // Smaller pieces serve as well, but nothing that is too small for what swapping moves at once.
      if (account.urgent) discard_pooled(missing - free - ledger_.sums().all.coming_back);
      if (account.urgent && ledger_.sums().all.coming_back > 0) break;  // and then again
      if (free < std::max(least, std::min(missing, kPieceMax))) break;
      bytes = std::min(bytes, free);
    }
    const SegmentId id = fresh_id();
    ledger_.put(client, id, {bytes, account.owner, account.owner == Owner::kProcess, false});
    missing -= bytes;
    if (account.owner == Owner::kScheduler) {
      ledger_.unowned().put_making(id, {client, account.tenant, bytes});
      decisions_.push_back(Make{id, bytes});
    } else {
      decisions_.push_back(Lend{client, id, bytes, Owner::kProcess});
    }
  }
  if (missing > 0 && account.urgent && waits_for_others(client, missing, now)) return;
  const int64_t beyond = account.beyond;
  if (missing > 0) return refuse(client, missing, beyond, bound);
  ledger_.change(client, [](Account& changed) {
    changed.answered = true;
    changed.beyond = 0;
  });
  if (beyond > 0) decisions_.push_back(Refuse{client, account.request, beyond});
}

bool HostBudget::waits_for_others(policy::ClientId client, int64_t missing, policy::Instant now) {
  const policy::Instant since = ledger_.find(client)->waits_since;
  const bool is_patient = since == 0 || now - since < kShrinkPatienceInAll;
  if (is_patient) reclaim(missing, client, now);
  const bool is_asked_for = is_patient && !ledger_.shrinking().empty();
  if (is_asked_for && since == 0) ledger_.change(client, [&](Account& account) { account.waits_since = now; });
  return is_asked_for || ledger_.sums().all.coming_back > 0;
}

// Of clients that do not answer; stopped, perhaps.
void HostBudget::give_up_shrinking(policy::Instant now) {
  const std::set<policy::ClientId> shrinking = ledger_.shrinking();
  for (const policy::ClientId id : shrinking) {
    if (ledger_.find(id)->shrinking->until > now) continue;
    ledger_.change(id, [&](Account& account) {
      account.shrinking->overdue = true;
      account.shrink_not_before = now + kShrinkAgain;
      account.slack_then = kNoBound;  // whatever it reports: others would wait for it again
    });
  }
}

std::vector<HostBudget::Decision> HostBudget::settle(policy::Instant now) {
  give_up_shrinking(now);
  while (const auto over = ledger_.unowned().take_oldest_pooled(now)) discard(over->first, over->second.tenant, over->second.bytes);
  look_again(now);
  std::vector<std::tuple<bool, uint64_t, policy::ClientId>> order;  // the urgent first, then by arrival
  for (const policy::ClientId id : ledger_.unanswered()) {
    const Account& account = *ledger_.find(id);
    if (account.is_awaited() && account.shrinking->asked_since) continue;  // when it has answered
    order.emplace_back(!account.urgent, account.arrival, id);
  }
  std::sort(order.begin(), order.end());
  for (const auto& entry : order) serve(std::get<2>(entry), now);
  const std::set<policy::ClientId> missing = ledger_.missing();
  for (const policy::ClientId id : missing) {
    const Account& account = *ledger_.find(id);
    Bound ignored;
    if (account.bound == Bound::kCannotMake || free_for(account.owner, account.tenant, &ignored) < account.missing) continue;
    ledger_.change(id, [](Account& changed) { changed.missing = 0; });
  }
  // The machine runs short: what is unused goes first.
  const int64_t deficit = kept_free() - machine_.available;
  if (deficit > 0) {
    const int64_t coming = ledger_.sums().all.coming_back;
    reclaim(deficit - coming - discard_pooled(deficit - coming), std::nullopt, now);
  }
  return std::exchange(decisions_, {});
}

std::optional<policy::Instant> HostBudget::next_deadline() const {
  std::optional<policy::Instant> next = ledger_.unowned().next_time();
  for (const policy::ClientId id : ledger_.shrinking()) {
    const policy::Instant until = ledger_.find(id)->shrinking->until;
    next = std::min(next.value_or(until), until);
  }
  return next;
}

// ---- how things stand ----

int64_t HostBudget::room() const {
  const HostSums::Totals& sums = ledger_.sums().all;
  int64_t room = machine_.available + sums.pooled + sums.empty - kept_free();
  if (budget_) room = std::min(room, *budget_ - used() - sums.leaving);
  return std::max<int64_t>(room, 0);
}

std::optional<int64_t> HostBudget::room_of_own() const {
  const HostSums::Totals& sums = ledger_.sums().all;
  if (sums.scheduler_owners == 0 || !machine_.own_room) return std::nullopt;
  return std::max<int64_t>(*machine_.own_room + sums.pooled + sums.empty_scheduler, 0);
}

policy::HostMemory HostBudget::room_for_policy() const {
  const int64_t free = room();
  const int64_t total = free + used() + ledger_.sums().all.leaving;
  // Better too little is moved than a movement begun that cannot end.
  return {std::min(free, room_of_own().value_or(free)), free, kept(total), share(total)};
}

HostBudget::View HostBudget::view() const {
  View view;
  view.for_policy = room_for_policy();
  view.room = view.for_policy.free;
  const int64_t total = view.room + used() + ledger_.sums().all.leaving;
  std::optional<int64_t> most_used = ledger_.sums().most_used_below(share(total));
  if (!most_used) most_used = ledger_.sums().most_used_below(kNoBound);
  if (most_used) view.room = left_for(*most_used, view.room, total, share(total));
  view.room = std::min(view.room, view.for_policy.available);
  view.reserved = reserved();
  view.pooled = ledger_.sums().all.pooled;
  view.used = used();
  const int64_t free = free_for(ledger_.sums().all.scheduler_owners > 0 ? Owner::kScheduler : Owner::kProcess, std::nullopt, &view.bound);
  view.budget = view.reserved + free;
  if (view.bound == Bound::kBudget) view.budget = *budget_;
  return view;
}

HostBudget::ClientView HostBudget::view(policy::ClientId client) const {
  ClientView view;
  const Account* account = ledger_.find(client);
  if (account == nullptr) return view;
  view.lent_process = account->lent - account->lent_scheduler;
  view.lent_scheduler = account->lent_scheduler;
  view.missing = account->missing;
  view.urgent = account->urgent;
  view.bound = account->bound;
  return view;
}

}  // namespace nvshare::scheduler
