// The waiting order: the places of those that wait, of clients by themselves and of gangs.
#include <limits>
#include <tuple>
#include <utility>

#include "policy/gangs/gangs.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

// Waking clients, and those that end, go before those that wait, until that has cost one of these a whole turn.
bool wakers_may_pass(const Gpu& gpu, Duration limit) {
  const auto& ordinary = gpu.queue.ordinary;
  return ordinary.empty() || gpu.switches.passing - ordinary.begin()->first < limit;
}

int highest_priority(const Gpu& gpu) { return gpu.priorities.empty() ? 0 : std::max(gpu.priorities.rbegin()->first, 0); }

// The rule of the waiting order, for one client, or for those of a gang that wait. First come those that join their running gang, then all
// others but those that kept the GPU against requests, which come last; among them those that end, priority, waking clients, least recent
// use, arrival. The members of a gang have one place, the same on all their GPUs: so gangs that wait for the same GPUs are served one after
// the other.
Place place_by(const QueueKeys& keys, const PlaceTerms& terms, bool joins, ClientId id, Instant now) {
  const int priority = now - keys.waiting_since >= terms.promote_after ? terms.highest : keys.priority;
  return {joins                   ? 0
          : now < keys.last_until ? 2
                                  : 1,
          !(keys.ends && terms.wakers_pass),
          -priority,
          !(keys.woke && terms.wakers_pass),
          keys.last_used,
          keys.arrival,
          id};
}

// A gang stands where the first of its members would, and never wakes.
template <typename TermsOn>
Place place_of(const Context& context, const Gang& gang, bool joins, TermsOn terms_on) {
  PlaceTerms terms{.wakers_pass = true};
  ClientId first = std::numeric_limits<ClientId>::max();
  for (const Gang::Member& member : gang.members) {
    const PlaceTerms& here = terms_on(*member.on);
    terms.highest = std::max(terms.highest, here.highest);
    terms.promote_after = std::max(terms.promote_after, here.promote_after);
    if (!member.is->waits()) continue;
    terms.wakers_pass &= here.wakers_pass;
    first = std::min(first, member.client);
  }
  return place_by(keys_of(gang), terms, joins, first, context.now);
}

bool comes_later(const Waiters* a, const Waiters* b) { return a->place > b->place; }

}  // namespace

PlaceTerms place_terms_on(const Context& context, const Gpu& gpu) {
  const Duration limit = turn_limit(context.config(), gpu);
  return {wakers_may_pass(gpu, limit), kPromoteTurns * limit, highest_priority(gpu)};
}

Place place_of(const Context& context, const PlaceTerms& terms, const Client& client) {
  if (const Gang* gang = gang_of(context.state, client)) {
    return place_of(context, *gang, joins_its_gang(context.state, client), [&](const Gpu& gpu) { return place_terms_on(context, gpu); });
  }
  return place_by(keys_of(client), terms, false, client.id, context.now);
}

QueueKeys keys_of(const Gang& gang) {
  QueueKeys keys{.priority = std::numeric_limits<int>::min(),
                 .last_used = gang.last_used,
                 .arrival = std::numeric_limits<uint64_t>::max(),
                 .waiting_since = std::numeric_limits<Instant>::max()};
  for (const Gang::Member& member : gang.members) {
    const QueueKeys own = keys_of(*member.is);
    keys.priority = std::max(keys.priority, own.priority);
    if (!member.is->waits()) continue;
    keys.ends |= own.ends;
    keys.last_until = std::max(keys.last_until, own.last_until);
    keys.waiting_since = std::min(keys.waiting_since, own.waiting_since);
    keys.arrival = std::min(keys.arrival, own.arrival);
  }
  return keys;
}

InOrder::InOrder(Context& context, const Gpus& gpus) : context_(context), gpus_(gpus), of_gpus_(gpus.size()) {
  context.state.gang_changes.brought_back.clear();
  ++context.state.searches;
  for (const Gpu* const gpu : gpus) find_waiting(*gpu);
  order_.reserve(all_.size());
  for (const Waiters& waiters : all_) order_.push_back(&waiters);  // places are large
  std::make_heap(order_.begin(), order_.end(), comes_later);
}

