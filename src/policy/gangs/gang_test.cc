// Gangs: tenants on several GPUs, on virtual time. First the cases that they are for, then random workloads (NVSHARE_TEST_SEED repeats
// one).
#include <gtest/gtest.h>

#include <cstdlib>

#include "policy/testing/test_world.h"
#include "repeats.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kGpu = 16 * kGiB;

Config turns_of(Duration time, bool gangs = true) {
  Config config;
  config.switch_time_mode = SwitchTimeMode::kFixed;
  config.switch_time_fixed = time;
  config.gang_turns = gangs;
  return config;
}

struct Gangs : ::testing::Test {
  explicit Gangs(const Config& config = turns_of(5 * kSec)) : world(config, 1) {
    for (GpuId gpu = 0; gpu < 3; ++gpu) world.add_gpu(gpu, kGpu);
  }
  // Trains: computes, then meets the others, again and again.
  Player& add_trainer(TenantId tenant, GpuId gpu, int rounds, Bytes bytes = 12 * kGiB, Duration compute = 200 * kMs) {
    std::deque<Phase> phases;
    for (int i = 0; i < rounds; ++i) {
      phases.push_back(run_for(compute));
      phases.push_back(meet_for(20 * kMs));
    }
    phases.push_back(leave_now());
    Player& player = world.add_player(gpu, std::move(phases), bytes);
    player.tenant = tenant;
    world.expect_members(tenant, ++members[tenant]);
    return player;
  }
  void run(Duration time) {
    world.run_until(world.now() + time);
    ASSERT_FALSE(world.broken()) << world.describe();
  }
  void run_to_the_end() {
    run(100'000 * kSec);
    ASSERT_TRUE(world.all_finished()) << world.describe();
  }
  ClientView look(const Player& player) const { return world.view_of(player.id); }
  bool holds(const Player& player) const {
    const ClientState state = look(player).state;
    return state == ClientState::kLoading || state == ClientState::kRunning || state == ClientState::kDropping;
  }

  World world;
  std::map<TenantId, size_t> members;
};

TEST_F(Gangs, TwoOnTheSameGpusAreSwitchedTogether) {
  Player* players[2][2];
  for (TenantId tenant = 0; tenant < 2; ++tenant) {
    for (GpuId gpu = 0; gpu < 2; ++gpu) players[tenant][gpu] = &add_trainer(100 + tenant, gpu, 300);
  }
  for (int i = 0; i < 1000; ++i) {
    run(100 * kMs);
    // Never each with one GPU.
    EXPECT_FALSE(holds(*players[0][0]) && holds(*players[1][1])) << world.describe();
    EXPECT_FALSE(holds(*players[0][1]) && holds(*players[1][0])) << world.describe();
  }
  run_to_the_end();
  for (auto& tenant : players) {
    for (Player* player : tenant) EXPECT_GE(player->grants, 5U);
  }
}

// What the same workload does without gangs: it stands still, each tenant with one GPU, waiting for the other's.
TEST(GangsSwitchedOff, TwoOnTheSameGpusStandStill) {
  int stood_still = 0;
  for (uint64_t seed = 1; seed <= repeats(20u, 4); ++seed) {
    World world(turns_of(5 * kSec, false), seed);
    world.expect_bounded = false;
    for (GpuId gpu = 0; gpu < 2; ++gpu) world.add_gpu(gpu, kGpu);
    for (TenantId tenant = 0; tenant < 2; ++tenant) {
      for (GpuId gpu = 0; gpu < 2; ++gpu) {
        // The second tenant comes to its GPUs in the other order.
        world.at(world.now() + static_cast<Duration>(gpu == tenant ? 0 : 50) * kMs, [&world, tenant, gpu] {
          std::deque<Phase> phases;
          for (int i = 0; i < 100; ++i) {
            phases.push_back(run_for(200 * kMs));
            phases.push_back(meet_for(20 * kMs));
          }
          phases.push_back(leave_now());
          world.add_player(gpu, std::move(phases), 12 * kGiB).tenant = 100 + tenant;
          world.expect_members(100 + tenant, 2);
        });
      }
    }
    world.run_until(world.now() + 2000 * kSec);
    stood_still += world.all_finished() ? 0 : 1;
  }
  EXPECT_GT(stood_still, 0);
}

TEST_F(Gangs, AJobOnOneGpuBesideThemHasItsTurns) {
  for (TenantId tenant = 0; tenant < 2; ++tenant) {
    for (GpuId gpu = 0; gpu < 2; ++gpu) add_trainer(100 + tenant, gpu, 400);
  }
  const Player& single = world.add_player(1, {run_for(60 * kSec), leave_now()}, 12 * kGiB);
  run_to_the_end();
  EXPECT_GE(single.grants, 3U);
  EXPECT_EQ(single.ran, 60 * kSec);
}

TEST_F(Gangs, AMemberThatDoesNotWaitHoldsNobodyUp) {
  Player& lone = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  lone.tenant = 100;
  Player& sleeper = world.add_player(1, {idle_for(500 * kSec), leave_now()}, 12 * kGiB);
  sleeper.tenant = 100;
  const Player& other = world.add_player(1, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  run(10 * kSec);
  EXPECT_EQ(look(lone).gang_gpus, 2U);
  EXPECT_TRUE(holds(lone));
  EXPECT_TRUE(holds(other));
  run_to_the_end();
}

TEST_F(Gangs, AMemberThatAsksLaterJoinsAndInterruptsANeighbour) {
  Player& first = add_trainer(100, 0, 100);
  const Player& neighbour = world.add_player(1, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(kSec);
  EXPECT_TRUE(holds(first));
  EXPECT_TRUE(holds(neighbour));
  Player& second = add_trainer(100, 1, 100);
  run(30 * kSec);
  EXPECT_GE(second.grants, 1U);
  run_to_the_end();
  EXPECT_EQ(neighbour.ran, 100 * kSec);
}

TEST_F(Gangs, AMemberThatWaitsSaysForWhat) {
  const Player& here = add_trainer(101, 1, 400);
  const Player& there = add_trainer(101, 2, 400);
  run(100 * kMs);
  add_trainer(100, 0, 400);
  add_trainer(100, 1, 400);
  for (int i = 0; i < 300 && look(there).state != ClientState::kWaiting; ++i) run(100 * kMs);
  run(2 * kSec);  // dropped together, and asked again
  EXPECT_EQ(look(here).state, ClientState::kWaiting);
  EXPECT_EQ(look(there).state, ClientState::kWaiting);
  EXPECT_NE(look(there).waiting_for.find("its gang: client " + std::to_string(here.id) + " on GPU 1 waits for a neighbour's turn"),
            std::string::npos)
      << look(there).waiting_for;
  run_to_the_end();
}

// GPU 2 is free for whoever is quick while the gang waits for GPU 1.
TEST_F(Gangs, AGpuDoesNotStandIdleWhileAGangWaitsForAnother) {
  const Player& long_one = world.add_player(1, {run_for(100 * kSec), leave_now()}, 12 * kGiB);
  run(100 * kMs);
  add_trainer(100, 1, 20);
  const Player& member = add_trainer(100, 2, 20);
  const Player& quick = world.add_player(2, {run_for(2 * kSec), leave_now()}, 2 * kGiB);
  run(3 * kSec);
  EXPECT_TRUE(holds(long_one));
  EXPECT_FALSE(holds(member));
  EXPECT_TRUE(quick.finished_at) << world.describe();
  run_to_the_end();
}

TEST_F(Gangs, ThoseWhoDoNotFitTogetherTakeTheirTurnsOneByOne) {
  for (int i = 0; i < 2; ++i) world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB).tenant = 100;
  const Player& alone = world.add_player(1, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  world.player(alone.id).tenant = 100;
  run(kSec);
  EXPECT_EQ(look(alone).gang_gpus, 0U);
  run_to_the_end();
}

TEST_F(Gangs, ThoseThatFitRunAtTheSameTime) {
  std::vector<const Player*> players;
  for (TenantId tenant = 0; tenant < 2; ++tenant) {
    for (GpuId gpu = 0; gpu < 2; ++gpu) players.push_back(&add_trainer(100 + tenant, gpu, 100, 4 * kGiB));
  }
  run_to_the_end();
  for (const Player* player : players) {
    EXPECT_EQ(player->drops, 0U);
    EXPECT_EQ(player->grants, 1U);
  }
}

// Each gang has a member that gives the lock up and then allocates what is not there beside the other gang: neither could drain while it
// waits. With the lock, where it can be refused, one of them is.
TEST_F(Gangs, MembersThatWereIdleAndGrowDoNotWaitForEachOther) {
  std::vector<Player*> players;
  for (TenantId tenant = 0; tenant < 2; ++tenant) {
    for (GpuId gpu = 0; gpu < 2; ++gpu) {
      std::deque<Phase> phases = {run_for(200 * kMs), meet_for(20 * kMs)};
      if (gpu == tenant) {
        phases.push_back(idle_for(20 * kSec));
        phases.push_back(grow_by(3 * kGiB));
      }
      for (int i = 0; i < 50; ++i) {
        phases.push_back(run_for(200 * kMs));
        phases.push_back(meet_for(20 * kMs));
      }
      phases.push_back(leave_now());
      players.push_back(&world.add_player(gpu, std::move(phases), 7 * kGiB));
      players.back()->tenant = 100 + tenant;
      world.expect_members(100 + tenant, 2);
    }
  }
  run(5 * kSec);
  for (GpuId gpu = 0; gpu < 2; ++gpu) world.add_player(gpu, {run_for(kSec), leave_now()}, 4 * kGiB);  // somebody waits: idle ones give up
  run_to_the_end();
}

// More than the 30 ms after which those that have drained go on for the others' sake.
TEST_F(Gangs, MembersWhoseOwnWorkTakesLongToEndLeaveAllTheSame) {
  std::vector<Player*> gang;
  for (GpuId gpu = 0; gpu < 2; ++gpu) {
    gang.push_back(&world.add_player(gpu, {run_for(1000 * kSec), leave_now()}, 12 * kGiB));
    gang.back()->tenant = 100;
    gang.back()->drain = gpu == 0 ? 40 * kMs : 95 * kMs;
  }
  run(20 * kSec);
  const Player& other = world.add_player(0, {run_for(kSec), leave_now()}, 12 * kGiB);
  run(120 * kSec);
  EXPECT_TRUE(other.finished_at) << world.describe();
}

TEST_F(Gangs, AMemberKilledInMidTurnFreesWhatItHad) {
  const Player& victim = add_trainer(100, 0, 1000);
  const Player& survivor = add_trainer(100, 1, 1000);
  run(15 * kSec);
  const Player& other = world.add_player(0, {run_for(20 * kSec), leave_now()}, 12 * kGiB);
  EXPECT_TRUE(holds(victim));
  world.kill(victim.id, true);
  run(kSec);
  EXPECT_TRUE(holds(other)) << world.describe();
  EXPECT_TRUE(holds(survivor));
  run_to_the_end();
}

TEST_F(Gangs, AfterARestartBothHalvesKeepTheirTurn) {
  const Player& here = add_trainer(100, 0, 200);
  const Player& there = add_trainer(100, 1, 200);
  run(15 * kSec);
  add_trainer(101, 0, 200);
  add_trainer(101, 1, 200);
  ASSERT_TRUE(holds(here) && holds(there));
  world.restart_policy();
  EXPECT_TRUE(holds(here) && holds(there));
  run_to_the_end();
}

// ---- random workloads ----

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

struct Traits {
  bool singles = true;
  bool failures = false;
  bool deaths = false;
  bool restarts = false;
  bool gangs = true;
};

class Workload {
 public:
  Workload(uint64_t seed, Traits traits) : random_(seed), traits_(traits), world_(config(), seed) {
    world_.latency_max = chance(20) ? 0 : between(1, 20) * kMs / 10;
    world_.bandwidth = between(1, 50) * kGiB;
    world_.expect_bounded = !traits_.failures && traits_.gangs;
    const auto gpus = static_cast<GpuId>(between(2, 4));
    for (GpuId gpu = 0; gpu < gpus; ++gpu) world_.add_gpu(gpu, kGpu);
    for (int64_t i = between(1, 3); i > 0; --i) add_gang(static_cast<TenantId>(1000 + i), gpus);
    for (int64_t i = traits_.singles ? between(0, 4) : 0; i > 0; --i) {
      world_.at(world_.now() + between(0, 100) * kSec, [this, gpus] { add_single(static_cast<GpuId>(random_() % gpus)); });
    }
    for (int i = 0; traits_.restarts && i < 3; ++i) {
      world_.at(world_.now() + between(0, 300'000) * kMs, [this] { world_.restart_policy(); });
    }
  }
  World& world() { return world_; }
  void run() { world_.run_until(world_.now() + 20'000 * kSec); }

 private:
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(int percent) { return between(1, 100) <= percent; }

  Config config() {
    Config config = turns_of(between(1, 30) * kSec, traits_.gangs);
    if (chance(40)) config.switch_time_mode = SwitchTimeMode::kAuto;
    config.switch_time_multiplier = between(1, 10);
    return config;
  }

  void add_gang(TenantId tenant, GpuId gpus) {
    std::set<GpuId> on;
    while (on.size() < 2) on.insert(static_cast<GpuId>(random_() % gpus));
    for (GpuId gpu = 0; gpu < gpus; ++gpu) {
      if (chance(30)) on.insert(gpu);
    }
    const int64_t rounds = between(1, 60);
    if (chance(20)) world_.at(world_.now() + between(0, 200) * kSec, [this, tenant] { world_.announce_end(tenant); });
    if (chance(10)) {
      const Instant from = world_.now() + between(0, 200) * kSec;
      world_.at(from, [this, tenant] { world_.suspend_tenant(tenant, true); });
      world_.at(from + between(0, 100'000) * kMs, [this, tenant] { world_.suspend_tenant(tenant, false); });
    }
    if (chance(20)) {
      world_.at(world_.now() + between(0, 200) * kSec,
                [this, tenant, to = static_cast<int>(between(-2, 2))] { world_.set_priority(tenant, to); });
    }
    const Instant start = world_.now() + between(0, 60'000) * kMs;
    const int priority = chance(20) ? static_cast<int>(between(-2, 2)) : 0;
    const bool idles = chance(60);
    const bool grows = chance(60);
    size_t count = 0;
    for (const GpuId gpu : on) {
      Bytes left = 11 * kGiB;  // that the members on this GPU may have in all, so that they fit together
      for (int64_t i = chance(20) ? 2 : 1; i > 0; --i) {
        const Bytes bytes = std::min(left, between(1, i == 1 ? 10 : 5) * kGiB);
        left -= bytes;
        std::deque<Phase> phases;
        for (int64_t round = 0; round < rounds; ++round) {
          if (chance(80)) phases.push_back(run_for(between(1, 2000) * kMs));
          if (idles && chance(10)) phases.push_back(idle_for(between(1, 5000) * kMs));
          if (grows && chance(10) && left > kGiB) {
            const Bytes more = between(1, 8) * kGiB / 8;
            left -= more;
            phases.push_back(grow_by(more));
          }
          phases.push_back(meet_for(between(1, 100) * kMs));
        }
        phases.push_back(leave_now());
        world_.expect_members(tenant, ++count);
        const Instant joins = start + (chance(30) ? between(0, 30'000) : between(0, 500)) * kMs;
        world_.at(joins, [this, tenant, gpu, phases, bytes, priority] {
          if (ended_.contains(tenant)) return;
          Player& player = world_.add_player(gpu, phases, bytes, priority);
          player.tenant = tenant;
          player.drain = between(1, 100) * kMs;
          members_[tenant].push_back(player.id);
        });
      }
    }
    if (traits_.deaths && chance(50)) {  // one dies; the launcher ends the others a little later
      world_.at(start + between(0, 200'000) * kMs, [this, tenant] {
        const std::vector<ClientId> members = members_[tenant];
        if (members.empty()) return;
        ended_.insert(tenant);
        const size_t first = random_() % members.size();
        for (size_t i = 0; i < members.size(); ++i) {
          const Duration later = i == first ? 0 : between(0, 5000) * kMs;
          world_.at(world_.now() + later, [this, id = members[i], freed = chance(50)] { world_.kill(id, freed); });
        }
      });
    }
  }

  void add_single(GpuId gpu) {
    const Bytes allocated = between(0, 11) * kGiB;
    std::deque<Phase> phases;
    for (int64_t i = between(1, 10); i > 0; --i) {
      phases.push_back(run_for(between(10, 20'000) * kMs));
      if (chance(40)) phases.push_back(idle_for(between(1, 10'000) * kMs));
    }
    phases.push_back(leave_now());
    Player& player = world_.add_player(gpu, std::move(phases), allocated, chance(20) ? static_cast<int>(between(-2, 2)) : 0);
    player.drain = between(1, 200) * kMs;
    if (traits_.failures && chance(40)) player.drains_to_fail = static_cast<int>(between(1, 12));
    if (traits_.failures && chance(40)) player.evictions_to_fail = static_cast<int>(between(1, 4));
    if (traits_.deaths && chance(30)) {
      world_.at(world_.now() + between(0, 200'000) * kMs, [this, id = player.id, freed = chance(50)] { world_.kill(id, freed); });
    }
  }

  std::mt19937_64 random_;
  Traits traits_;
  World world_;
  std::map<TenantId, std::vector<ClientId>> members_;
  std::set<TenantId> ended_;  // nobody joins them any more
};

constexpr int64_t kRuns = repeats(200, 12);

void hold(uint64_t base, Traits traits) {
  const int64_t only = from_environment("NVSHARE_TEST_SEED", -1);
  const int64_t runs = only >= 0 ? 1 : kRuns * from_environment("NVSHARE_TEST_SCALE", 1);
  for (int64_t i = 0; i < runs; ++i) {
    const uint64_t seed = only >= 0 ? static_cast<uint64_t>(only) : base + static_cast<uint64_t>(i);
    Workload workload(seed, traits);
    workload.run();
    ASSERT_FALSE(workload.world().broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << workload.world().describe();
    ASSERT_TRUE(workload.world().all_finished()) << "NVSHARE_TEST_SEED=" << seed << "\n" << workload.world().describe();
  }
}

// In each of these: no deadlock (everybody comes to the end), a gang gets all or none, the bound on waiting holds, no safe limit is passed.
TEST(GangProperties, HoldForGangsAlone) { hold(1'000'000, {.singles = false}); }
TEST(GangProperties, HoldWithProgramsOnOneGpuBesideThem) { hold(2'000'000, {}); }
TEST(GangProperties, HoldWhenMembersDieAtAnyMoment) { hold(3'000'000, {.deaths = true}); }
TEST(GangProperties, HoldWhenDrainsAndEvictionsFail) { hold(4'000'000, {.failures = true, .deaths = true}); }
TEST(GangProperties, HoldWhenTheSchedulerRestarts) { hold(5'000'000, {.deaths = true, .restarts = true}); }

TEST(GangProperties, TheSameSeedGivesTheSameDecisions) {
  for (uint64_t seed = 0; seed < repeats(20u, 4); ++seed) {
    const Traits traits{.failures = true, .deaths = true, .restarts = true};
    Workload first(seed, traits), second(seed, traits);
    first.run();
    second.run();
    ASSERT_EQ(first.world().trace(), second.world().trace()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
