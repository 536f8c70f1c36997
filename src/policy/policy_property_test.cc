// Random workloads on virtual time. Every run starts from a seed, which a failure prints; NVSHARE_TEST_SEED repeats that one alone,
// NVSHARE_TEST_SCALE (default 1) multiplies the number of runs.
#include <gtest/gtest.h>

#include <cstdlib>

#include "policy/testing/test_world.h"
#include "repeats.h"

namespace nvshare::policy::testing {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

// What a workload may contain. Each run also switches some of it off at random, so that the rest meets in other ways.
struct Traits {
  bool host_short = false;
  bool unswappable = false;
  bool failures = false;  // drains and evictions that fail, clients that hang
  bool deaths = false;
  bool foreign = false;
  bool restarts = false;  // of the scheduler
  bool measured = false;  // some share as measured
  // These are switched off by no run.
  bool all_measured = false;
  bool compared = false;  // with whole steps; and up to forty clients, which say much of their memory while they wait
};

class Workload {
 public:
  Workload(uint64_t seed, Traits traits) : random_(seed), traits_(traits), world_(config(), seed) {
    for (bool* trait : {&traits_.host_short, &traits_.unswappable, &traits_.failures, &traits_.deaths, &traits_.foreign, &traits_.restarts,
                        &traits_.measured})
      *trait = *trait && chance(75);
    world_.latency_max = chance(20) ? 0 : between(1, 20) * kMs / 10;
    world_.bandwidth = between(1, 50) * kGiB;
    world_.expect_bounded = !traits_.host_short && !traits_.unswappable && !traits_.failures && !traits_.foreign && !traits_.measured;
    const GpuId gpus = chance(70) ? 1 : 2;
    if (traits_.compared) world_.compare_with_whole_steps();
    if (traits_.compared && chance(50)) clients_most_ = 40;
    gpu_bytes_ += (clients_most_ - 8) * (300LL << 20);
    for (GpuId gpu = 0; gpu < gpus; ++gpu) world_.add_gpu(gpu, gpu_bytes_);
    if (traits_.host_short) world_.set_host(between(0, 24) * kGiB);
    const int64_t clients = between(1, clients_most_);
    for (int64_t i = 0; i < clients; ++i) {
      world_.at(world_.now() + between(0, 200) * kSec, [this, gpus] { add(static_cast<GpuId>(random_() % gpus)); });
    }
    for (int i = 0; traits_.restarts && i < 4; ++i) {
      world_.at(world_.now() + between(0, 600'000) * kMs, [this] { world_.restart_policy(); });
    }
    // Tenants are numbered as their clients are.
    for (int64_t i = between(0, 6); i > 0; --i) {
      world_.at(world_.now() + between(0, 600) * kSec,
                [this, tenant = static_cast<TenantId>(between(1, 8)), priority = static_cast<int>(between(-3, 3))] {
                  world_.set_priority(tenant, priority);
                });
    }
    for (int64_t i = between(0, 4); i > 0; --i) {
      world_.at(world_.now() + between(0, 600) * kSec,
                [this, tenant = static_cast<TenantId>(between(1, 8)), ends = chance(80)] { world_.announce_end(tenant, ends); });
    }
    // Each pause ends.
    for (int64_t i = chance(30) ? between(1, 4) : 0; i > 0; --i) {
      const auto tenant = static_cast<TenantId>(between(1, 8));
      const Instant from = world_.now() + between(0, 600) * kSec;
      world_.at(from, [this, tenant] { world_.suspend_tenant(tenant, true); });
      world_.at(from + between(0, 200'000) * kMs, [this, tenant] { world_.suspend_tenant(tenant, false); });
    }
    if (traits_.foreign) {
      for (int i = 0; i < 6; ++i) {
        world_.at(world_.now() + between(0, 1000) * kSec, [this] { world_.set_foreign(0, chance(40) ? 0 : between(0, 6) * kGiB); });
      }
    }
  }

  World& world() { return world_; }
  void run(Duration time = 20'000 * kSec) { world_.run_until(world_.now() + time); }

 private:
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(int percent) { return between(1, 100) <= percent; }

  Config config() {
    Config config;
    if (chance(40)) {
      config.switch_time_mode = SwitchTimeMode::kFixed;
      config.switch_time_fixed = between(1, 60) * kSec;
    }
    config.switch_time_multiplier = between(1, 10);
    config.prefetch = chance(60) && !traits_.compared;  // with it no step ends early
    return config;
  }

  Bytes size() {
    switch (between(0, 3)) {
      case 0:
        return between(0, 64) * (16 << 20);
      case 1:
        return between(1, 4) * kGiB;
      case 2:
        return between(4, 8) * kGiB;
      default:
        return between(8, 11) * kGiB;
    }
  }

  // What it allocates in all fits beside the contexts of the others, so that everybody can be served in the end; in some workloads not.
  std::deque<Phase> script(Bytes allocated) {
    std::deque<Phase> phases;
    const bool interactive = chance(30);
    Bytes left = world_.expect_bounded || chance(80) ? 13 * kGiB - allocated : 100 * kGiB;
    for (int64_t i = between(1, 12); i > 0; --i) {
      phases.push_back(run_for(interactive ? between(10, 3000) * kMs : between(1, 100) * kSec));
      if (interactive || chance(30)) phases.push_back(idle_for(between(1, interactive ? 60'000 : 2000) * kMs));
      if (chance(30)) {
        const Bytes bytes = std::min(left, chance(50) ? between(1, 256) * (1 << 20) : size() / 2);
        phases.push_back(grow_by(bytes));
        left -= bytes;
      }
      if (chance(20)) phases.push_back(shrink_by(between(0, 2) * kGiB));
    }
    phases.push_back(leave_now());
    return phases;
  }

  void add(GpuId gpu) {
    const Bytes allocated = size();
    Player& player = world_.add_player(gpu, script(allocated), allocated, chance(20) ? static_cast<int>(between(-2, 2)) : 0);
    player.drain = between(1, 200) * kMs;
    player.prefetches = chance(80);
    if (traits_.unswappable && chance(40)) player.memory.unswappable = std::min<Bytes>(player.memory.allocated, between(0, 2) * kGiB);
    if (traits_.failures && chance(30)) player.drains_to_fail = static_cast<int>(between(1, 12));
    if (traits_.failures && chance(30)) player.evictions_to_fail = static_cast<int>(between(1, 4));
    if (traits_.failures && chance(5)) player.hangs = true;
    player.measured = traits_.measured && (chance(80) || traits_.all_measured);
    for (int i = 0; traits_.compared && i < 100; ++i)
      world_.at(world_.now() + between(0, 300'000) * kMs, [this, id = player.id] { world_.fidget(id); });
    if (traits_.deaths && chance(30)) {
      world_.at(world_.now() + between(0, 400'000) * kMs, [this, id = player.id] { world_.kill(id, chance(50)); });
    }
  }

  std::mt19937_64 random_;
  Traits traits_;
  int64_t clients_most_ = 8;
  Bytes gpu_bytes_ = 16 * kGiB;
  World world_;
};

constexpr int64_t kRuns = repeats(300, 12);

void hold(uint64_t base, Traits traits, bool all_finish) {
  const int64_t only = from_environment("NVSHARE_TEST_SEED", -1);
  const int64_t runs = only >= 0 ? 1 : kRuns * from_environment("NVSHARE_TEST_SCALE", 1);
  for (int64_t i = 0; i < runs; ++i) {
    const uint64_t seed = only >= 0 ? static_cast<uint64_t>(only) : base + static_cast<uint64_t>(i);
    Workload workload(seed, traits);
    workload.run();
    ASSERT_FALSE(workload.world().broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << workload.world().describe();
    if (!all_finish) continue;
    ASSERT_TRUE(workload.world().all_finished()) << "NVSHARE_TEST_SEED=" << seed << "\n" << workload.world().describe();
    ASSERT_EQ(workload.world().resident(0), 0);
    ASSERT_TRUE(workload.world().gpu_view(0).clients.empty());
    ASSERT_EQ(workload.world().gpu_view(0).departed, 0);
  }
}

// In each of these: the safe limit is never passed, nobody is asked to drop for nobody, nothing stands still while somebody could run,
// and who waits is served within its bound.
TEST(PolicyProperties, HoldForOrdinaryWorkloads) { hold(1'000'000, {}, true); }

TEST(PolicyProperties, HoldWhenClientsDieAtAnyMoment) { hold(2'000'000, {.deaths = true}, true); }

TEST(PolicyProperties, HoldWhenHostMemoryIsShort) { hold(3'000'000, {.host_short = true, .deaths = true}, false); }

TEST(PolicyProperties, HoldWhenDrainsAndEvictionsFail) { hold(4'000'000, {.failures = true, .deaths = true}, false); }

TEST(PolicyProperties, HoldWithUnswappableAndForeignMemory) {
  hold(5'000'000, {.host_short = true, .unswappable = true, .failures = true, .deaths = true, .foreign = true, .restarts = true}, false);
}

TEST(PolicyProperties, HoldWhenTheSchedulerRestarts) { hold(6'000'000, {.deaths = true, .restarts = true}, true); }

TEST(PolicyProperties, HoldWhereSharingIsMeasuredWhateverClientsSay) {
  hold(7'000'000, {.deaths = true, .restarts = true, .measured = true}, true);
}

// A step that ends early (step.cc, MemoryNews) leaves nothing out, and is looked at in time what a whole one would have looked at.
TEST(PolicyProperties, StepsThatEndEarlyDecideAsWholeOnes) {
  const std::vector<Traits> all{
      {.deaths = true, .restarts = true, .measured = true, .all_measured = true, .compared = true},
      {.host_short = true, .failures = true, .deaths = true, .foreign = true, .measured = true, .all_measured = true, .compared = true},
      {.unswappable = true, .deaths = true, .measured = true, .compared = true},
      {.deaths = true, .compared = true}};
  for (const Traits& traits : all) {
    uint64_t early = 0, steps = 0;
    const int64_t only = from_environment("NVSHARE_TEST_SEED", -1), first = only >= 0 ? only : 8'000'000;
    const int64_t runs = only >= 0 ? 1 : repeats(8, 1) * from_environment("NVSHARE_TEST_SCALE", 1);
    for (int64_t seed = first; seed < first + runs; ++seed) {
      Workload workload(static_cast<uint64_t>(seed), traits);
      workload.run(400 * kSec);
      ASSERT_FALSE(workload.world().broken()) << "NVSHARE_TEST_SEED=" << seed << "\n" << workload.world().describe();
      early += workload.world().early_ends();
      steps += workload.world().steps();
    }
    if (only < 0 && !kSanitized) {  // one seed need not have any
      EXPECT_GT(early, 20u) << "of " << steps << " steps";
    }
  }
}

TEST(PolicyProperties, TheSameSeedGivesTheSameDecisions) {
  for (uint64_t seed = 0; seed < repeats(20u, 4); ++seed) {
    const Traits traits{.host_short = true, .unswappable = true, .failures = true, .deaths = true, .foreign = true, .restarts = true};
    Workload first(seed, traits), second(seed, traits), other(seed + 1000, traits);
    first.run();
    second.run();
    other.run();
    ASSERT_EQ(first.world().trace(), second.world().trace()) << "seed " << seed;
    ASSERT_EQ(first.world().steps(), second.world().steps()) << "seed " << seed;
    EXPECT_NE(first.world().trace(), other.world().trace()) << "seed " << seed;
  }
}

// Canaries: the checks above notice a policy that is wrong.
std::string found_in(const std::function<void(Actions&)>& tamper) {
  for (uint64_t seed = 1; seed < 40; ++seed) {
    Workload workload(seed, {});
    workload.world().tamper_with(tamper);
    workload.run();
    if (workload.world().broken()) return *workload.world().broken();
  }
  return {};
}

TEST(PolicyCanary, AnInflatedBudgetIsNoticed) {
  const std::string found = found_in([](Actions& actions) {
    for (Action& action : actions) {
      if (auto* lock = std::get_if<SendLock>(&action)) lock->budget *= 2;
    }
  });
  EXPECT_NE(found.find("safe limit"), std::string::npos) << found;
}

TEST(PolicyCanary, AnInflatedPrefetchIsNoticed) {
  const std::string found = found_in([](Actions& actions) {
    for (Action& action : actions) {
      if (auto* prefetch = std::get_if<SendPrefetch>(&action)) prefetch->budget += 16 * kGiB;
    }
  });
  EXPECT_FALSE(found.empty());
}

TEST(PolicyCanary, AGroundlessDropIsNoticed) {
  const std::string found = found_in([](Actions& actions) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (const auto* lock = std::get_if<SendLock>(&actions[i])) {
        const SendLock granted = *lock;
        actions.push_back(SendDrop{granted.client, granted.grant});
        return;
      }
    }
  });
  EXPECT_NE(found.find("nobody waits"), std::string::npos) << found;
}

TEST(PolicyCanary, AForgottenWaiterIsNoticed) {
  const std::string found = found_in(
      [](Actions& actions) { std::erase_if(actions, [](const Action& action) { return std::holds_alternative<SendDrop>(action); }); });
  EXPECT_FALSE(found.empty());
}

}  // namespace
}  // namespace nvshare::policy::testing
