#include "run.h"

#include <algorithm>

namespace nvshare::simulation {

namespace {
constexpr Duration kLongest = 2'000 * kSec;  // everybody has ended long before
// The same where gangs have compute limits, which are billed while they load, and load longer than they work.
constexpr Duration kLongestOfGangs = 10'000 * kSec;
constexpr uint64_t kMostSteps = 2'000'000;  // the same: over a slow link a million may be
constexpr uint64_t kMostOfCanary = 500'000;

Duration longest(const Plan& plan) {
  const bool limited =
      std::any_of(plan.faults.begin(), plan.faults.end(), [](const Fault& fault) { return fault.kind == Fault::Kind::kComputeLimit; });
  return plan.gpus > 1 && limited ? kLongestOfGangs : kLongest;
}
}  // namespace

Run::Run(const Plan& plan, const Options& options)
    : plan_(plan),
      canary_(options.canary),
      world_(options.tells),
      node_(world_, plan_, options.canary, options.folder, options.recording),
      checks_(*this) {
  foreign_.resize(static_cast<size_t>(plan_.gpus));
  node_.set_nvml([this](int gpu) { return nvml_on(gpu); });
  node_.set_host_use([this](pid_t pid) { return host_use(pid) + (pid == 0 ? host_taken_ : 0); });
  for (const ProgramPlan& program : plan_.programs) processes_.push_back(std::make_unique<Process>(*this, program));
  for (size_t i = 0; i < processes_.size(); ++i) {
    world_.after(plan_.programs[i].starts, [process = processes_[i].get()] { process->start(); });
  }
  for (const Fault& fault : plan_.faults) {
    world_.after(fault.at, [this, &fault] { fault.moment == Moment::kAny ? happen(fault) : awaited_.push_back(&fault); });
  }
}

Run::~Run() = default;

void Run::happen(const Fault& fault) {
  if (fault.kind == Fault::Kind::kRestart) return node_.restart(fault.amount, fault.former);
  if (fault.kind == Fault::Kind::kHostTaken) return take_host(fault.bytes, fault.amount);
  Process& process = *processes_[fault.program];
  const int tenant = process.plan().tenant;
  switch (fault.kind) {
    case Fault::Kind::kKill:
      return process.kill();
    case Fault::Kind::kStop:
      return process.stop(fault.amount);
    case Fault::Kind::kCut:
      return process.cut();
    case Fault::Kind::kComputeLimit:
      return node_.set_compute_limit(tenant, static_cast<int>(fault.amount));
    case Fault::Kind::kMemoryLimit:
      return node_.set_memory_limit(tenant, fault.amount);
    case Fault::Kind::kPriority:
      return node_.set_priority(tenant, static_cast<int>(fault.amount));
    case Fault::Kind::kFree:
      return process.release(fault.amount);
    case Fault::Kind::kHang:
      return process.hang(fault.amount);
    case Fault::Kind::kDriverShort:
      return process.driver_short(fault.amount);
    case Fault::Kind::kForeign:
      return take_foreign(fault, process.plan().gpus.front());
    case Fault::Kind::kFork:
      return process.fork(fault.amount, fault.holds);
    case Fault::Kind::kRestart:
    case Fault::Kind::kHostTaken:
      return;
  }
}

// By programs that swap nothing, until they end.
void Run::take_host(Bytes bytes, Duration lasts) {
  world_.tell("others take {} MiB of host memory", bytes / kMiB);
  host_taken_ += bytes;
  world_.after(lasts, [this, bytes] {
    world_.tell("others give {} MiB of host memory back", bytes / kMiB);
    host_taken_ -= bytes;
  });
}

// It gets what there is.
void Run::take_foreign(const Fault& fault, int gpu) {
  const Bytes bytes = std::min(fault.bytes, driver_has_on(gpu));
  if (bytes <= 0) return;
  world_.tell("another program takes {} MiB of GPU {}", bytes / kMiB, gpu);
  const auto add = [this, gpu](Bytes more, bool listed) {
    Foreign& foreign = foreign_[static_cast<size_t>(gpu)];
    foreign.bytes += more;
    if (listed) foreign.listed += more;
  };
  add(bytes, fault.listed);
  if (fault.amount == 0) return;
  world_.after(fault.amount, [this, add, bytes, gpu, listed = fault.listed] {
    world_.tell("another program gives {} MiB of GPU {} back", bytes / kMiB, gpu);
    add(-bytes, listed);
  });
}

void Run::moment(const Process& process, Moment moment) {
  std::erase_if(awaited_, [&](const Fault* fault) {
    if (fault->moment != moment || processes_[fault->program].get() != &process) return false;
    world_.after(fault->after, [this, fault] { happen(*fault); });
    return true;
  });
}

Bytes Run::resident_on(int gpu) const {
  Bytes sum = 0;
  for (const auto& process : processes_) {
    for (const auto& client : process->clients()) sum += client->gpu() == gpu && process->has_context() ? client->resident() : 0;
  }
  return sum;
}

Bytes Run::kept_on(int gpu, bool earlier) const {
  Bytes sum = 0;
  for (const auto& process : processes_) {
    if (process->has_pid() || (earlier && process->gone_in() == node_.lives() && node_.is_up())) continue;
    for (const auto& client : process->clients()) sum += client->gpu() == gpu ? client->resident() : 0;
  }
  return sum;
}

Bytes Run::contexts_on(int gpu) const {
  Bytes sum = 0;
  for (const auto& process : processes_) {
    for (const auto& client : process->clients()) sum += client->gpu() == gpu && process->has_context() ? process->plan().context : 0;
  }
  return sum;
}

scheduler::GpuSample Run::nvml_on(int gpu) const {
  constexpr pid_t kOther = 4'000'000;
  scheduler::GpuSample sample;
  for (const auto& process : processes_) {
    for (const auto& client : process->clients()) {
      if (client->gpu() != gpu || !process->has_context()) continue;
      const Bytes used = client->resident() + process->plan().context;
      sample.used_after += used;
      if (process->has_pid()) sample.processes.push_back({process->pid(), used});
    }
  }
  for (scheduler::ProcessMemory& process : sample.processes) {
    if (plan_.blind == Plan::Blind::kOtherNumbers) process.pid -= kOther;
  }
  if (plan_.blind == Plan::Blind::kNone) sample.processes.clear();
  const Foreign& foreign = foreign_[static_cast<size_t>(gpu)];
  if (foreign.listed > 0 && plan_.blind != Plan::Blind::kNone) sample.processes.push_back({kOther, foreign.listed});
  sample.used_after += canary_ != Canary::kForeignUnseen ? foreign.bytes : foreign.listed;
  // Then it looks as if they had none.
  if (canary_ == Canary::kUnlistedContextsFree && plan_.blind == Plan::Blind::kNone) sample.used_after -= contexts_on(gpu);
  sample.used_before = sample.used_after;
  return sample;
}

Bytes Run::host_use(pid_t pid) const {
  Bytes sum = 0;
  for (const auto& process : processes_) {
    if (pid != 0 && process->pid() != pid) continue;
    for (const auto& client : process->clients()) sum += client->host().ready();
  }
  return sum;
}

Bytes Run::driver_has_on(int gpu) const { return plan_.gpu_bytes - resident_on(gpu) - contexts_on(gpu) - foreign_on(gpu); }

Bytes Run::free_on(int gpu) const { return driver_has_on(gpu) - plan_.policy.reserve_fixed; }

const std::string& Run::play() {
  const auto over = [&] { return std::all_of(processes_.begin(), processes_.end(), [](const auto& process) { return process->ended(); }); };
  Instant looked = world_.now();
  const Duration most_time = longest(plan_);
  const uint64_t most = canary_ == Canary::kNone ? kMostSteps : kMostOfCanary;
  while (!over()) {
    if (!world_.step()) {
      world_.fail("nothing will ever happen again, and not everybody has ended");
      break;
    }
    checks_.after_step();
    if (world_.now() - looked >= kSec) {
      looked = world_.now();
      checks_.each_second();
    }
    if (world_.elapsed() > most_time || world_.steps() > most) world_.fail("not everybody ends");
  }
  // The scheduler hears of it.
  for (const Instant end = world_.now() + 10 * kSec; world_.now() < end && world_.step();) checks_.after_step();
  if (!world_.broken() && node_.client_count() > 0) world_.fail(fmt::format("{} clients are left behind", node_.client_count()));
  return world_.problem();
}

std::string Run::describe() {
  std::string text;
  for (const auto& process : processes_) text += process->describe();
  if (!node_.is_up()) return text + "  no scheduler\n";
  const protocol::admin::StatusReport status = node_.status();
  text += fmt::format("  scheduler: host memory {} MiB, of it lent {}, used {}; room for {}\n", status.host_memory_budget / kMiB,
                      status.host_memory_reserved / kMiB, status.host_memory_used / kMiB, status.host_memory_available / kMiB);
  for (const policy::GpuView& gpu : policy::view(node_.policy_state(), world_.now())) {
    text += fmt::format("  scheduler, GPU {}: safe limit {} MiB, departed {}, mode {}\n", gpu.gpu, gpu.safe_limit / kMiB,
                        gpu.departed / kMiB, gpu.mode);
    for (const policy::ClientView& client : gpu.clients) {
      text += fmt::format("    client {} {} allocated {} resident {} budget {} MiB{}{}\n", client.client, name_of(client.state),
                          client.memory.allocated / kMiB, client.memory.resident / kMiB, client.budget / kMiB,
                          client.evicting ? ", moves out" : "", client.waiting_for.empty() ? "" : ", waits for " + client.waiting_for);
    }
  }
  return text;
}

// ---- shrinking ----

namespace {

// The kind of failure, so that one is not taken for another: without the numbers in it.
std::string kind_of(const std::string& problem) {
  std::string kind;
  for (const char letter : problem) {
    if (letter < '0' || letter > '9') kind += letter;
  }
  return kind;
}

class Shrinker {
 public:
  Shrinker(const Plan& plan, const Run::Options& options) : best_(plan), options_(options) {
    options_.tells = false;
    kind_ = kind_of(Run(best_, options_).play());
  }

