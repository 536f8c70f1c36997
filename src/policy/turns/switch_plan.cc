// The clients that have to leave for those that come, and when they may be asked to.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "policy/gangs/gangs.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

// What may leave a GPU together: one client, or those of a gang.
struct Party {
  Instant due = 0;
  int priority = 0;
  const Client* first = nullptr;
  std::vector<const Client*> others = {};  // of a gang
  bool doubtful = false;                   // one of them may not drain

  void add(const Client& client, bool is_doubtful) {
    priority = first == nullptr ? client.priority : std::max(priority, client.priority);
    doubtful |= is_doubtful;
    if (first == nullptr) {
      first = &client;
    } else {
      others.push_back(&client);
    }
  }

  template <typename Look>
  void each(Look look) const {
    look(*first);
    for (const Client* client : others) look(*client);
  }
};

// When it may be dropped.
Instant due_of(const Context& context, const Party& party, const TurnTerms& terms) {
  Instant due = std::numeric_limits<Instant>::max();
  party.each([&](const Client& client) { due = std::min(due, drop_due(context, client, terms)); });  // stuck members pull the others along
  return due;
}

// The order in which parties are dropped, from behind: the first one is on top of a heap.
TurnKey order_of(const Party& party) { return {party.due, party.priority, party.first->id}; }
bool leaves_later(const Party& a, const Party& b) { return order_of(a) > order_of(b); }

bool may_leave(const Comers& comers, const Client& client) {
  return client.takes_place() && std::find(comers.clients.begin(), comers.clients.end(), client.id) == comers.clients.end();
}

// Those of a gang on a GPU that may leave.
std::optional<Party> party_of(const Context& context, const Gpu& gpu, const Comers& comers, const Gang& gang) {
  const Gang::OnGpu& on = *on_gpu(gang, gpu);
  Party party;
  for (size_t i = on.begin; i < on.end; ++i) {
    const Client& member = *gang.members[i].is;
    if (may_leave(comers, member)) party.add(member, drain_is_doubtful(context.state, member, context.now));
  }
  return party.first != nullptr ? std::optional(std::move(party)) : std::nullopt;
}

// No turn is shorter that lasts so long by these terms.
Duration least_length(const State& state, const TurnTerms& terms) {
  Duration least = terms.length;
  for (const auto& [tenant, own] : state.turns) {
    if (own.most > 0) least = std::min(least, std::max(own.most, terms.quantum));
  }
  return least;
}

// Who may leave, but for gangs that have to in any case, in the order in which they may be dropped. Without those in doubt, unless these
// too. Of gangs only those are looked at that may be among the next: a turn lasts so long from when it began, and so long from when its
// last client began, so that whoever ends by some time stands before it in both lists, and to go through one of them is enough. Those of
// the same time stand there in the order in which they would leave.
class Leavers {
 public:
  Leavers(const Context& context, const Gpu& gpu, const Comers& comers, const TurnTerms& terms, bool doubtful_too)
      : context_(context),
        gpu_(gpu),
        comers_(comers),
        terms_(terms),
        doubtful_too_(doubtful_too),
        any_order_(terms.wakes || terms.load_is_stuck),
        own_(comers.clients.empty() ? nullptr : gang_of(context.state, *context.state.find(comers.clients.front()))),
        by_first_{&gpu.gangs.by_first, gpu.gangs.by_first.begin(), least_length(context.state, terms)},
        by_last_{&gpu.gangs.by_last, gpu.gangs.by_last.begin(), std::min(by_first_.lasts, terms.quantum)} {
    if (own_ != nullptr) add_gang(*own_);  // some of it may stay, so that it has no place in the lists
    if (gpu.holders.size() + gpu.lockless.keepers.size() == gpu.gangs.placed) return;
    const auto add_single = [&](const Client& client) {
      if (!may_leave(comers, client) || gang_of(context.state, client) != nullptr) return;
      Party party;
      party.add(client, drain_is_doubtful(context.state, client, context.now));
      add(std::move(party));
    };
    parties_.reserve(gpu.holders.size());
    for (const auto& [grant, client] : gpu.holders) add_single(*client);
    for (const auto& [id, client] : gpu.lockless.keepers) add_single(*client);
    std::make_heap(parties_.begin(), parties_.end(), leaves_later);
  }

