#include "policy/testing/test_world.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "policy/overloaded.h"
#include "policy/state.h"

namespace nvshare::policy::testing {
namespace {

std::string text_of(const Action& action) {
  std::ostringstream out;
  std::visit(Overloaded{
                 [&](const SendLock& a) {
                   out << "lock " << a.client << " grant " << a.grant << " budget " << a.budget << " #" << a.budget_sequence;
                 },
                 [&](const SendDrop& a) {
                   out << "drop " << a.client << " grant " << a.grant << (a.together ? " together #" + std::to_string(a.attempt) : "");
                 },
                 [&](const SendKeep& a) { out << "keep " << a.client << " grant " << a.grant; },
                 [&](const SendEvict& a) { out << "evict " << a.client << " " << a.bytes; },
                 [&](const SendPrefetch& a) { out << "prefetch " << a.client << " to " << a.budget; },
                 [&](const SendWait& a) { out << "wait " << a.client << " request " << a.request; },
                 [&](const SendMemory& a) {
                   out << "memory " << a.client << " request " << a.request << (a.granted ? " granted " : " refused ") << a.budget;
                 },
                 [&](const SendContention& a) {
                   out << "contention " << a.client << " " << a.waiters << "/" << a.memory_waiters << " cost " << a.swap_cost / kMs << " ms"
                       << (a.limited ? " limited" : "") << (a.gang_runs ? " gang runs" : "") << " idle " << a.idle_release << " pause "
                       << a.pause;
                 },
                 [&](const SendAskProgress& a) { out << "progress " << a.client << " " << a.question << " " << a.counts; },
                 [&](const SendCeiling& a) { out << "ceiling " << a.client << " " << a.ceiling; },
                 [&](const Note& a) { out << "note " << a.client << " " << a.text; },
             },
             action);
  return out.str();
}

ClientId client_of(const Action& action) {
  return std::visit([](const auto& a) { return a.client; }, action);
}

}  // namespace

World::World(const Config& config, uint64_t seed) : config_(config), state_(make_state(config)), ledger_(config), random_(seed) {}

void World::add_gpu(GpuId gpu, Bytes total) {
  gpus_[gpu] = total;
  feed(GpuAppeared{gpu, total});
}

void World::set_host(Bytes total) {
  host_total_ = total;
  report_host();
}

void World::set_foreign(GpuId gpu, Bytes bytes) {
  foreign_[gpu] = bytes;
  feed(ForeignMemory{gpu, bytes});
}

void World::fidget(ClientId id) {
  Player& player = players_.at(id);
  if (!player.alive || !player.joined || player.has_lock || player.growing) return;
  const Bytes empty = player.memory.allocated - player.memory.resident - player.host;
  if (player.fidgets > empty) return;  // by now it has data there
  const Bytes more = player.fidgets > 0 ? -player.fidgets : 1LL << (20 + random_() % 3);
  player.fidgets += more;
  player.memory.allocated += more;
  report_memory(player, 0);
}

void World::set_priority(TenantId tenant, int priority) {
  for (auto& [id, player] : players_) {
    if (player.tenant == tenant) player.priority = priority;
  }
  feed(TenantPriority{tenant, priority});
}

void World::suspend_tenant(TenantId tenant, bool suspended) {
  if (suspended) {
    suspended_.insert(tenant);
  } else {
    suspended_.erase(tenant);
  }
  feed(TenantSuspended{tenant, suspended});
}

Player& World::add_player(GpuId gpu, std::deque<Phase> phases, Bytes allocated, int priority) {
  const ClientId id = next_client_++;
  Player& player = players_[id];
  player.id = id;
  player.gpu = gpu;
  player.tenant = id;
  player.priority = priority;
  player.phases = std::move(phases);
  player.memory.allocated = allocated;
  player.ceiling = std::numeric_limits<Bytes>::max();
  at(now_, [this, id] {
    Player& joiner = players_.at(id);
    if (!joiner.alive) return;
    joiner.joined = true;
    feed(joined(joiner));
    if (joiner.measured) feed(ClientShares{id, 0, true});
    advance(joiner);
  });
  return player;
}

ClientJoined World::joined(const Player& player) {
  ClientJoined event{player.id, player.gpu, player.tenant, player.priority, player.memory, player.swappable, player.has_lock, false};
  event.prefetches = player.prefetches;
  return event;
}

void World::kill(ClientId id, bool freed_at_once) {
  Player& player = players_.at(id);
  if (!player.alive) return;
  pause(player);
  player.alive = false;
  ++player.activity;
  const Bytes left = player.memory.resident;
  player.memory = {};
  player.host = 0;
  player.has_lock = player.requested = false;
  player.budgets_in_flight.clear();
  if (!freed_at_once) {
    not_freed_[id] = {player.gpu, left};
    at(now_ + static_cast<Duration>(random_() % 1000) * kMs, [this, id] {
      not_freed_.erase(id);
      feed(ClientMemoryFreed{id});
    });
  }
  gather(player.tenant);
  if (members_expected_.contains(player.tenant)) {
    for (auto& [other, member] : players_) {
      if (member.tenant == player.tenant) advance(member);
    }
  }
  feed(ClientLeft{id, freed_at_once});
  if (gpu_view(player.gpu).clients.size() !=
          static_cast<size_t>(std::count_if(players_.begin(), players_.end(),
                                            [&](const auto& entry) { return entry.second.alive && entry.second.gpu == player.gpu; })) &&
      queue_.empty()) {
    fail("a dead client is still counted");
  }
  report_host();
}

void World::restart_policy() {
  if (!not_freed_.empty()) {  // a new scheduler would see that as foreign memory; here it comes a little later instead
    return at(now_ + kSec, [this] { restart_policy(); });
  }
  ++epoch_;
  restarting_ = true;  // until all are back, the policy cannot know what they have
  early_ends_ += state_->early_ends.count;
  state_ = make_state(config_);
  if (twin_) compare_with_whole_steps();
  ledger_ = Ledger(config_);
  waits_.clear();
  stands_still_.clear();
  for (const auto& [gpu, total] : gpus_) feed(GpuAppeared{gpu, total});
  for (const auto& [gpu, bytes] : foreign_) feed(ForeignMemory{gpu, bytes});
  if (host_total_) feed(HostMemory{host_free()});
  for (const TenantId tenant : suspended_) feed(TenantSuspended{tenant, true});
  // The daemon passes on lock requests only when all are back.
  for (auto& [id, player] : players_) {
    if (!player.alive || !player.joined) continue;
    player.budgets_in_flight.clear();
    if (player.meets) {
      player.dropping = player.drop_after_meeting = false;  // that drain is given up
    } else if (player.dropping || !player.loaded) {         // settles that first
      player.has_lock = player.dropping = player.loaded = player.growing = false;
      ++player.activity;
    }
    player.regrant = player.has_lock;
    player.growing = player.requested = player.gang_runs = false;
    player.prefetch_budget = 0;              // it stops, and tells what it has
    player.budget = player.memory.resident;  // until it hears of a new one
    player.grant = player.granted_last = 0;
    player.sequence = 0;
    feed(joined(player));
    if (player.measured) feed(ClientShares{id, 0, true});
  }
  restarting_ = false;
  for (auto& [id, player] : players_) {
    if (player.alive && player.joined) advance(player);
  }
}

void World::at(Instant when, std::function<void()> what) { queue_[{std::max(when, now_), next_order_++}] = std::move(what); }

void World::run_until(Instant when) {
  while (!broken_) {
    const std::optional<Instant> deadline = next_deadline(*state_);
    const Instant next_event = queue_.empty() ? std::numeric_limits<Instant>::max() : queue_.begin()->first.first;
    if (deadline && *deadline <= next_event) {
      if (*deadline > when) break;
      if (*deadline < now_) return fail("a deadline in the past");
      now_ = *deadline;
      feed(Tick{});
      if (const auto next = next_deadline(*state_); next && *next <= now_) return fail("a deadline in the past after its tick");
      continue;
    }
    if (next_event > when) break;
    now_ = next_event;
    const auto what = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    what();
  }
  if (!broken_) now_ = when;
}

void World::feed(const Event& event) {
  if (broken_) return;
  ++steps_;
  ledger_.saw(event);
  const std::map<ClientId, ClientState> before = states();
  Actions actions = step(*state_, event, now_);
  if (twin_) compare(event, actions);
  if (tamper_) tamper_(actions);
  for (const Action& action : actions) {
    history_.push_back(std::to_string((now_ - 1000 * kSec) / kMs) + " ms: " + text_of(action));
    if (history_.size() > 60) history_.pop_front();
    for (const char c : history_.back()) trace_ = (trace_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  if (const auto wrong = ledger_.returned(actions)) fail(*wrong);
  if (const auto wrong = check_invariants(*state_)) fail(*wrong);
  check_glimpses();
  bool raised = false;
  for (const Action& action : actions) {
    raised |= std::holds_alternative<SendLock>(action) || std::holds_alternative<SendPrefetch>(action) ||
              std::holds_alternative<SendMemory>(action);
    deliver(action);
  }
  if (raised && !restarting_) check_promises();
  check_gangs(before);
  check_waits();
  check_progress();
}

void World::compare_with_whole_steps() {
  twin_ = make_state(config_);
  twin_->early_ends.allowed = false;
}

uint64_t World::early_ends() const { return early_ends_ + state_->early_ends.count; }

void World::compare(const Event& event, const Actions& actions) {
  const auto texts = [](const Actions& all) {
    std::string text;
    for (const Action& action : all) text += text_of(action) + "; ";
    return text;
  };
  const std::string whole = texts(step(*twin_, event, now_)), here = texts(actions);
  if (here != whole) return fail("a step that may end early said \"" + here + "\", a whole one \"" + whole + "\"");
  const std::optional<Instant> deadline = next_deadline(*state_), due = next_deadline(*twin_);
  if (due && (!deadline || *deadline > *due)) fail("after steps that ended early something is looked at too late");
}

void World::deliver(const Action& action) {
  if (std::holds_alternative<Note>(action)) return;
  const auto found = players_.find(client_of(action));
  if (found == players_.end() || !found->second.alive) return;
  Player& player = found->second;
  // The first word, where it is what a player takes for granted.
  if (const auto* word = std::get_if<SendContention>(&action); word != nullptr && !std::exchange(player.told, true)) {
    const bool is_news = word->waiters > 0 || word->limited || word->idle_release > 0 || word->gang_runs || word->pause > 0 || word->held;
    if (!is_news) return;
  }
  if (const auto* lock = std::get_if<SendLock>(&action)) {
    player.granted_last = lock->grant;
    player.budgets_in_flight.emplace(lock->grant, lock->budget);
  }
  if (const auto* prefetch = std::get_if<SendPrefetch>(&action)) player.prefetch_budget = prefetch->budget;
  const GrantId grant = player.granted_last;
  if (const auto* memory = std::get_if<SendMemory>(&action)) player.budgets_in_flight.emplace(grant, memory->budget);
  const Duration latency = latency_max > 0 ? static_cast<Duration>(random_() % static_cast<uint64_t>(latency_max)) : 0;
  player.last_from_policy = std::max(player.last_from_policy, now_ + latency);
  at(player.last_from_policy, [this, id = player.id, action, grant, epoch = epoch_] {
    Player& to = players_.at(id);
    if (!to.alive || epoch != epoch_) return;
    std::visit(Overloaded{
                   [&](const SendLock& a) { got_lock(to, a); },
                   [&](const SendDrop& a) {
                     if (to.has_lock && to.grant == a.grant) drop(to, a);
                   },
                   [&](const SendKeep& a) {
                     if (to.has_lock && to.grant == a.grant) keep(to);
                   },
                   [&](const SendEvict& a) {
                     if (to.has_lock) return fail("an eviction reached a client with the lock");
                     if (to.prefetch_budget > 0) return fail("an eviction reached a client whose memory comes in");
                     to.moving = true;
                     move_out(to, a.eviction, a.bytes, 0, now_);
                   },
                   [&](const SendPrefetch& a) { prefetch(to, a); },
                   [&](const SendWait&) {},
                   [&](const SendMemory& a) {
                     to.budgets_in_flight.erase(to.budgets_in_flight.find({grant, a.budget}));
                     if (to.has_lock && to.grant == grant) {
                       to.budget = a.budget;
                       to.sequence = a.budget_sequence;
                     }
                     if (!to.growing || a.request != to.request || !to.has_lock) return;
                     to.growing = false;
                     if (a.granted) {
                       allocate(to, to.phases.front().amount);
                     } else {
                       ++to.refusals;
                     }
                     to.phases.pop_front();
                     advance(to);
                   },
                   [&](const SendContention& a) {
                     if (to.contention == 0) to.idling_since = now_;  // pauses are looked at from now on
                     to.contention = a.waiters;
                     to.swap_cost = a.swap_cost;
                     if (std::exchange(to.gang_runs, a.gang_runs) && !a.gang_runs && !to.has_lock) return advance(to);
                     if (!to.has_lock || to.dropping) return;
                     if (to.idling && to.contention > 0 && !to.meets) {
                       release_when_idle(to);
                     } else if (to.contention > 0 && to.loaded && to.budget > to.memory.allocated && !to.growing) {
                       to.budget = to.memory.allocated;
                       report_memory(to, 0);
                     }
                   },
                   [&](const SendAskProgress& a) {
                     if (random_() % 8 != 0) send(to, ClientProgressed{to.id, a.question, random_() % 1'000'000});
                   },
                   [&](const SendCeiling& a) { to.ceiling = a.ceiling; },
                   [&](const Note&) {},
               },
               action);
  });
}

void World::send(Player& player, Event event) {
  const Duration latency = latency_max > 0 ? static_cast<Duration>(random_() % static_cast<uint64_t>(latency_max)) : 0;
  player.last_to_policy = std::max(player.last_to_policy, now_ + latency);
  at(player.last_to_policy, [this, id = player.id, event = std::move(event), epoch = epoch_] {
    if (epoch != epoch_) return;
    if (players_.at(id).alive || std::holds_alternative<ClientLeft>(event)) feed(event);
  });
}

void World::report_host() {
  if (!host_total_) return;
  feed(HostMemory{host_free()});
  // The report may overtake messages about moves that it already counts; like the daemon's, it comes again.
  if (host_report_due_) return;
  host_report_due_ = true;
  at(now_ + kSec, [this] {
    host_report_due_ = false;
    feed(HostMemory{host_free()});
  });
}

Bytes World::host_free() const {
  Bytes free = *host_total_;
  for (const auto& [id, player] : players_) free -= player.host;
  return free;
}

Bytes World::resident(GpuId gpu) const {
  Bytes sum = 0;
  for (const auto& [id, player] : players_) sum += player.gpu == gpu ? player.memory.resident : 0;
  for (const auto& [id, left] : not_freed_) sum += left.first == gpu ? left.second : 0;
  return sum;
}

}  // namespace nvshare::policy::testing