  Plan work() {
    for (bool better = true; better && tries_ < kTries;) {
      better = is_former(best_) && leave_out(without_former);
      for (size_t i = best_.faults.size(); i-- > 0;)
        better |= leave_out([&](Plan& plan) { plan.faults.erase(plan.faults.begin() + static_cast<ptrdiff_t>(i)); });
      for (size_t i = best_.programs.size(); i-- > 0;) better |= leave_out([&](Plan& plan) { drop_program(plan, i); });
      for (size_t i = 0; i < best_.programs.size(); ++i) {
        for (size_t t = best_.programs[i].threads.size(); t-- > 0;) {
          if (best_.programs[i].threads.size() > 1) better |= leave_out([&](Plan& plan) { drop(plan.programs[i].threads, t); });
        }
        for (size_t t = 0; t < best_.programs[i].threads.size(); ++t) {
          for (size_t s = best_.programs[i].threads[t].size(); s-- > 0;)
            better |= leave_out([&](Plan& plan) { drop(plan.programs[i].threads[t], s); });
        }
      }
    }
    return best_;
  }

 private:
  static constexpr int kTries = 600;

  template <typename List>
  static void drop(List& list, size_t at) {
    list.erase(list.begin() + static_cast<ptrdiff_t>(at));
  }
  static void drop_program(Plan& plan, size_t at) {
    drop(plan.programs, at);
    std::erase_if(plan.faults, [&](const Fault& fault) {
      return fault.program == at && (fault.kind != Fault::Kind::kRestart || fault.moment != Moment::kAny);
    });
    for (Fault& fault : plan.faults) fault.program -= fault.program > at || fault.program >= plan.programs.size() ? 1 : 0;
  }
  static bool is_former(const Plan& plan) {
    const auto former = [](const auto& part) { return part.former; };
    return plan.former_scheduler || std::any_of(plan.programs.begin(), plan.programs.end(), former) ||
           std::any_of(plan.faults.begin(), plan.faults.end(), former);
  }
  static void without_former(Plan& plan) {
    plan.former_scheduler = false;
    for (ProgramPlan& program : plan.programs) program.former = false;
    for (Fault& fault : plan.faults) fault.former = false;
  }
  template <typename Change>
  bool leave_out(Change change) {
    Plan smaller = best_;
    change(smaller);
    if (smaller.programs.empty() || ++tries_ > kTries) return false;
    if (kind_of(Run(smaller, options_).play()) != kind_) return false;
    best_ = smaller;
    return true;
  }

  Plan best_;
  Run::Options options_;
  std::string kind_;
  int tries_ = 0;
};

}  // namespace

Failure shrink(const Plan& plan, Run::Options options) {
  Failure failure{Shrinker(plan, options).work(), "", "", ""};
  options.tells = true;
  Run run(failure.plan, options);
  failure.problem = run.play();
  failure.story = run.story();
  failure.state = run.describe();
  return failure;
}

}  // namespace nvshare::simulation