  std::optional<Party> next() {
    const auto may_come = [&](const List& list) {
      return !list.is_over() && (parties_.empty() || any_order_ || list.least() < order_of(parties_.front()));
    };
    while (may_come(by_first_) && may_come(by_last_)) {
      look_at(*(by_first_.at++)->second, by_last_, &TurnBegan::last);
      look_at(*(by_last_.at++)->second, by_first_, &TurnBegan::first);
    }
    if (parties_.empty()) return std::nullopt;
    std::pop_heap(parties_.begin(), parties_.end(), leaves_later);
    Party first = std::move(parties_.back());
    parties_.pop_back();
    return first;
  }

 private:
  struct List {
    const GangsByTurn* of;
    GangsByTurn::iterator at;  // the first that nobody looked at by way of it
    Duration lasts;            // a turn, from what the list is in the order of

    bool is_over() const { return at == of->end(); }
    TurnKey least() const {
      auto [due, priority, first] = at->first;
      if (due != kEndsAnyTime) due += lasts;
      return {due, priority, first};
    }
  };

  // Unless it was by way of the other list.
  void look_at(const Gang& gang, const List& other, Instant TurnBegan::*of) {
    if (other.is_over() || turn_key(on_gpu(gang, gpu_)->turn, of) < other.at->first) return;
    if (&gang != own_ && !comers_.rivals.contains(gang.id)) add_gang(gang);
  }

  void add_gang(const Gang& gang) {
    std::optional<Party> party = party_of(context_, gpu_, comers_, gang);
    if (party && add(*std::move(party))) std::push_heap(parties_.begin(), parties_.end(), leaves_later);
  }

  bool add(Party&& party) {
    if (party.doubtful && !doubtful_too_) return false;
    party.due = due_of(context_, party, terms_);
    parties_.push_back(std::move(party));
    return true;
  }

  const Context& context_;
  const Gpu& gpu_;
  const Comers& comers_;
  const TurnTerms terms_;
  const bool doubtful_too_;
  const bool any_order_;   // a turn may end sooner than its time
  const Gang* const own_;  // that of the comers
  List by_first_, by_last_;
  std::vector<Party> parties_;  // a heap
};

// Those of gangs that have to leave in any case.
std::vector<Party> rivals_on(const Context& context, const Gpu& gpu, const std::set<GangId>& rivals) {
  std::vector<Party> all;
  for (const GangId& id : rivals) {
    const Gang& gang = context.state.gangs.at(id);
    const Gang::OnGpu* const on = on_gpu(gang, gpu);
    Party party;
    for (size_t i = on != nullptr ? on->begin : 0; on != nullptr && i < on->end; ++i) {
      const Client& client = *gang.members[i].is;
      if (client.takes_place()) party.add(client, drain_is_doubtful(context.state, client, context.now));
    }
    if (party.first != nullptr) all.push_back(std::move(party));
  }
  return all;
}

// Whoever left: what cannot move, and these, are more than there is.
bool never_fit(const State& state, const Gpu& gpu, std::span<const ClientId> comers) {
  Bytes fixed = gpu.sums.immovable + departed_bytes(gpu);
  for (const ClientId id : comers) {
    const Client& client = *state.find(id);
    fixed += charge(client) - client.indexed.counted.immovable;
  }
  return fixed > safe_limit(state.config, gpu);
}

// Those without whom the comers fit, and no more of them than that takes: those that have to leave, then first who may be dropped first.
class Chosen {
 public:
  Chosen(const State& state, const Gpu& gpu, const Comers& comers, Instant now)
      : count_(state, gpu, WhatIf{.comers = comers.clients}, now) {}

