// The clients that wait on a GPU, in the order in which they are served, and beside it what a step asks of them: who may fit, whose reason
// the log does not have yet, how many there are. note_waiting() follows what is known of a client; what depends on the time, or on all
// clients, is brought up to date by refresh_queue(), before somebody reads the order.
//
// The order is that of clients by themselves. Those of tenants on several GPUs, whose places depend on all of these, are not in it: with
// gangs admission works the order out in each step, of those that are not put off (gang_queue.cc).
#include <limits>
#include <utility>

#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

void take_out_of_order(Queue& queue, Client& client) {
  QueueEntry& entry = client.indexed.queued;
  if (entry.place) queue.order.erase(*entry.place);
  entry.place.reset();
  if (entry.low) queue.low.erase({entry.keys.waiting_since, client.id});
  if (entry.promoted) queue.promoted.erase({entry.keys.waiting_since, client.id});
  entry.low = entry.promoted = false;
}

void place_anew(Queue& queue, Client& client) {
  if (!client.indexed.queued.place) return;
  take_out_of_order(queue, client);
  queue.fresh.push_back(&client);
}

bool is_of_several(const Client& client) { return client.indexed.spread != nullptr && client.indexed.spread->changes != nullptr; }

void note_of_several(Queue& queue, Client& client) {
  QueueEntry& entry = client.indexed.queued;
  const bool of_several = is_of_several(client);
  if (entry.of_several == of_several) return;
  entry.of_several = of_several;
  if (of_several) {
    ++queue.of_several;
    if (!entry.place) std::erase(queue.fresh, &client);
    take_out_of_order(queue, client);
    queue.looked_at.emplace(client.id, &client);
  } else {
    --queue.of_several;
    if (!std::exchange(entry.put_off, false)) queue.looked_at.erase(client.id);
    queue.fresh.push_back(&client);
  }
}

void make_free(Queue& queue, Client& client) {
  client.indexed.queued.held = false;
  client.indexed.queued.free_at = queue.free.size();
  queue.free.push_back(&client);
}

void make_held(Queue& queue, Client& client) {
  QueueEntry& entry = client.indexed.queued;
  if (std::exchange(entry.held, true)) return;
  queue.free.back()->indexed.queued.free_at = entry.free_at;
  queue.free[entry.free_at] = queue.free.back();
  queue.free.pop_back();
}

bool is_ordinary(const QueueKeys& keys) { return !keys.woke && !keys.ends; }

void leave(Queue& queue, Client& client) {
  QueueEntry& entry = client.indexed.queued;
  if (!entry.of_several && !entry.place) std::erase(queue.fresh, &client);
  take_out_of_order(queue, client);
  queue.of_several -= entry.of_several;
  if (entry.of_several && !entry.put_off) queue.looked_at.erase(client.id);
  if (entry.keys.last_until > 0) queue.late.erase({entry.keys.last_until, client.id});
  if (is_ordinary(entry.keys)) queue.ordinary.erase({entry.keys.passed_at_start, client.id});
  if (queue.rooms_kept) {
    queue.by_room.erase({entry.room, client.id});
    queue.unplaced.erase(client.id);
  }
  make_held(queue, client);
  queue.ending -= entry.keys.ends;
  if (entry.unnoted) queue.unnoted.erase({*entry.unnoted, client.id});
  queue.waiters -= entry.counts;
  queue.memory_waiters -= entry.counts_for_memory;
  entry = {};
}

void enter(Queue& queue, Client& client, const QueueKeys& keys) {
  QueueEntry& entry = client.indexed.queued;
  entry.waits = true;
  entry.keys = keys;
  entry.of_several = is_of_several(client);
  if (entry.of_several) {
    ++queue.of_several;
    queue.looked_at.emplace(client.id, &client);
  } else {
    queue.fresh.push_back(&client);
  }
  make_free(queue, client);
  queue.ending += keys.ends;
  if (keys.last_until > 0) queue.late.insert({keys.last_until, client.id});
  if (is_ordinary(keys)) queue.ordinary.insert({keys.passed_at_start, client.id});
  if (queue.rooms_kept) {
    entry.room = room_asked(client);
    queue.by_room.insert({entry.room, client.id});
  }
}

}  // namespace

