#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "policy/clients.h"
#include "policy/limits/limits.h"
#include "policy/memory/memory.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

// First whose next turn is furthest away: those that a compute limit keeps waiting; clients of suspended tenants; the idle, the longest
// unused first; then the waiting, the last in the queue first.
std::vector<Client*> by_distance_of_turn(const Context& context, Gpu& gpu) {
  std::vector<std::tuple<bool, Instant, ClientId, Client*>> idle;
  std::vector<std::pair<Place, Client*>> waiting;
  std::vector<Client*> order;
  const PlaceTerms terms = place_terms_on(context, gpu);
  for (const auto& [id, client] : gpu.lockless.evictable) {
    if (client->place.kept) continue;
    if (!client->waits()) {
      idle.emplace_back(!context.state.suspended.contains(client->tenant), client->past.last_used, id, client);
    } else if (may_run(context.state, *client) == Verdict::kLimit) {
      order.push_back(client);
    } else {
      waiting.emplace_back(place_of(context, terms, *client), client);
    }
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& entry : idle) order.push_back(std::get<Client*>(entry));
  std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {  // those of a gang have one place
    return std::tuple(a.first, a.second->id) > std::tuple(b.first, b.second->id);
  });
  for (const auto& [place, client] : waiting) order.push_back(client);
  return order;
}

// How long a movement can have taken: since it was asked for. Nothing: nobody asked for it, so it says nothing of the link.
std::optional<Duration> time_since_request(const Client& client, const SwapProgressed& event, Instant now) {
  if (event.out)
    return client.evictions.current && client.evictions.current->id == event.id && !client.evictions.current->ahead
               ? std::optional(now - client.evictions.current->asked_at)
               : std::nullopt;
  return client.holds_lock() && client.grant == event.id ? std::optional(now - client.turn.granted_at) : std::nullopt;
}

// Until the next report.
void note_host_use(State& state, const Client& client, Bytes more) {
  if (!state.host) return;
  HostRoom& host = *state.host;
  host.available = std::min(host.available - more, kHostMost);
  if (host.kept == 0) return;
  host.free = std::min(host.free - more, kHostMost);
  Bytes& used = host.used[client.tenant];
  used = std::clamp<Bytes>(used + more, 0, kHostMost);
}

void measure(Gpu& gpu, const Client& client, const SwapProgressed& event, Instant now) {
  const std::optional<Duration> possible = time_since_request(client, event, now);
  if (!possible) return;
  const Duration elapsed = std::min(event.elapsed, *possible);
  if (event.copied < kBandwidthSample || elapsed <= 0) return;
  const Bytes kib_per_second = (event.copied >> 10) * (kSecond / 1000) / std::max<Duration>(elapsed / 1000, 1);
  const Bytes sample = std::clamp(kib_per_second, kBandwidthLeast >> 10, kBandwidthMost >> 10) << 10;
  gpu.link.take(client.tenant, event.out ? &LinkSpeed::out : &LinkSpeed::in, sample);
}

}  // namespace

Movement::Part Movement::take(const SwapProgressed& event) {
  const bool goes_on = id_ == event.id && out_ == event.out && ahead_ == event.ahead;
  if (!goes_on) copied_ = unmoved_ = 0;
  id_ = event.id;
  out_ = event.out;
  ahead_ = event.ahead;
  const Part part{std::max<Bytes>(event.copied - copied_, 0), std::max<Bytes>(event.unmoved - unmoved_, 0)};
  copied_ += part.copied;
  unmoved_ += part.unmoved;
  return part;
}

void Link::take(TenantId tenant, Bytes LinkSpeed::*direction, Bytes sample) {
  Bytes& own = of_tenants[tenant].*direction;
  own = own == 0 ? sample : (3 * own + sample) / 4;
  std::vector<Bytes> all;
  for (const auto& [id, speed] : of_tenants) {
    if (speed.*direction > 0) all.push_back(speed.*direction);
  }
  // The lower one of two: a tenant that says it is slow has to be slow, one that says it is fast need not be fast.
  const auto middle = all.begin() + (std::ssize(all) - 1) / 2;
  std::nth_element(all.begin(), middle, all.end());
  median.*direction = *middle;
}

// A program that grows asks again and again, a few MiB each time: more is moved at once, so that not every step waits for a movement.
static Bytes growth_batch(const Context& context, const Gpu& gpu) {
  const bool growing =
      std::any_of(gpu.unsettled.begin(), gpu.unsettled.end(), [](const auto& entry) { return entry.second->growth.has_value(); });
  return growing ? std::min(kGrowthBatchMax, safe_limit(context.config(), gpu) / 64) : 0;
}

static void ask_to_move(Context& context, Gpu& gpu, Client& client, Bytes bytes, bool ahead = false) {
  const Duration patience = context.config().unanswered_grace + 2 * swap_time(gpu, bytes, 0);
  client.evictions.current =
      Eviction{context.state.next_eviction++, client.memory.resident - bytes, context.now + patience, context.now, ahead};
  if (!ahead) put_off_prefetch(context, gpu);
  recount(gpu, client);
  context.actions.push_back(SendEvict{client.id, client.evictions.current->id, bytes});
}