  bool fit() const { return count_.room().fits(); }
  const std::vector<Party>& parties() const { return parties_; }
  const RoomCount& count() const { return count_; }

  void add(Party&& party) {
    set_leaves(party, true);
    parties_.push_back(std::move(party));
  }
  // False: the comers do not fit whoever of them leaves.
  bool add_from(Leavers&& leavers) {
    const size_t before = parties_.size();
    do {
      std::optional<Party> next = leavers.next();
      if (!next) return false;
      add(*std::move(next));
    } while (!fit());
    for (size_t i = parties_.size() - 1; i-- > before;) {  // spare whom a later one made unnecessary
      set_leaves(parties_[i], false);
      if (fit()) {
        parties_.erase(parties_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        set_leaves(parties_[i], true);
      }
    }
    return true;
  }

 private:
  void set_leaves(const Party& party, bool leaves) {
    party.each([&](const Client& client) { leaves ? count_.leaves(client) : count_.stays(client); });
  }

  RoomCount count_;
  std::vector<Party> parties_;
};

std::optional<Switch> plan_with(const Context& context, const Gpu& gpu, const Comers& comers, bool doubtful_too) {
  const State& state = context.state;
  if (never_fit(state, gpu, comers.clients)) return std::nullopt;
  Bytes in = 0;
  for (const ClientId id : comers.clients) in += charge(*state.find(id)) - state.find(id)->memory.resident;
  const bool load_is_stuck =
      !(gpu.departed.empty() && fits_when_released(context.config(), gpu)) && !room_if(state, gpu, {}, context.now).fits();
  const auto terms = [&](Duration cost, bool wakes) {
    TurnTerms with = terms_of(context.config(), cost, wakes);
    with.load_is_stuck = load_is_stuck;
    if (comers.at_once && wakes) with.quantum = 0;
    return with;
  };
  Switch plan;
  plan.cost = std::max(comers.least_cost, swap_time(gpu, in, in));

  if (!state.gangs.empty()) list_gangs(context.state);
  Chosen chosen(state, gpu, comers, context.now);
  for (Party& rival : rivals_on(context, gpu, comers.rivals)) chosen.add(std::move(rival));
  if (!chosen.fit() && !chosen.add_from({context, gpu, comers, terms(plan.cost, comers.wakes), doubtful_too})) return std::nullopt;

  plan.in = in;
  plan.out = chosen.count().room().shortfall;
  plan.cost = std::max(comers.least_cost, swap_time(gpu, plan.out, in));
  plan.quantum = terms_of(context.config(), plan.cost, false).quantum;
  plan.at = context.now;
  const TurnTerms with = terms(plan.cost, comers.wakes), without = terms(plan.cost, false);
  for (const Party& party : chosen.parties()) {
    party.each([&](const Client& client) { plan.leavers.insert(client.id); });
    plan.at = std::max(plan.at, due_of(context, party, with));
    plan.doubtful |= party.doubtful;
  }
  for (const Party& party : chosen.parties()) {
    if (!comers.wakes || due_of(context, party, without) <= plan.at) continue;  // it would be the same
    party.each([&](const Client& client) { plan.interrupted.insert(client.id); });
  }
  const bool counts_on_doubtful = std::any_of(gpu.unsettled.begin(), gpu.unsettled.end(), [&](const auto& entry) {
    return entry.second->state == ClientState::kDropping && drain_is_doubtful(state, *entry.second, context.now);
  });
  if (counts_on_doubtful) {
    const WhatIf still_there{.comers = comers.clients, .leavers = &plan.leavers, .dropping_released = false};
    plan.doubtful |= !room_if(state, gpu, still_there, context.now).fits();
  }
  return plan;
}

}  // namespace

std::optional<Switch> plan_switch(const Context& context, const Gpu& gpu, const Comers& comers) {
  if (std::optional<Switch> plan = plan_with(context, gpu, comers, false)) return plan;
  return plan_with(context, gpu, comers, true);
}

}  // namespace nvshare::policy