QueueKeys keys_of(const Client& client) {
  return {client.last_turn.due,
          client.wait.woke,
          client.priority,
          client.past.last_used,
          client.wait.arrival,
          client.wait.since,
          client.wait.passed_at_start,
          client.drain.overstay.last_until};
}

// The least that has to be free for it, whether or not what of it is on the GPU can move.
Bytes room_asked(const Client& client) {
  return charge(client) - (client.evictions.backoff.failures > 0 ? held(client) : immovable(client));
}

bool is_put_off(const Client& client) {
  return client.wait.reason == WaitReason::kQueue && client.wait.for_memory && !client.evictions.current;
}

std::optional<Instant> wait_note_due(const Client& client) {
  if (client.wait.reason == client.noted.reason) return std::nullopt;
  if (cannot_have_it_soon(client.wait.reason)) return 0;
  if (client.wait.reason == WaitReason::kNone || client.wait.reason == WaitReason::kLimit || client.wait.reason == WaitReason::kShare)
    return std::nullopt;  // unless the log has everything
  return client.noted.wait_at == 0 ? 0 : client.noted.wait_at + kNotePause;
}

static void note_room(Queue& queue, Client& client) {
  QueueEntry& entry = client.indexed.queued;
  if (const Bytes room = room_asked(client); room != entry.room) {
    queue.by_room.erase({entry.room, client.id});
    queue.by_room.insert({room, client.id});
    entry.room = room;
  }
  if (is_put_off(client)) {
    queue.unplaced.erase(client.id);
  } else {
    queue.unplaced.emplace(client.id, &client);
  }
}

static void keep_rooms(Gpu& gpu) {
  Queue& queue = gpu.queue;
  if (std::exchange(queue.rooms_kept, true)) return;
  for (const auto& [id, client] : gpu.waiting) {
    QueueEntry& entry = client->indexed.queued;
    entry.room = room_asked(*client);
    queue.by_room.insert({entry.room, id});
    note_room(queue, *client);
  }
}

static void forget_rooms(Queue& queue) {
  queue.rooms_kept = false;
  queue.by_room.clear();
  queue.unplaced.clear();
}

void note_waiting(Gpu& gpu, Client& client) {
  Queue& queue = gpu.queue;
  if (gpu.quota.limited && queue.rooms_kept) forget_rooms(queue);
  QueueEntry& entry = client.indexed.queued;
  if (!client.waits() || client.indexed.home != &gpu) {
    if (entry.waits) leave(queue, client);
    return;
  }
  const QueueKeys keys = keys_of(client);
  if (entry.waits && entry.keys != keys) leave(queue, client);
  if (!entry.waits) enter(queue, client, keys);
  note_of_several(queue, client);
  if (queue.rooms_kept) note_room(queue, client);
  if (const std::optional<Instant> due = wait_note_due(client); due != entry.unnoted) {
    if (entry.unnoted) queue.unnoted.erase({*entry.unnoted, client.id});
    if (due) queue.unnoted.insert({*due, client.id});
    entry.unnoted = due;
  }
  const bool counts = client.wait.reason != WaitReason::kLimit;
  queue.waiters += counts - entry.counts;
  queue.memory_waiters += client.wait.for_memory - entry.counts_for_memory;
  entry.counts = counts;
  entry.counts_for_memory = client.wait.for_memory;
  const bool held = client.wait.reason == WaitReason::kLimit || client.wait.reason == WaitReason::kShare;
  if (held) make_held(queue, client);
  if (!held && entry.held) make_free(queue, client);
}

