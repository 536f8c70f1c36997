#include "plan.h"

#include <algorithm>
#include <iterator>

namespace nvshare::simulation {
namespace {

// What a run may contain. Each run switches some of it off at random, so that the rest meets in other ways.
struct Mix {
  bool deaths, stops, cuts, restarts, limits, memory_limits, growth, failures, linked, gangs, threads, slow, nvml;
};

Mix draw_mix(Random& random) {
  Mix traits{};
  for (bool* trait : {&traits.deaths, &traits.stops, &traits.cuts, &traits.restarts, &traits.limits, &traits.memory_limits, &traits.growth,
                      &traits.failures, &traits.linked, &traits.gangs, &traits.threads, &traits.slow})
    *trait = random.chance(30);
  traits.nvml = random.chance(50);
  return traits;
}

policy::Config draw_policy(Random& random, const Mix& traits) {
  policy::Config config;
  if (random.chance(50)) {
    config.switch_time_mode = policy::SwitchTimeMode::kFixed;
    config.switch_time_fixed = random.between(100, 3000) * kMs;
  } else {
    config.switch_time_min = random.between(100, 2000) * kMs;
    config.switch_time_max = 10 * config.switch_time_min;
    config.switch_time_multiplier = random.between(1, 10);
  }
  config.unanswered_grace = random.between(2, 10) * kSec;
  if (!traits.limits) return config;
  config.scheduling_mode = policy::kSchedulingModes[random.between(0, std::ssize(policy::kSchedulingModes) - 1)];
  return config;
}

Bytes draw_size(Random& random) {
  switch (random.between(0, 3)) {
    case 0:
      return random.between(1, 32) * 32 * kMiB;
    case 1:
      return random.between(1, 4) * kGiB;
    default:
      return random.between(4, 10) * kGiB;
  }
}

std::vector<Step> draw_steps(Random& random, const ProgramPlan& program, const Mix& traits, bool gang, Bytes& left) {
  std::vector<Step> steps;
  const std::string kind = program.kind;
  const int64_t rounds = kind == "train" ? random.between(1, 4) : random.between(3, 12);
  for (int64_t i = 0; i < rounds; ++i) {
    const int gpu = static_cast<int>(random.between(0, static_cast<int64_t>(program.gpus.size()) - 1));
    if (gang && random.chance(60)) {
      steps.push_back({Step::Kind::kMeet, random.between(50, 1000) * kMs, 0});
    } else if (kind == "train") {
      steps.push_back({Step::Kind::kRun, random.between(300, 5000) * kMs, gpu});
    } else if (kind == "serve") {
      steps.push_back({Step::Kind::kRun, random.between(2, 200) * kMs, gpu});
    } else {
      steps.push_back({Step::Kind::kRun, random.between(10, 1500) * kMs, gpu});
    }
    if (kind == "serve") steps.push_back({Step::Kind::kPause, random.between(1, 300) * kMs, 0});
    if (kind == "notebook") steps.push_back({Step::Kind::kPause, random.between(100, 4000) * kMs, 0});
    if (kind == "train" && random.chance(30)) steps.push_back({Step::Kind::kPause, random.between(1, 100) * kMs, 0});
    if (!traits.growth || !random.chance(30)) continue;
    if (random.chance(70)) {
      const Bytes bytes = std::min(left, random.between(1, 64) * 64 * kMiB);
      left -= bytes;
      if (bytes > 0) steps.push_back({Step::Kind::kGrow, bytes, gpu});
    } else {
      steps.push_back({Step::Kind::kShrink, random.between(1, 16) * 64 * kMiB, gpu});
    }
  }
  return steps;
}

ProgramPlan draw_program(Random& random, const Plan& plan, const Mix& traits, uint64_t number) {
  ProgramPlan program;
  constexpr const char* kKinds[] = {"train", "serve", "notebook"};
  program.kind = kKinds[random.between(0, 2)];
  program.number = number;
  program.starts = random.between(0, 3000) * kMs;
  program.tenant = static_cast<int>(traits.memory_limits || traits.gangs ? random.between(1, 4) : static_cast<int64_t>(number));
  const bool gang = plan.gpus > 1 && traits.gangs && random.chance(50);
  if (gang) {
    for (int gpu = 0; gpu < plan.gpus; ++gpu) program.gpus.push_back(gpu);
  } else {
    program.gpus.push_back(static_cast<int>(random.between(0, plan.gpus - 1)));
  }
  program.allocated = draw_size(random);
  program.kernel = random.chance(20) ? random.between(100, 500) * kMs : random.between(1, 50) * kMs;
  program.ahead = random.between(0, 200) * kMs;
  if (traits.linked && random.chance(50)) program.linked = static_cast<int>(random.between(1, 30));
  if (traits.failures && random.chance(40)) program.evictions_to_fail = static_cast<int>(random.between(1, 3));
  // In all it fits beside the others' contexts, so that it can be served in the end.
  Bytes left = std::max<Bytes>(12 * kGiB - program.allocated, 0);
  const int64_t threads = traits.threads ? random.between(1, 3) : 1;
  for (int64_t i = 0; i < threads; ++i) program.threads.push_back(draw_steps(random, program, traits, gang, left));
  return program;
}

void draw_faults(Random& random, const Mix& traits, Plan& plan) {
  const auto add = [&](Fault::Kind kind, int64_t most, auto amount) {
    for (int64_t i = random.between(1, most); i > 0; --i) {
      const auto program = static_cast<size_t>(random.between(0, static_cast<int64_t>(plan.programs.size()) - 1));
      Fault fault{kind, random.between(0, 15'000) * kMs, program, amount()};
      if (random.chance(50)) {
        constexpr Moment kMoments[] = {Moment::kRegisters, Moment::kLoads, Moment::kEvicts,
                                       Moment::kDrains,    Moment::kGrows, Moment::kAsksHeadroom};
        fault.at = random.chance(50) ? 0 : fault.at;
        fault.moment = kMoments[random.between(0, 5)];
        fault.after = random.chance(50) ? random.between(0, 20'000) * kUs : random.between(0, 1000) * kMs;
      }
      plan.faults.push_back(fault);
    }
  };
  if (traits.deaths) add(Fault::Kind::kKill, 3, [] { return 0; });
  if (traits.stops) add(Fault::Kind::kStop, 3, [&] { return random.between(10, 8000) * kMs; });
  if (traits.cuts) add(Fault::Kind::kCut, 4, [] { return 0; });
  // At once, at any time, or when programs begin to help themselves.
  const auto away = [&] {
    switch (random.between(0, 2)) {
      case 0:
        return random.between(0, 50) * kMs;
      case 1:
        return random.between(1500, 2500) * kMs;
      default:
        return random.between(0, 4000) * kMs;
    }
  };
  if (traits.restarts) add(Fault::Kind::kRestart, 3, away);
  if (traits.limits) add(Fault::Kind::kComputeLimit, 4, [&] { return random.between(1, 10) * 10; });
  if (traits.memory_limits) {
    // Room for each of its programs alone, not for all: what one has beyond a limit that is set later is not believed (docs/known-gaps.md).
    add(Fault::Kind::kMemoryLimit, 3, [&] { return random.between(25, 28) * kGiB / 2; });
  }
  if (random.chance(20)) add(Fault::Kind::kPriority, 3, [&] { return random.between(-3, 3); });
  std::stable_sort(plan.faults.begin(), plan.faults.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
}

// Releases of both sides meet: programs that were started before an update run on, and a scheduler may be replaced by an older one. Drawn
// apart, so that what else a seed gives stays as it was.
void draw_versions(uint64_t seed, Plan& plan) {
  Random random(seed * 0x9e3779b97f4a7c15 + 3);
  if (!random.chance(30)) return;
  plan.former_scheduler = random.chance(30);
  for (ProgramPlan& program : plan.programs) program.former = random.chance(40);
  for (Fault& fault : plan.faults) fault.former = fault.kind == Fault::Kind::kRestart && random.chance(50);
}

// Host memory that the scheduler lends, drawn apart, as versions are: room for all that the programs may come to have. Programs that do not
// grow, on one GPU, may have so little that it takes the GPU as well; those that grow can then stand still for ever (docs/known-gaps.md).
void draw_host(uint64_t seed, Plan& plan) {
  Random random(seed * 0xd1342543de82ef95 + 7);
  if (!random.chance(35)) return;
  plan.host_lent = true;
  plan.bounded = false;
  if (!random.chance(70)) return;
  Bytes swappable = 0;
  bool grows = false;
  for (const ProgramPlan& program : plan.programs) {
    swappable += program.allocated * static_cast<Bytes>(program.gpus.size());
    for (const std::vector<Step>& steps : program.threads) {
      for (const Step& step : steps) {
        if (step.kind != Step::Kind::kGrow) continue;
        swappable += step.amount;
        grows = true;
      }
    }
  }
  const Bytes contexts = std::ssize(plan.programs) * 300 * kMiB;  // on the GPU
  if (!grows && plan.gpus == 1 && random.chance(70)) swappable = std::max<Bytes>(swappable + contexts - 15 * kGiB, kGiB);
  // A fifth of it is kept free, and an eighth of the rest for tenants that hold little.
  plan.host_bytes = kGiB + swappable * random.between(145, 250) / 100;
}

// Programs that free memory while it moves, drawn apart as versions are.
void draw_frees(uint64_t seed, Plan& plan) {
  Random random(seed * 0x8ebc6af09c88c6e3 + 19);
  if (!random.chance(40)) return;
  for (int64_t i = random.between(1, 4); i > 0; --i) {
    const auto program = static_cast<size_t>(random.between(0, static_cast<int64_t>(plan.programs.size()) - 1));
    Fault fault{Fault::Kind::kFree, random.between(0, 8000) * kMs, program, random.between(1, 32) * 64 * kMiB};
    constexpr Moment kMoments[] = {Moment::kLoads, Moment::kLoads, Moment::kLoads, Moment::kEvicts, Moment::kDrains, Moment::kPrefetches};
    fault.moment = kMoments[random.between(0, 5)];
    fault.after =
        random.between(0, 1500) * plan.programs[program].allocated / plan.bandwidth * kMs;  // while all of it moves, or thereafter
    plan.faults.push_back(fault);
  }
}

// Where programs fit they share as measured, drawn apart as versions are.
void draw_sharing(uint64_t seed, Plan& plan) {
  Random random(seed * 0xa0761d6478bd642f + 13);
  plan.sharing_measured = random.chance(25);
}

bool grows(const ProgramPlan& program) {
  return std::any_of(program.threads.begin(), program.threads.end(), [](const std::vector<Step>& steps) {
    return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kind == Step::Kind::kGrow; });
  });
}

// Large programs that do not grow, and host memory that hardly suffices for them, which others on the machine need as well for a while, so
// that movements are given up halfway. Drawn apart as versions are.
void draw_short_host(uint64_t seed, Plan& plan) {
  Random random(seed * 0x589965cc75374cc3 + 23);
  if (plan.gpus > 1 || !random.chance(40) || std::any_of(plan.programs.begin(), plan.programs.end(), grows)) return;
  plan.host_lent = true;
  plan.bounded = false;
  Bytes swapped = -15 * kGiB;
  for (ProgramPlan& program : plan.programs) {
    program.allocated = random.between(48, 176) * 64 * kMiB;
    swapped += program.allocated + 300 * kMiB;  // its context takes that
  }
  // A fifth of it is kept free, and an eighth of the rest for tenants that hold little.
  plan.host_bytes = kGiB + std::max(swapped, kGiB) * random.between(100, 130) / 70;
  for (int64_t i = random.between(1, 4); i > 0; --i) {
    Fault fault{Fault::Kind::kHostTaken, random.between(0, 15'000) * kMs, 0, random.between(10, 8000) * kMs};
    fault.bytes = plan.host_bytes * random.between(20, 100) / 100;
    if (random.chance(80)) {
      fault.program = static_cast<size_t>(random.between(0, static_cast<int64_t>(plan.programs.size()) - 1));
      fault.moment = random.chance(50) ? Moment::kLoads : Moment::kEvicts;
      fault.after = random.between(0, 500) * kMs;
    }
    plan.faults.push_back(fault);
  }
}

// Whether memory moves beside who runs, drawn apart as versions are; then some faults come where it does. In half of these runs programs
// that do not grow are large, so that they wait for each other, and turns last long enough for it.
void draw_prefetch(uint64_t seed, Plan& plan) {
  Random random(seed * 0xe7037ed1a0b428db + 17);
  plan.policy.prefetch = random.chance(60);
  if (!plan.policy.prefetch) return;
  for (Fault& fault : plan.faults) {
    if (fault.moment != Moment::kAny && random.chance(30)) fault.moment = Moment::kPrefetches;
  }
  if (plan.gpus > 1 || random.chance(50)) return;
  for (ProgramPlan& program : plan.programs) {
    if (!grows(program)) program.allocated = random.between(80, 160) * 64 * kMiB;
  }
  plan.policy.switch_time_fixed = plan.policy.switch_time_min = random.between(500, 4000) * kMs;
  plan.policy.switch_time_max = 10 * plan.policy.switch_time_min;
}

// Programs whose waits for the GPU the library sees, drawn apart as versions are.
void draw_waits(uint64_t seed, Plan& plan) {
  Random random(seed * 0x3c79ac492ba7b653 + 29);
  if (!random.chance(50)) return;
  for (ProgramPlan& program : plan.programs) program.waits_seen = random.chance(70);
}

std::vector<Step>& any_thread(Random& random, ProgramPlan& program) {
  return program.threads[static_cast<size_t>(random.between(0, std::ssize(program.threads) - 1))];
}

// Not between the end of a context and what its program has again after it, which would then have that twice.
void insert(Random& random, std::vector<Step>& steps, std::initializer_list<Step> more) {
  auto at = steps.begin() + random.between(0, std::ssize(steps));
  if (at != steps.begin() && std::prev(at)->kind == Step::Kind::kReset) --at;
  steps.insert(at, more);
}

// Streams that capture, drawn apart as versions are: nothing may be waited for meanwhile, and a thread may come to a closed gate.
void draw_captures(uint64_t seed, Plan& plan) {
  Random random(seed * 0x1c69b3f74ac4ae35 + 31);
  if (!random.chance(25)) return;
  plan.bounded = false;
  for (ProgramPlan& program : plan.programs) {
    if (!random.chance(50)) continue;
    for (int64_t i = random.between(1, 6); i > 0; --i) {
      const Duration lasts = random.chance(80) ? random.between(1, 300) * kMs : random.between(300, 4000) * kMs;
      insert(random, any_thread(random, program), {{Step::Kind::kCapture, lasts, 0}});
    }
  }
}

// Programs of one thread whose context ends before they do, drawn apart as versions are.
void draw_contexts(uint64_t seed, Plan& plan) {
  Random random(seed * 0x9fb21c651e98df25 + 37);
  if (!random.chance(25)) return;
  for (ProgramPlan& program : plan.programs) {
    if (program.gpus.size() > 1 || program.threads.size() > 1 || grows(program) || !random.chance(50)) continue;
    for (int64_t i = random.between(1, 2); i > 0; --i) {
      insert(random, program.threads[0],
             {{Step::Kind::kReset, random.chance(50) ? 0 : random.between(0, 3000) * kMs, 0}, {Step::Kind::kGrow, program.allocated, 0}});
    }
    if (random.chance(30)) program.threads[0].push_back({Step::Kind::kReset, random.between(0, 3000) * kMs, 0});
  }
}

// Loads that fail or find no memory, though the scheduler granted it, drawn apart as versions are.
void draw_failed_loads(uint64_t seed, Plan& plan) {
  Random random(seed * 0x2127599bf4325c37 + 41);
  if (!random.chance(25)) return;
  plan.bounded = false;
  for (ProgramPlan& program : plan.programs) {
    if (random.chance(40)) program.loads_to_fail = static_cast<int>(random.between(1, 3));
  }
  for (int64_t i = random.between(1, 3); i > 0; --i) {
    const auto program = static_cast<size_t>(random.between(0, std::ssize(plan.programs) - 1));
    Fault fault{Fault::Kind::kDriverShort, random.between(0, 8000) * kMs, program, random.between(1, 6000) * kMs};
    fault.moment = random.chance(50) ? Moment::kLoads : Moment::kPrefetches;
    fault.after = random.between(0, 100) * kMs;
    plan.faults.push_back(fault);
  }
}

// A GPU that hangs in what a program has submitted, drawn apart as versions are; half of these programs are killed then.
void draw_hangs(uint64_t seed, Plan& plan) {
  Random random(seed * 0x880355f21e6d1965 + 43);
  if (!random.chance(20)) return;
  plan.bounded = false;
  for (int64_t i = random.between(1, 2); i > 0; --i) {
    const auto program = static_cast<size_t>(random.between(0, std::ssize(plan.programs) - 1));
    Fault fault{Fault::Kind::kHang, random.between(0, 10'000) * kMs, program, random.between(500, 30'000) * kMs};
    if (random.chance(60)) fault.moment = Moment::kDrains;
    plan.faults.push_back(fault);
    if (!random.chance(50)) continue;
    fault.kind = Fault::Kind::kKill;
    fault.after = random.between(0, fault.amount / kMs) * kMs;
    if (fault.moment == Moment::kAny) fault.at += fault.after;
    plan.faults.push_back(fault);
  }
}

// What contexts take, drawn apart as versions are. What is assumed of them where nobody sees it is the most that they take; where NVML
// shows it one may take more.
void draw_context_memory(uint64_t seed, Plan& plan) {
  Random random(seed * 0x9e6c63d0876a9a47 + 47);
  if (!random.chance(50)) return;
  for (ProgramPlan& program : plan.programs) program.context = random.between(20, plan.policy.overhead_default / kMiB) * kMiB;
  if (!plan.nvml || !random.chance(30)) return;
  plan.programs[static_cast<size_t>(random.between(0, std::ssize(plan.programs) - 1))].context = random.between(300, 700) * kMiB;
}

// NVML and the scheduler have different numbers for processes, as they are in different namespaces; drawn apart as versions are. What
// contexts take is assumed then.
void draw_blind(uint64_t seed, Plan& plan) {
  Random random(seed * 0xbf58476d1ce4e5b9 + 59);
  if (!plan.nvml || !random.chance(25)) return;
  plan.blind = random.chance(50) ? Plan::Blind::kNone : Plan::Blind::kOtherNumbers;
  for (ProgramPlan& program : plan.programs) program.context = std::min(program.context, plan.policy.overhead_default);
}

// Programs that are no clients, drawn apart as versions are: only NVML shows what they take. What stays leaves room for each client alone.
void draw_foreign(uint64_t seed, Plan& plan) {
  Random random(seed * 0xe4e09ea1a4ed7e4b + 53);
  if (!plan.nvml || !random.chance(40)) return;
  plan.bounded = false;
  for (int64_t i = random.between(1, 4); i > 0; --i) {
    Fault fault{Fault::Kind::kForeign, random.between(0, 10'000) * kMs, 0, random.between(10, 8000) * kMs};
    fault.program = static_cast<size_t>(random.between(0, std::ssize(plan.programs) - 1));
    fault.bytes = random.between(1, 64) * 128 * kMiB;
    fault.listed = random.chance(70);
    if (i == 1 && random.chance(30)) {
      fault.amount = 0;
      fault.bytes = random.between(1, 8) * 128 * kMiB;
    }
    if (random.chance(40)) {
      constexpr Moment kMoments[] = {Moment::kRegisters, Moment::kLoads, Moment::kEvicts, Moment::kDrains, Moment::kGrows};
      fault.moment = kMoments[random.between(0, 4)];
      fault.after = random.between(0, 1000) * kMs;
    }
    plan.faults.push_back(fault);
  }
}

// Programs that fork, drawn apart as versions are: most children become another program at once, others outlive their parent, which is
// killed then in half of the cases.
void draw_forks(uint64_t seed, Plan& plan) {
  Random random(seed * 0xd6e8feb86659fd93 + 61);
  if (!random.chance(20)) return;
  for (int64_t i = random.between(1, 4); i > 0; --i) {
    Fault fault{Fault::Kind::kFork, random.between(0, 10'000) * kMs, 0, random.between(1, 100) * kMs};
    fault.program = static_cast<size_t>(random.between(0, std::ssize(plan.programs) - 1));
    fault.holds = random.chance(60);
    if (random.chance(50)) {
      constexpr Moment kMoments[] = {Moment::kRegisters, Moment::kLoads, Moment::kEvicts, Moment::kDrains, Moment::kGrows};
      fault.moment = kMoments[random.between(0, 4)];
      fault.after = random.between(0, 500) * kMs;
    }
    const bool lives = random.chance(50);
    if (lives) fault.amount = random.between(1000, 40'000) * kMs;
    plan.faults.push_back(fault);
    if (!lives) continue;
    plan.bounded = false;
    if (!random.chance(50)) continue;
    fault.kind = Fault::Kind::kKill;
    fault.after += random.between(0, 4000) * kMs;
    if (fault.moment == Moment::kAny) fault.at += fault.after;
    plan.faults.push_back(fault);
  }
}

}  // namespace

static Plan draw_first(uint64_t seed) {
  Random random(seed * 0x2545f4914f6cdd1d + 11);
  const Mix traits = draw_mix(random);
  Plan plan;
  plan.seed = seed;
  plan.policy = draw_policy(random, traits);
  plan.gpus = traits.gangs ? 2 : 1;
  plan.nvml = traits.nvml;
  plan.bandwidth = random.between(1, 40) * kGiB;
  plan.latency = random.chance(30) ? 50 * kUs : random.chance(15) ? random.between(10, 100) * kMs : random.between(1, 20) * kMs / 2;
  plan.wake = traits.slow ? random.between(1, 20) * kMs : random.between(1, 200) * kUs;
  plan.bounded = !traits.stops && !traits.failures && !traits.linked && !traits.restarts && !traits.cuts && !traits.gangs;
  const int64_t programs = random.between(1, 6);
  for (int64_t i = 1; i <= programs; ++i) plan.programs.push_back(draw_program(random, plan, traits, static_cast<uint64_t>(i)));
  draw_faults(random, traits, plan);
  draw_versions(seed, plan);
  draw_prefetch(seed, plan);
  draw_host(seed, plan);
  draw_sharing(seed, plan);
  return plan;
}

Plan draw_plan(uint64_t seed, Traits traits) {
  Plan plan = draw_first(seed);
  if (traits == Traits::kFirst) return plan;
  draw_frees(seed, plan);
  draw_short_host(seed, plan);
  if (traits == Traits::kFrees) return plan;
  draw_waits(seed, plan);
  draw_captures(seed, plan);
  draw_contexts(seed, plan);
  draw_failed_loads(seed, plan);
  draw_hangs(seed, plan);
  if (traits == Traits::kMoves) return plan;
  draw_context_memory(seed, plan);
  draw_blind(seed, plan);
  draw_foreign(seed, plan);
  if (traits == Traits::kMemory) return plan;
  draw_forks(seed, plan);
  return plan;
}

namespace {

std::string describe(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kRun:
      return fmt::format("run {} ms", step.amount / kMs);
    case Step::Kind::kPause:
      return fmt::format("pause {} ms", step.amount / kMs);
    case Step::Kind::kGrow:
      return fmt::format("grow by {} MiB", step.amount / kMiB);
    case Step::Kind::kShrink:
      return fmt::format("free {} MiB", step.amount / kMiB);
    case Step::Kind::kMeet:
      return fmt::format("meet {} ms", step.amount / kMs);
    case Step::Kind::kCapture:
      return fmt::format("capture {} ms", step.amount / kMs);
    case Step::Kind::kReset:
      return fmt::format("end the context for {} ms", step.amount / kMs);
  }
  return "";
}

const char* name_of(Moment moment) {
  switch (moment) {
    case Moment::kAny:
      return "anything";
    case Moment::kRegisters:
      return "it registers";
    case Moment::kLoads:
      return "it begins to load";
    case Moment::kEvicts:
      return "it begins to move memory out";
    case Moment::kDrains:
      return "it begins to drain";
    case Moment::kGrows:
      return "it asks for more memory on the GPU";
    case Moment::kAsksHeadroom:
      return "it asks for more of its tenant's limit";
    case Moment::kPrefetches:
      return "its memory begins to come in beside another that runs";
  }
  return "";
}

std::string describe(const Fault& fault, const Plan& plan) {
  const uint64_t program = fault.program < plan.programs.size() ? plan.programs[fault.program].number : 0;
  switch (fault.kind) {
    case Fault::Kind::kKill:
      return fmt::format("program {} is killed", program);
    case Fault::Kind::kStop:
      return fmt::format("program {} is stopped for {} ms", program, fault.amount / kMs);
    case Fault::Kind::kCut:
      return fmt::format("the connections of program {} break", program);
    case Fault::Kind::kRestart:
      return fmt::format("the scheduler is killed, and back after {} ms{}", fault.amount / kMs,
                         fault.former ? ", of the previous version" : "");
    case Fault::Kind::kComputeLimit:
      return fmt::format("the tenant of program {} gets a compute limit of {} %", program, fault.amount);
    case Fault::Kind::kMemoryLimit:
      return fmt::format("the tenant of program {} gets a memory limit of {} MiB", program, fault.amount / kMiB);
    case Fault::Kind::kPriority:
      return fmt::format("the tenant of program {} gets priority {}", program, fault.amount);
    case Fault::Kind::kFree:
      return fmt::format("program {} frees {} MiB", program, fault.amount / kMiB);
    case Fault::Kind::kHostTaken:
      return fmt::format("others take {} MiB of host memory for {} ms", fault.bytes / kMiB, fault.amount / kMs);
    case Fault::Kind::kHang:
      return fmt::format("the GPU hangs for {} ms in what program {} has submitted", fault.amount / kMs, program);
    case Fault::Kind::kDriverShort:
      return fmt::format("the driver has no memory for what program {} loads, for {} ms", program, fault.amount / kMs);
    case Fault::Kind::kForeign:
      return fmt::format("another program{} takes {} MiB of the first GPU of program {}{}", fault.listed ? "" : " that NVML does not list",
                         fault.bytes / kMiB, program, fault.amount > 0 ? fmt::format(", for {} ms", fault.amount / kMs) : "");
    case Fault::Kind::kFork:
      return fmt::format("program {} forks: a child for {} ms{}", program, fault.amount / kMs,
                         fault.holds ? ", which keeps its connections open" : "");
  }
  return "";
}

}  // namespace

std::string describe(const Plan& plan) {
  std::string text = fmt::format(
      "seed {}: {} GPUs of {} MiB, {} MiB/s, messages take up to {} us, threads up to {} us; mode {}, {} turns{}\n", plan.seed, plan.gpus,
      plan.gpu_bytes / kMiB, plan.bandwidth / kMiB, plan.latency / kUs, plan.wake / kUs, plan.policy.scheduling_mode.name,
      plan.policy.switch_time_mode == policy::SwitchTimeMode::kFixed ? fmt::format("{} ms", plan.policy.switch_time_fixed / kMs)
                                                                     : std::string("adaptive"),
      !plan.nvml                                 ? ""
      : plan.blind == Plan::Blind::kNot          ? "; NVML"
      : plan.blind == Plan::Blind::kOtherNumbers ? "; NVML with other numbers for processes"
                                                 : "; NVML, which lists no processes");
  if (plan.host_lent) text += fmt::format("  host memory is lent: {} MiB in all\n", plan.host_bytes / kMiB);
  if (plan.sharing_measured) text += "  sharing is measured\n";
  if (plan.policy.prefetch) text += "  memory comes in beside who runs\n";
  if (plan.former_scheduler) text += "  the scheduler is of the previous version\n";
  for (const ProgramPlan& program : plan.programs) {
    text += fmt::format("  program {} ({}, tenant {}, {} GPUs from {}) starts at {} ms with {} MiB, kernels up to {} ms{}{}{}{}{}{}\n",
                        program.number, program.kind, program.tenant, program.gpus.size(), program.gpus.front(), program.starts / kMs,
                        program.allocated / kMiB, program.kernel / kMs,
                        program.linked > 0 ? fmt::format(", {} % of them end with the next", program.linked) : "",
                        program.evictions_to_fail > 0 ? fmt::format(", {} evictions fail", program.evictions_to_fail) : "",
                        program.context > 0 ? fmt::format(", {} MiB for its context", program.context / kMiB) : "",
                        program.loads_to_fail > 0 ? fmt::format(", {} loads fail", program.loads_to_fail) : "",
                        program.waits_seen ? ", its waits are seen" : "", program.former ? ", its library is of the previous version" : "");
    for (const std::vector<Step>& steps : program.threads) {
      text += "    thread:";
      for (const Step& step : steps) text += " " + describe(step) + ",";
      text.back() = '\n';
    }
  }
  for (const Fault& fault : plan.faults) {
    const std::string when = fault.moment == Moment::kAny
                                 ? fmt::format("at {} ms", fault.at / kMs)
                                 : fmt::format("{} us after {} from {} ms on", fault.after / kUs, name_of(fault.moment), fault.at / kMs);
    text += fmt::format("  {} {}\n", when, describe(fault, plan));
  }
  return text;
}

}  // namespace nvshare::simulation
