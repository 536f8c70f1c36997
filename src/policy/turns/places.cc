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
  QueueKeys keys{.priority = std::numeric_limits<int>::min(),
                 .last_used = gang.last_used,
                 .arrival = std::numeric_limits<uint64_t>::max(),
                 .waiting_since = context.now};
  PlaceTerms terms{.wakers_pass = true};
  ClientId first = std::numeric_limits<ClientId>::max();
  for (const Gang::Member& member : gang.members) {
    const PlaceTerms& here = terms_on(*member.on);
    const QueueKeys own = keys_of(*member.is);
    keys.priority = std::max(keys.priority, own.priority);
    terms.highest = std::max(terms.highest, here.highest);
    terms.promote_after = std::max(terms.promote_after, here.promote_after);
    if (!member.is->waits()) continue;
    terms.wakers_pass &= here.wakers_pass;
    keys.ends |= own.ends;
    keys.last_until = std::max(keys.last_until, own.last_until);
    keys.waiting_since = std::min(keys.waiting_since, own.waiting_since);
    keys.arrival = std::min(keys.arrival, own.arrival);
    first = std::min(first, member.client);
  }
  return place_by(keys, terms, joins, first, context.now);
}

// Of all that are settled together.
class TermsOfAll {
 public:
  TermsOfAll(const Context& context, const Gpus& gpus) : context_(context), gpus_(gpus), terms_(gpus.size()) {}
  const PlaceTerms& on(const Gpu& gpu) {
    const auto at = std::lower_bound(gpus_.begin(), gpus_.end(), gpu.id, [](const Gpu* other, GpuId id) { return other->id < id; });
    std::optional<PlaceTerms>& terms = terms_[static_cast<size_t>(at - gpus_.begin())];
    if (!terms) terms = place_terms_on(context_, gpu);
    return *terms;
  }

 private:
  const Context& context_;
  const Gpus& gpus_;
  std::vector<std::optional<PlaceTerms>> terms_;
};

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

std::vector<Waiters> queue_of(Context& context, const Gpus& gpus) {
  std::vector<Waiters> queue;
  const uint64_t number = ++context.state.searches;
  TermsOfAll terms_of_all(context, gpus);
  const auto terms_on = [&](const Gpu& gpu) -> const PlaceTerms& { return terms_of_all.on(gpu); };
  size_t waiting_most = 0;
  for (const Gpu* const gpu : gpus) waiting_most += gpu->waiting.size();
  queue.reserve(waiting_most);
  for (const Gpu* const gpu : gpus) {
    if (gpu->waiting.empty()) continue;
    const PlaceTerms& terms = terms_on(*gpu);
    for (const auto& [id, waiting] : gpu->waiting) {
      Client& client = *waiting;
      Gang* gang = gang_of(context.state, client);
      const bool wakes = client.wait.woke && terms.wakers_pass;
      if (gang == nullptr) {
        const bool ends = client.last_turn.due && terms.wakers_pass;
        queue.push_back({place_of(context, terms, client), nullptr, false, ends || wakes, ends, &client});
      } else if (std::exchange(gang->queued_by, number) != number) {
        const bool joins = joins_its_gang(context.state, client);
        queue.push_back({place_of(context, *gang, joins, terms_on), gang, joins, joins || wakes, false});
      }
    }
  }
  return queue;
}

InOrder::InOrder(const std::vector<Waiters>& queue) {
  order_.reserve(queue.size());
  for (const Waiters& waiters : queue) order_.push_back(&waiters);  // places are large
  sort_some();
}

// First as many as are mostly asked for, then all.
void InOrder::sort_some() {
  constexpr size_t kFirst = 32;
  if (at_ < sorted_) return;
  sorted_ = at_ == 0 ? std::min(kFirst, order_.size()) : order_.size();
  const auto from = order_.begin() + static_cast<std::ptrdiff_t>(at_);
  std::partial_sort(from, order_.begin() + static_cast<std::ptrdiff_t>(sorted_), order_.end(),
                    [](const Waiters* a, const Waiters* b) { return a->place < b->place; });
}

const Waiters& InOrder::next() {
  const Waiters& first = *order_[at_++];
  sort_some();
  return first;
}

}  // namespace nvshare::policy