void evict_suspended(Context& context, Gpu& gpu) {
  for (const TenantId tenant : context.state.suspended) {
    each_client(gpu, tenant, [&](Client& client) {
      if (client.holds_lock() || client.waits() || client.place.kept || client.evictions.current || client.prefetches.current) return;
      const Bytes bytes = std::min(movable(client, context.now), host_room(context.state, client));
      gpu.host.asked = true;
      if (bytes > 0) ask_to_move(context, gpu, client, bytes);
    });
  }
}

void evict_shortfall(Context& context, Gpu& gpu) {
  Bytes missing = room_if(context.state, gpu, {.dropping_released = false}, context.now).shortfall - evicting_bytes(gpu);
  if (missing <= 0) return;
  missing = std::max(missing, std::min(growth_batch(context, gpu), host_room(context.state) - kPieceMost));
  std::vector<Client*> order = by_distance_of_turn(context, gpu);
  if (missing > host_room(context.state))  // what is kept has to be begun: last, as nobody beyond its share gets anything then
    std::stable_partition(order.begin(), order.end(), [&](const Client* client) { return is_beyond_share(context.state, *client); });
  for (Client* client : order) {
    if (missing <= 0) return;
    if (client->evictions.current) continue;
    const Bytes wanted = std::min(missing, movable(*client, context.now));
    const Bytes bytes = std::min(wanted, host_room(context.state, *client));
    if (bytes <= 0 || bytes < std::min(wanted, kPieceMost)) continue;  // part of a piece does not leave
    if (client->prefetches.current) {                                  // which ends in a moment
      missing -= bytes;
      continue;
    }
    ask_to_move(context, gpu, *client, bytes);
    missing -= bytes;
  }
}

bool evict_ahead(Context& context, Gpu& gpu, const Client& next, Bytes bytes) {
  for (Client* client : by_distance_of_turn(context, gpu)) {
    if (client->id == next.id || client->evictions.backoff.failures > 0) continue;
    gpu.host.asked = true;
    const Bytes moves = std::min({bytes, movable(*client, context.now), host_room(context.state, *client) - kPieceMost});
    if (moves <= 0) continue;
    ask_to_move(context, gpu, *client, moves, true);
    return true;
  }
  return false;
}

void watch_evictions(Context& context, Gpu& gpu) {
  for (const auto& [id, unsettled] : gpu.unsettled) {
    Client& client = *unsettled;
    if (client.evictions.current && client.evictions.current->deadline <= context.now) {
      client.evictions.current.reset();
      client.evictions.backoff.failed(context.now);  // so that it stays unsettled
      recount(gpu, client);
      context.note(Note::Level::kWarning, id, "does not move its memory out as asked; others have to");
    }
    if (client.evictions.current) context.wake(gpu, client.evictions.current->deadline);
    if (client.evictions.backoff.failures > 0) context.wake(gpu, client.evictions.backoff.retry_at);
  }
}

void take_swap(Context& context, Gpu& gpu, Client& client, const SwapProgressed& said) {
  SwapProgressed event = said;
  event.ahead &= !event.out;
  event.copied = std::clamp<Bytes>(event.copied, 0, std::max<Bytes>(gpu.total, 0));  // no movement is larger
  event.unmoved = std::clamp<Bytes>(event.out ? event.unmoved : 0, 0, std::max<Bytes>(gpu.total, 0));
  const auto [copied, unmoved] = client.movement.take(event);
  Bytes& total = event.out ? client.totals.swapped_out : client.totals.swapped_in;
  total += std::min(copied, std::numeric_limits<Bytes>::max() - total);
  client.totals.unmoved += std::min(unmoved, std::numeric_limits<Bytes>::max() - client.totals.unmoved);
  if (event.finished && !event.ahead) measure(gpu, client, event, context.now);

  const Bytes resident_before = client.memory.resident;
  take_memory(gpu, client, event.memory);
  if (event.ahead) take_prefetched(gpu, client, event, copied);
  if (event.out) note_in_vain(client, client.memory.resident);
  const Bytes gone = std::max<Bytes>(resident_before - client.memory.resident, 0);
  const Bytes came = std::min(copied, std::max<Bytes>(client.memory.resident - resident_before, 0));
  note_host_use(context.state, client, std::clamp(event.host_more.value_or(event.out ? gone : -came), -kHostMost, kHostMost));

  if (event.out) {
    if (!client.evictions.current || client.evictions.current->id != event.id) return;
    if (!event.finished) {
      client.evictions.current->deadline = context.now + context.config().unanswered_grace;
      return;
    }
    const bool done = !event.failed && client.memory.resident <= client.evictions.current->resident_target;
    client.evictions.current.reset();
    if (done) {
      client.evictions.backoff.succeeded();
      recount(gpu, client);
    } else {
      client.evictions.backoff.failed(context.now);
      recount(gpu, client);
      context.note(client.evictions.backoff.failures == 1 ? Note::Level::kInfo : Note::Level::kDebug, client.id,
                   "could not move all of the memory out that was asked for; " + mib(client.memory.resident) + " stay on the GPU");
    }
  } else if (event.finished && !event.ahead && event.id == client.grant && client.holds_lock()) {
    client.turn.loads = client.turn.loads && event.failed;
    if (event.failed) {
      client.turn.load.failed(context.now);
    } else if (client.state == ClientState::kLoading && client.budget.bytes >= client.memory.allocated) {
      client.turn.load.succeeded();
      client.turn.start = context.now;
      set_state(client, ClientState::kRunning, context.now);
    }
  }
}

}  // namespace nvshare::policy
