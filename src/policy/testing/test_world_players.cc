// What the world's players do: their phases, loads, moves and releases.
#include <algorithm>
#include <limits>
#include <utility>

#include "policy/testing/test_world.h"

namespace nvshare::policy::testing {

void World::want_lock(Player& player) {
  if (std::exchange(player.requested, true)) return;
  send(player, LockRequested{player.id});
}

void World::advance(Player& player) {
  if (!player.alive || player.dropping || player.growing || player.phases.empty()) return;
  Phase& phase = player.phases.front();
  const bool ready = player.has_lock && player.loaded;
  switch (phase.kind) {
    case Phase::Kind::kRun:
      if (!player.run_wanted_at) {
        player.run_wanted_at = now_;
        player.run_length = phase.amount;
      }
      if (!player.has_lock) {
        want_lock(player);
      } else if (ready && !player.running_since) {
        player.running_since = now_;
        at(now_ + phase.amount, [this, id = player.id, activity = ++player.activity] {
          Player& runner = players_.at(id);
          if (!runner.alive || runner.activity != activity) return;
          pause(runner);
          runner.delays.push_back(now_ - *runner.run_wanted_at - runner.run_length);
          runner.run_wanted_at.reset();
          runner.phases.pop_front();
          advance(runner);
        });
      }
      return;
    case Phase::Kind::kMeet:
      if (!player.has_lock) {
        want_lock(player);
      } else if (ready && !player.meets && all_have_run(player.tenant)) {
        player.meets = true;
        ++player.meetings;
        gather(player.tenant);
      }
      return;
    case Phase::Kind::kIdle:
      if (player.idling) return;
      player.idling = true;
      player.idling_since = now_;
      at(now_ + phase.amount, [this, id = player.id] {
        Player& sleeper = players_.at(id);
        if (!sleeper.alive) return;
        sleeper.idling = false;
        sleeper.phases.pop_front();
        advance(sleeper);
      });
      if (player.has_lock && player.contention > 0) release_when_idle(player);
      return;
    case Phase::Kind::kGrow:
      if (player.has_lock && !ready) return;
      if (!player.has_lock && player.gang_runs) return want_lock(player);
      if (player.memory.allocated + phase.amount > player.ceiling) {
        ++player.refusals;
      } else if (player.has_lock && player.memory.allocated + phase.amount > player.budget) {
        player.growing = true;
        ++player.request;
        report_memory(player, phase.amount);
        return;
      } else {
        allocate(player, phase.amount);
      }
      player.phases.pop_front();
      return advance(player);
    case Phase::Kind::kShrink: {
      player.memory.allocated = std::max(player.memory.allocated - phase.amount, player.memory.unswappable);
      player.memory.resident = std::min(player.memory.resident, player.memory.allocated);
      player.host = std::min(player.host, player.memory.allocated - player.memory.resident);
      if (player.has_lock && player.contention > 0) player.budget = std::min(player.budget, player.memory.allocated);
      player.phases.pop_front();
      report_memory(player, 0);
      report_host();
      if (player.has_lock && player.memory.resident == player.memory.allocated) player.loaded = true;
      return advance(player);
    }
    case Phase::Kind::kExit:
      player.finished_at = now_;
      return kill(player.id, true);
  }
}

void World::allocate(Player& player, Bytes bytes) {
  player.memory.allocated += bytes;
  if (player.has_lock) player.memory.resident += bytes;
  report_memory(player, 0);
}

void World::report_memory(Player& player, Bytes wanted) {
  send(player, MemoryChanged{player.id, player.memory, player.budget, player.sequence, wanted, player.request});
}

void World::pause(Player& player) {
  if (!player.running_since) return;
  const Duration ran = now_ - *player.running_since;
  player.ran += ran;
  player.phases.front().amount -= ran;
  player.running_since.reset();
  ++player.activity;
}

void World::got_lock(Player& player, const SendLock& lock) {
  player.budgets_in_flight.erase(player.budgets_in_flight.find({lock.grant, lock.budget}));
  if (player.regrant) {
    player.grant = lock.grant;
    player.regrant = false;
  }
  if (player.has_lock && player.grant != lock.grant) return fail("a second grant reached a client with the lock");
  if (!player.has_lock) {
    if (lock.grant <= player.grant) return;  // a late budget of a grant that it has given back
    player.requested = false;
    player.has_lock = true;
    player.grant = lock.grant;
    player.loaded = false;
    player.contention = 0;
    ++player.grants;
    player.granted_at.push_back(now_);
  }
  player.budget = lock.budget;
  player.sequence = lock.budget_sequence;
  if (!player.dropping) load(player);
}

void World::load(Player& player) {
  if (player.loaded) return;
  if (player.memory.resident >= player.memory.allocated) {
    player.loaded = true;
    player.running_at.push_back(now_);
    if (player.running_at.size() == 1 && members_expected_.contains(player.tenant)) {
      for (auto& [id, member] : players_) {
        if (member.tenant == player.tenant && id != player.id) advance(member);
      }
    }
    return advance(player);
  }
  if (player.moving || player.memory.resident >= player.budget) return;
  player.moving = true;
  const Bytes bytes = std::min({chunk, player.memory.allocated - player.memory.resident, player.budget - player.memory.resident});
  const Duration takes = bytes / kMs * kSec / (bandwidth / kMs) + 1;
  at(now_ + takes, [this, id = player.id, grant = player.grant, bytes, takes] {
    Player& loader = players_.at(id);
    if (!loader.alive) return;
    loader.moving = false;
    if (!loader.has_lock || loader.dropping) return;
    if (loader.grant != grant) return load(loader);  // that grant's load waited for this chunk
    const Bytes in = std::min(bytes, loader.memory.allocated - loader.memory.resident);
    loader.memory.resident += in;
    const Bytes copied = std::min(in, loader.host);
    loader.host -= copied;
    const bool finished = loader.memory.resident == loader.memory.allocated;
    send(loader, SwapProgressed{id, false, finished, false, grant, copied, takes, loader.memory});
    if (copied > 0) report_host();
    load(loader);
  });
}

// A chunk at a time; the lock, and an end of the scheduler, end it before the next one.
void World::prefetch(Player& player, const SendPrefetch& asked) {
  const Bytes absent = std::min(player.host, player.memory.allocated - player.memory.resident);
  const Bytes bytes = std::min({chunk / 4, absent, asked.budget - player.memory.resident});
  if (bytes <= 0 || player.has_lock || player.prefetch_budget == 0) {
    player.prefetch_budget = 0;
    return send(player, SwapProgressed{player.id, false, true, player.has_lock, asked.prefetch, 0, 0, player.memory, 0, true});
  }
  player.moving = true;
  const Duration takes = bytes / kMs * kSec / (bandwidth / kMs) + 1;
  at(now_ + takes, [this, id = player.id, asked, bytes, epoch = epoch_] {
    Player& loader = players_.at(id);
    if (!loader.alive) return;
    loader.moving = false;
    if (epoch == epoch_) {
      const Bytes in = std::min({bytes, loader.host, loader.memory.allocated - loader.memory.resident});
      loader.memory.resident += in;
      loader.host -= in;
      report_host();
      prefetch(loader, asked);
    }
    if (loader.has_lock && !loader.dropping) load(loader);
  });
}

void World::move_out(Player& player, EvictionId id, Bytes bytes, Bytes moved, Instant began) {
  const Bytes can = player.memory.resident - player.memory.unswappable;
  const Bytes now_out = std::min({chunk, bytes - moved, can});
  const bool fails = (player.evictions_to_fail > 0 && moved * 2 >= bytes) || (host_total_ && host_free() < now_out);
  if (now_out <= 0 || fails) {
    if (fails && player.evictions_to_fail > 0) --player.evictions_to_fail;
    player.moving = false;
    send(player, SwapProgressed{player.id, true, true, fails, id, moved, now_ - began, player.memory});
    return;
  }
  player.host += now_out;  // room is taken before the copy
  const Duration takes = now_out / kMs * kSec / (bandwidth / kMs) + 1;
  at(now_ + takes, [this, client = player.id, id, bytes, moved, began, now_out] {
    Player& mover = players_.at(client);
    if (!mover.alive) return;
    const Bytes out = std::min(now_out, mover.memory.resident - mover.memory.unswappable);  // part may have been freed meanwhile
    mover.host -= now_out - out;
    mover.memory.resident -= out;
    send(mover, SwapProgressed{client, true, false, false, id, moved + out, now_ - began, mover.memory});
    report_host();
    move_out(mover, id, bytes, moved + now_out, began);
  });
}

void World::drop(Player& player, const SendDrop& asked) {
  player.drops += player.held ? 0 : 1;
  if (player.hangs) return;
  player.together = asked.together && player.loaded;  // a load is broken off, whatever others do
  player.attempt = asked.attempt;
  if (std::exchange(player.held, false) && !player.together) return release(player, false);
  ++player.drain_count;
  if (player.drains_to_fail > 0) {
    --player.drains_to_fail;
    at(now_ + 200 * kMs, [this, id = player.id, drain = player.drain_count, grant = player.grant] {
      Player& failer = players_.at(id);
      const bool still = failer.alive && failer.has_lock && failer.grant == grant && failer.drain_count == drain;
      if (still) send(failer, DrainFailed{id, grant});
    });
    return;
  }
  pause(player);
  player.dropping = true;
  if (player.meets) {
    player.drop_after_meeting = true;
    at(now_ + 200 * kMs, [this, id = player.id, drain = player.drain_count, grant = player.grant] {
      Player& waiter = players_.at(id);
      if (!waiter.alive || !waiter.drop_after_meeting || !waiter.has_lock || waiter.grant != grant) return;
      if (waiter.drain_count != drain) return;
      waiter.drop_after_meeting = waiter.dropping = false;
      send(waiter, DrainFailed{id, grant});
    });
    return;
  }
  release_after_drain(player);
}

bool World::all_have_run(TenantId tenant) const {
  const auto expected = members_expected_.find(tenant);
  if (expected == members_expected_.end()) return true;
  const auto ran = std::count_if(players_.begin(), players_.end(), [&](const auto& entry) {
    return entry.second.tenant == tenant && (!entry.second.alive || !entry.second.running_at.empty());
  });
  return static_cast<size_t>(ran) >= expected->second;
}

void World::gather(TenantId tenant) {
  uint64_t all = std::numeric_limits<uint64_t>::max();
  for (const auto& [id, player] : players_) {
    if (player.tenant == tenant && player.alive) all = std::min(all, player.meetings);
  }
  for (auto& [id, player] : players_) {
    if (player.tenant != tenant || !player.alive || !player.meets || player.meeting_ends || player.meetings > all) continue;
    player.meeting_ends = true;
    at(now_ + player.phases.front().amount, [this, id = id] {
      if (players_.at(id).alive) end_meeting(players_.at(id));
    });
  }
}

void World::end_meeting(Player& player) {
  player.meets = player.meeting_ends = false;
  player.phases.pop_front();
  if (player.drop_after_meeting) {
    player.drop_after_meeting = false;
    return release_after_drain(player);
  }
  advance(player);
}

void World::release_after_drain(Player& player) {
  if (!player.together && random_() % 4 == 0) {  // whether it was asked for that or not
    at(now_ + player.drain / 2, [this, id = player.id, grant = player.grant] {
      if (players_.at(id).alive) send(players_.at(id), EndsSoon{id, grant, players_.at(id).attempt});
    });
  }
  at(now_ + player.drain, [this, id = player.id, drain = player.drain_count, grant = player.grant] {
    Player& dropper = players_.at(id);
    if (!dropper.alive || !dropper.has_lock || dropper.grant != grant || dropper.drain_count != drain) return;
    if (!dropper.together) return release(dropper, false);
    dropper.held = true;
    send(dropper, Drained{id, grant, dropper.attempt});
  });
}

// Told to go on, in the middle of a drain or after it.
void World::keep(Player& player) {
  if (!player.together) return;
  ++player.drain_count;
  player.dropping = player.drop_after_meeting = player.held = false;
  advance(player);
}

static Duration patience_of(const Player& player) {
  return player.sits_out_cost ? std::max(player.idle_patience, player.swap_cost) : player.idle_patience;
}

void World::release(Player& player, bool early) {
  pause(player);
  player.has_lock = player.dropping = player.loaded = player.growing = player.held = false;
  player.contention = 0;
  send(player, LockReleased{player.id, player.grant, player.memory, early, early ? patience_of(player) : 0});
  advance(player);
}

void World::release_when_idle(Player& player) {
  const Instant due = player.idling_since + patience_of(player);
  if (due <= now_) return release(player, true);
  at(due, [this, id = player.id, activity = player.activity, grant = player.grant] {
    Player& idler = players_.at(id);
    const bool still = idler.alive && idler.idling && idler.activity == activity && idler.has_lock && idler.grant == grant;
    if (still && !idler.dropping && idler.contention > 0 && now_ >= idler.idling_since + patience_of(idler)) release(idler, true);
  });
}

}  // namespace nvshare::policy::testing