const PlaceTerms& InOrder::terms_on(const Gpu& gpu) {
  const auto at = std::lower_bound(gpus_.begin(), gpus_.end(), gpu.id, [](const Gpu* other, GpuId id) { return other->id < id; });
  std::optional<PlaceTerms>& terms = of_gpus_[static_cast<size_t>(at - gpus_.begin())].terms;
  if (!terms) terms = place_terms_on(context_, gpu);
  return *terms;
}

Waiters InOrder::waiters_of(Gang& gang, bool joins) {
  const Place place = place_of(context_, gang, joins, [&](const Gpu& gpu) -> const PlaceTerms& { return terms_on(gpu); });
  return {.place = place, .gang = &gang, .joins = joins, .wakes = joins};
}

void InOrder::find_waiting(const Gpu& gpu) {
  if (gpu.waiting.empty()) return;
  const PlaceTerms& terms = terms_on(gpu);
  const auto add_single = [&](Client& client) {
    const bool wakes = client.wait.woke && terms.wakers_pass, ends = client.last_turn.due && terms.wakers_pass;
    all_.push_back({.place = place_of(context_, terms, client), .wakes = ends || wakes, .ends = ends, .client = &client});
  };
  for (const auto& [id, client] : gpu.queue.looked_at) {
    Gang* const gang = gang_of(context_.state, *client);
    if (gang == nullptr) {
      add_single(*client);
    } else if (std::exchange(gang->queued_by, context_.state.searches) != context_.state.searches) {
      all_.push_back(waiters_of(*gang, joins_its_gang(context_.state, *client)));
    }
  }
  if (gpu.waiting.size() == gpu.queue.of_several) return;
  for (const auto& [id, client] : gpu.waiting) {
    if (!client->indexed.queued.of_several) add_single(*client);
  }
}

const Waiters* InOrder::next(const Heads& heads) {
  Gang* const put_off = next_put_off(heads);
  if (put_off != nullptr && (order_.empty() || put_off->put_off->place < order_.front()->place)) {
    last_ = put_off->put_off->place;
    return &all_.emplace_back(Waiters{.place = *last_, .gang = put_off});
  }
  if (order_.empty()) return nullptr;
  std::pop_heap(order_.begin(), order_.end(), comes_later);
  const Waiters* const first = order_.back();
  order_.pop_back();
  last_ = first->place;
  return first;
}

Gang* InOrder::next_put_off(const Heads& heads) {
  Gang* first = nullptr;
  for (size_t i = 0; i < gpus_.size(); ++i) {
    const GangsPutOff& here = gpus_[i]->gangs.put_off;
    if (here.behind.empty() && here.beside.empty()) continue;
    OfGpu& of = of_gpus_[i];
    const bool head = has_head(heads, *gpus_[i]);
    const bool passed = of.put_off != nullptr && (!of.put_off->put_off || of.put_off->put_off->place <= last_);
    if (!std::exchange(of.found, true) || of.has_head != head || passed) {
      const FlatMap<Place, Gang*>& gangs = head ? here.beside : here.behind;
      const auto at = last_ ? gangs.upper_bound(*last_) : gangs.begin();
      of.has_head = head;
      of.put_off = at != gangs.end() ? at->second : nullptr;
    }
    if (of.put_off != nullptr && (first == nullptr || of.put_off->put_off->place < first->put_off->place)) first = of.put_off;
  }
  return first;
}

void InOrder::add_brought_back() {
  for (Gang* const gang : std::exchange(context_.state.gang_changes.brought_back, {})) {
    if (gang->put_off || std::exchange(gang->queued_by, context_.state.searches) == context_.state.searches) continue;
    Waiters waiters = waiters_of(*gang, false);
    if (!last_ || waiters.place > *last_) {
      order_.push_back(&all_.emplace_back(std::move(waiters)));
      std::push_heap(order_.begin(), order_.end(), comes_later);
    }
  }
}

}  // namespace nvshare::policy
