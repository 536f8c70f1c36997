#include "policy/memory/room.h"

#include <limits>
#include <utility>

#include "policy/gangs/gangs.h"

namespace nvshare::policy {

Bytes overhead_of(const Config& config, const Client& client) { return client.overhead.value_or(config.overhead_default); }

Bytes departed_bytes(const Gpu& gpu) { return gpu.departed.bytes(); }

Bytes committed(const Gpu& gpu) { return departed_bytes(gpu) + gpu.sums.committed; }

Bytes free_bytes(const Config& config, const Gpu& gpu) { return safe_limit(config, gpu) - committed(gpu); }

static Bytes movable_at_best(const Client& client) { return held(client) - immovable(client); }

Bytes movable(const Client& client, Instant now) {
  const bool answers = !client.evictions.backoff.holds(now) && !(client.prefetches.current && client.prefetches.current->overdue);
  return answers ? movable_at_best(client) : 0;
}

Bytes ceiling(const Config& config, const Gpu& gpu, const Client& client) {
  return std::max<Bytes>(safe_limit(config, gpu) - (gpu.sums.immovable - client.indexed.counted.immovable), 0);
}

bool all_may_fit(const Config& config, Gpu& gpu) {
  const Bytes base = safe_limit(config, gpu) - gpu.sums.immovable;
  if (base >= 0 && gpu.recounted.needs_most <= base) return true;
  Bytes most = 0;
  for (const auto& [id, client] : gpu.clients) most = std::max(most, client.indexed.counted.needed - client.indexed.counted.immovable);
  gpu.recounted.needs_most = most;
  return base >= 0 && most <= base;
}

Bytes evicting_bytes(const Client& client) {
  return client.evictions.current ? std::max<Bytes>(client.memory.resident - client.evictions.current->resident_target, 0) : 0;
}

Bytes evicting_bytes(const Gpu& gpu) { return gpu.sums.evicting; }

// What RoomCount counts of a client that neither comes nor leaves, but for places that gangs keep and for evictions that failed lately.
static Sums counted_of(const Client& client) {
  Sums sums{client.overhead.value_or(0),
            !client.overhead,
            immovable(client),
            need(client),
            client.holds_lock() ? need(client) : 0,
            client.holds_lock() ? client.budget.bytes : held(client),
            evicting_bytes(client)};
  const Bytes stays = immovable(client), moves = movable_at_best(client);
  const Bytes budget = std::max(client.budget.bytes, client.memory.resident);
  sums.charged = charge(client);
  const bool drops = client.state == ClientState::kDropping;
  sums.fixed = client.takes_room() ? charge(client) : client.holds_lock() ? budget : stays;
  sums.moving = client.holds_lock() || client.place.kept ? 0 : moves;
  sums.fixed_released = drops || client.place.leaves ? stays : sums.fixed;
  sums.moving_released = drops || client.place.leaves ? moves : sums.moving;
  return sums;
}

Roles roles_of(const Client& client) {
  const bool settled = !client.holds_lock() || (client.state == ClientState::kRunning && client.budget.bytes >= need(client) &&
                                                !client.growth && !client.budget.dirty && client.drain.backoff.failures == 0);
  const bool idle = !client.holds_lock() && !client.waits() && client.totals.turns > 0;
  const bool evictable = !client.holds_lock() && movable_at_best(client) > 0;
  return {client.grant,
          client.waits(),
          !settled || client.evictions.current || client.evictions.backoff.failures > 0,
          evictable,
          client.waits() && client.unmet > 0,
          client.stays(),
          client.holds_lock() && client.turn.start.has_value(),
          client.waits() || (client.holds_lock() && !client.turn.pause.since),
          idle ? std::optional(client.past.last_used) : std::nullopt};
}

bool takes_slack(const Client& client) { return client.stays() && !client.budget.slack_declined; }

Bytes slack_of(const Client& client) { return client.budget.bytes - need(client); }

uint64_t hash_of(ClientId client) {  // splitmix64
  uint64_t hash = client + 0x9e3779b97f4a7c15U;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9U;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebU;
  return hash ^ (hash >> 31);
}

// What a client adds to them is another amount.
static void change(Sums& sums, const Sums& from, const Sums& to) {
  sums.overhead_told += to.overhead_told - from.overhead_told;
  sums.overhead_untold += to.overhead_untold - from.overhead_untold;
  sums.immovable += to.immovable - from.immovable;
  sums.needed += to.needed - from.needed;
  sums.held_needed += to.held_needed - from.held_needed;
  sums.charged += to.charged - from.charged;
  sums.committed += to.committed - from.committed;
  sums.evicting += to.evicting - from.evicting;
  sums.fixed += to.fixed - from.fixed;
  sums.moving += to.moving - from.moving;
  sums.fixed_released += to.fixed_released - from.fixed_released;
  sums.moving_released += to.moving_released - from.moving_released;
}

static void add_roles(Doing& does, const Roles& roles, int32_t sign) {
  does.waits += sign * roles.waits;
  does.holds += sign * (roles.grant != 0);
  does.stays += sign * roles.stays;
  does.works += sign * roles.works;
  does.works_on += sign * (roles.works && roles.stays);
  does.busy += sign * roles.busy;
}

static void count_in_tenancy(Gpu& gpu, Tenancy& tenancy, const Roles& former, const Roles& roles) {
  gpu.tenants_working -= tenancy.does.works > 0;
  Doing& does = tenancy.does;
  add_roles(does, former, -1);
  add_roles(does, roles, 1);
  gpu.tenants_working += does.works > 0;
  if (tenancy.account == nullptr || tenancy.account->does == does) return;
  tenancy.account->does = does;
  note_change(gpu.quota, *tenancy.account);
}

static void note_in_tenancy(Tenancy& tenancy, Client& client, bool waits) {
  std::vector<Client*>& waiting = tenancy.waiting;
  const auto at = std::lower_bound(waiting.begin(), waiting.end(), client.id, [](const Client* a, ClientId id) { return a->id < id; });
  if (waits) {
    waiting.insert(at, &client);
  } else {
    waiting.erase(at);
  }
}

// Limits look at these, but not at who could move memory out, or was here lately.
static bool limits_see(const Roles& former, const Roles& roles) {
  return former.grant != roles.grant || former.waits != roles.waits || former.unsettled != roles.unsettled || former.stays != roles.stays ||
         former.works != roles.works || former.busy != roles.busy;
}

static void set_roles(Gpu& gpu, Client& client, const Roles& roles) {
  if (client.indexed.roles == roles) return;
  if (limits_see(client.indexed.roles, roles)) limits_change(gpu);
  const Roles former = std::exchange(client.indexed.roles, roles);
  if (former.grant != roles.grant) {
    if (former.grant != 0) gpu.holders.erase(former.grant);
    if (roles.grant != 0) gpu.holders.emplace(roles.grant, &client);
    if (former.grant == 0) gpu.holders_hash += hash_of(client.id);
    if (roles.grant == 0) gpu.holders_hash -= hash_of(client.id);
  }
  if (former.lately != roles.lately) {
    if (former.lately) gpu.lately.erase({*former.lately, client.id});
    if (roles.lately) gpu.lately.insert({*roles.lately, client.id});
  }
  const auto move = [&](bool before, bool now, FlatMap<ClientId, Client*>& index) {
    if (before && !now) index.erase(client.id);
    if (!before && now) index.emplace(client.id, &client);
  };
  move(former.waits, roles.waits, gpu.waiting);
  if (former.waits != roles.waits) note_in_tenancy(*client.indexed.tenancy, client, roles.waits);
  if (roles.waits && !former.waits) forget_held_for(gpu, client);
  move(former.unsettled, roles.unsettled, gpu.unsettled);
  move(former.evictable, roles.evictable, gpu.lockless.evictable);
  move(former.unmet, roles.unmet, gpu.lockless.unmet);
  count_in_tenancy(gpu, *client.indexed.tenancy, former, roles);
}

// A key that is too low costs a look when slack is given; so only one that is too high is put right here.
static void note_slack(Gpu& gpu, Client& client, bool takes, Bytes slack) {
  if (takes ? client.indexed.slack_key && *client.indexed.slack_key <= slack : !client.indexed.slack_key) return;
  if (client.indexed.slack_key) gpu.slack_takers.erase({*client.indexed.slack_key, client.id});
  client.indexed.slack_key = takes ? std::optional(slack) : std::nullopt;
  if (takes) gpu.slack_takers.emplace({slack, client.id}, &client);
}

void find_slack_takers(Gpu& gpu, Bytes below, std::vector<Client*>& takers) {
  std::vector<Client*> grown;
  for (const auto& [key, client] : gpu.slack_takers) {
    if (key.first >= below) break;
    (slack_of(*client) < below ? takers : grown).push_back(client);
  }
  for (Client* client : grown) {
    note_slack(gpu, *client, false, 0);
    note_slack(gpu, *client, true, slack_of(*client));
  }
  std::sort(takers.begin(), takers.end(), [](const Client* a, const Client* b) { return a->grant < b->grant; });
}

static void count(Gpu& gpu, Client& client) {
  Sums& counted = client.indexed.counted;
  const Sums before = std::exchange(counted, counted_of(client));
  change(gpu.sums, before, counted);
  ++gpu.recounted.times;
  gpu.ceilings.due |= counted.immovable != before.immovable;
  gpu.recounted.needs_most = std::max(gpu.recounted.needs_most, counted.needed - counted.immovable);
}

void GangChanges::note(TenantId tenant, Spread& spread) {
  if (!std::exchange(spread.to_form, true)) to_form.emplace(tenant, &spread);
  if (!std::exchange(spread.to_list, true)) to_list.emplace(tenant, &spread);
  if (!std::exchange(spread.to_tell, true)) to_tell.emplace(tenant, &spread);
  if (spread.gang != nullptr) bring_back(*spread.gang);
}

void GangChanges::forget(TenantId tenant, Spread& spread) {
  for (auto* index : {&to_form, &to_list, &to_tell, &asking_back}) index->erase(tenant);
  spread.to_form = spread.to_list = spread.to_tell = false;
}

void note_member(Client& client) {
  if (Spread* const spread = client.indexed.spread; spread != nullptr && spread->changes != nullptr)
    spread->changes->note(client.tenant, *spread);
}

static void note_asking_back(Client& client) {
  const bool asks = client.indexed.place.kept && client.waits();
  if (asks == std::exchange(client.indexed.asks_back, asks)) return;
  Spread& spread = *client.indexed.spread;
  asks ? ++spread.asking_back : --spread.asking_back;
  if (spread.changes == nullptr) return;
  if (spread.asking_back == 1 && asks) spread.changes->asking_back.emplace(client.tenant, &spread);
  if (spread.asking_back == 0) spread.changes->asking_back.erase(client.tenant);
}

void recount(Gpu& gpu, Client& client) {
  count(gpu, client);
  if (gpu.touched.empty() || gpu.touched.back() != client.id) gpu.touched.push_back(client.id);
  set_roles(gpu, client, roles_of(client));
  note_slack(gpu, client, takes_slack(client), slack_of(client));
  note_waiting(gpu, client);
  note_asking_back(client);
  note_member(client);
}

void recount(Client& client) {
  if (client.indexed.home != nullptr) recount(*client.indexed.home, client);
}

void note_place(Client& client) {
  const GangPlace before = std::exchange(client.indexed.place, client.place);
  if (before == client.place) return;
  Gpu& gpu = *client.indexed.home;
  if (client.place.kept && !before.kept) gpu.lockless.keepers.emplace(client.id, &client);
  if (!client.place.kept && before.kept) gpu.lockless.keepers.erase(client.id);
  count(gpu, client);
  note_asking_back(client);
  note_member(client);
}

void uncount(Gpu& gpu, Client& client) {
  client.place = {};
  note_place(client);
  change(gpu.sums, std::exchange(client.indexed.counted, {}), {});
  ++gpu.recounted.times;
  forget_waiting(gpu, client);
  set_roles(gpu, client, {});
  note_slack(gpu, client, false, 0);
}

Sums sums_of(const Gpu& gpu) {
  Sums sums;
  for (const auto& [id, client] : gpu.clients) change(sums, {}, counted_of(client));
  return sums;
}

std::vector<Client*> in_place(const Gpu& gpu) {
  std::vector<Client*> clients;
  for (const auto& [grant, client] : gpu.holders) {
    if (client->takes_place()) clients.push_back(client);
  }
  for (const auto& [id, client] : gpu.lockless.keepers) {
    if (client->takes_place()) clients.push_back(client);
  }
  std::sort(clients.begin(), clients.end(), [](const Client* a, const Client* b) { return a->id < b->id; });
  return clients;
}

RoomCount::RoomCount(const State& state, const Gpu& gpu, const WhatIf& what_if, Instant now)
    : state_(state), gpu_(gpu), what_if_(what_if), now_(now), limit_(safe_limit(state.config, gpu)) {
  sum_up();
}

void RoomCount::sum_up() {
  const Sums& sums = gpu_.sums;
  sum_ = what_if_.dropping_released ? Part{sums.fixed_released, sums.moving_released} : Part{sums.fixed, sums.moving};
  if (!what_if_.departed_freed) sum_.fixed += departed_bytes(gpu_);
  // What the sums do not know, client by client.
  const auto leaves = [&](ClientId id) { return what_if_.leavers && what_if_.leavers->contains(id); };
  const auto correct = [&](const Client& client) {
    const Bytes fixed = what_if_.dropping_released ? client.indexed.counted.fixed_released : client.indexed.counted.fixed;
    const Bytes moving = what_if_.dropping_released ? client.indexed.counted.moving_released : client.indexed.counted.moving;
    const Part part = part_of(client, comes(client), leaves(client.id));
    sum_.fixed += part.fixed - fixed;
    sum_.moving += part.moving - moving;
  };
  const auto yields = [&](const Client& client) { return what_if_.lost_places_yield && client.place.lost; };
  if (what_if_.lost_places_yield) {
    for (const auto& [id, client] : gpu_.lockless.keepers) {
      if (yields(*client)) correct(*client);
    }
  }
  for (const auto& [id, client] : gpu_.unsettled) {
    if (!yields(*client) && (client->evictions.backoff.failures > 0 || comes(*client) || leaves(id))) correct(*client);
  }
  const auto correct_settled = [&](ClientId id) {
    const Client* const client = state_.find(id);
    const bool is_new = client != nullptr && client->gpu == gpu_.id && !client->indexed.roles.unsettled && !yields(*client);
    if (is_new) correct(*client);
  };
  for (const ClientId id : what_if_.comers) correct_settled(id);
  if (what_if_.leavers == nullptr) return;
  for (const ClientId id : *what_if_.leavers) {
    if (!std::binary_search(what_if_.comers.begin(), what_if_.comers.end(), id)) correct_settled(id);
  }
}

bool RoomCount::comes(const Client& client) const { return std::binary_search(what_if_.comers.begin(), what_if_.comers.end(), client.id); }

RoomCount::Part RoomCount::part_of(const Client& client, bool comes, bool leaves) const {
  const bool yields = (what_if_.lost_places_yield && client.place.lost) || (what_if_.dropping_released && client.place.leaves);
  const bool keeps_place = client.place.kept && !yields;
  if (comes || ((client.stays() || keeps_place) && !leaves)) return {charge(client), 0};
  if (client.holds_lock() && !leaves && !(what_if_.dropping_released && client.state == ClientState::kDropping))
    return {std::max(client.budget.bytes, client.memory.resident), 0};
  const Bytes can_move = what_if_.evictions_succeed ? movable_at_best(client) : movable(client, now_);
  return {held(client) - can_move, can_move};
}

void RoomCount::change(const Client& client, bool leaves) {
  if (state_.host && state_.host->kept > 0) changed_[client.id] = leaves;
  const bool is_comer = comes(client);
  const Part before = part_of(client, is_comer, !leaves), after = part_of(client, is_comer, leaves);
  sum_.fixed += after.fixed - before.fixed;
  sum_.moving += after.moving - before.moving;
}

void RoomCount::leaves(const Client& client) { change(client, true); }
void RoomCount::stays(const Client& client) { change(client, false); }

Bytes RoomCount::room_left() const { return limit_ - sum_.fixed; }

// Host memory, of which room_of() asks for a piece more than has to move out, has to suffice as well.
Bytes RoomCount::room_for_sure() const {
  const Bytes moves = evicting_bytes(gpu_) + std::max<Bytes>(std::min(host_room(state_), kHostMost) - kPieceMost, 0);
  return std::min(room_left(), limit_ - sum_.fixed - sum_.moving + moves);
}

Room RoomCount::room() const { return room_of(sum_, !what_if_.comers.empty(), {}); }

Room RoomCount::room_with(const Client& comer) const {
  const Client* const one = &comer;
  return room_with({&one, 1});
}

Room RoomCount::room_with(std::span<const Client* const> comers) const {
  Part sum = sum_;
  for (const Client* comer : comers) {
    const Part before = part_of(*comer, comes(*comer), leaves_now(*comer)), after = part_of(*comer, true, false);
    sum.fixed += after.fixed - before.fixed;
    sum.moving += after.moving - before.moving;
  }
  return room_of(sum, true, comers);
}

bool RoomCount::leaves_now(const Client& client) const {
  if (const auto at = changed_.find(client.id); at != changed_.end()) return at->second;
  return what_if_.leavers != nullptr && what_if_.leavers->contains(client.id);
}

// What of Part::moving does not move yet. Only those without the lock and those that leave can have some.
void RoomCount::add_movable(Movable& movable, std::span<const Client* const> comers) const {
  const auto add = [&](const Client& client) {
    const bool is_comer = comes(client) || std::find(comers.begin(), comers.end(), &client) != comers.end();
    const Bytes moving = part_of(client, is_comer, leaves_now(client)).moving - evicting_bytes(client);
    if (moving > 0) movable[client.tenant] += moving;
  };
  for (const auto& [id, client] : gpu_.lockless.evictable) add(*client);
  for (const auto& [grant, client] : gpu_.holders) add(*client);
}

Room RoomCount::room_of(const Part& sum, bool any_comers, std::span<const Client* const> comers) const {
  Room room;
  room.shortfall = std::max<Bytes>(sum.fixed + sum.moving - limit_, 0);
  const Bytes under_way = evicting_bytes(gpu_);
  // For somebody who comes the last piece has to fit as a whole: a movement that host memory has no room to end leaves two programs on the
  // GPU of which neither is whole. For those that run already it may be tried: pieces may be smaller, and growth has an end of its own.
  const Bytes whole = room.shortfall + (any_comers ? kPieceMost : 0);
  if (room.shortfall > under_way) room.host_needed = std::min(whole, std::max(room.shortfall, sum.moving)) - under_way;
  if (room.host_needed > 0) {
    gpu_.host.asked = true;
    room.host_room = host_room(state_);  // which looks at all GPUs, but not at all clients
    if (room.host_room < room.host_needed && state_.host->kept > 0) {
      Movable movable;
      add_movable(movable, comers);
      room.host_room = std::max(room.host_room, host_room(state_, movable));
    }
  }
  if (sum.fixed > limit_) {
    room.obstacle = Obstacle::kGpuMemory;
  } else if (room.host_needed > room.host_room) {
    room.obstacle = Obstacle::kHostMemory;
  }
  return room;
}

Room room_if(const State& state, const Gpu& gpu, const WhatIf& what_if, Instant now) { return RoomCount(state, gpu, what_if, now).room(); }

}  // namespace nvshare::policy