void set_put_off(Client& client, bool put_off) {
  QueueEntry& entry = client.indexed.queued;
  if (!entry.of_several || entry.put_off == put_off) return;
  entry.put_off = put_off;
  FlatMap<ClientId, Client*>& looked_at = client.indexed.home->queue.looked_at;
  if (put_off) {
    looked_at.erase(client.id);
  } else {
    looked_at.emplace(client.id, &client);
  }
}

void forget_waiting(Gpu& gpu, Client& client) {
  if (client.indexed.queued.waits) leave(gpu.queue, client);
}

void forget_held_for(Gpu& gpu, const Client& client) {
  Account* const account = client.indexed.tenancy->account;
  if (account == nullptr) return;
  account->held_for = WaitReason::kNone;
  note_verdict(gpu.quota, *account);
}

void set_reason(Client& client, WaitReason reason, bool waited_for_memory) {
  if (client.wait.reason == reason && client.wait.for_memory == waited_for_memory) return;
  Gpu* const gpu = client.indexed.home;
  if (gpu != nullptr && cannot_have_it_soon(client.wait.reason) != cannot_have_it_soon(reason)) limits_change(*gpu);
  const bool counts_otherwise = (client.wait.reason == WaitReason::kLimit) != (reason == WaitReason::kLimit);  // for its gang's contention
  if (counts_otherwise || client.wait.for_memory != waited_for_memory) note_member(client);
  client.wait.reason = reason;
  client.wait.for_memory = waited_for_memory;
  if (gpu == nullptr) return;
  forget_held_for(*gpu, client);
  note_waiting(*gpu, client);
}

const PlaceTerms& refresh_queue(const Context& context, Gpu& gpu) {
  Queue& queue = gpu.queue;
  const PlaceTerms terms = place_terms_on(context, gpu);
  if (terms.wakers_pass != queue.terms.wakers_pass || terms.highest != queue.terms.highest) {
    while (!queue.order.empty()) place_anew(queue, *queue.order.begin()->second);
  }
  queue.terms = terms;
  while (!queue.late.empty() && queue.late.begin()->first <= context.now) {
    place_anew(queue, gpu.clients.at(queue.late.begin()->second));
    queue.late.erase(queue.late.begin());
  }
  while (!queue.low.empty() && context.now - queue.low.begin()->first >= terms.promote_after)
    place_anew(queue, gpu.clients.at(queue.low.begin()->second));
  while (!queue.promoted.empty() && context.now - queue.promoted.rbegin()->first < terms.promote_after)
    place_anew(queue, gpu.clients.at(queue.promoted.rbegin()->second));
  for (Client* client : queue.fresh) {
    QueueEntry& entry = client->indexed.queued;
    entry.place = place_of(context, terms, *client);
    queue.order.emplace(*entry.place, client);
    const bool below = client->priority < terms.highest;
    entry.promoted = below && context.now - client->wait.since >= terms.promote_after;
    entry.low = below && !entry.promoted;
    if (below) (entry.promoted ? queue.promoted : queue.low).insert({client->wait.since, client->id});
  }
  queue.fresh.clear();
  return queue.terms;
}

std::vector<Client*> that_may_fit(Gpu& gpu, const Place& after, Bytes room) {
  keep_rooms(gpu);
  std::vector<Client*> clients;
  const auto look = [&](Client& client) {
    if (client.indexed.queued.place && *client.indexed.queued.place > after) clients.push_back(&client);
  };
  for (const auto& [id, client] : gpu.queue.unplaced) look(*client);
  for (const auto& [asked, id] : gpu.queue.by_room) {
    if (asked > room) break;
    Client& client = *gpu.waiting.at(id);
    if (is_put_off(client)) look(client);
  }
  std::sort(clients.begin(), clients.end(),
            [](const Client* a, const Client* b) { return *a->indexed.queued.place < *b->indexed.queued.place; });
  return clients;
}

}  // namespace nvshare::policy
