// What the policy answers to random events of all kinds, as hashes, so that two builds of it can be compared. A change of the policy's
// code that is to change no decision changes no line.
//
//   policy_answers [--seed 1] [--runs 20] [--steps 1000] [--check] [--print] [--twice] [--gangs] [--measured]
//
//   old/bin/policy_answers --runs 500 > old.txt; new/bin/policy_answers --runs 500 | cmp - old.txt
//
// A line for each seed: the number of events, and hashes of the actions, of the deadlines, of the notes' texts, and of what people are
// shown. --print: each event's answers, to find the first that differs. --check: invariants after each event instead of each eighth.
// --twice: each seed runs twice, and the program fails where the two differ. --gangs: on two to eight GPUs, most programs on some of them.
// --measured: all share as measured, and there are no limits, gangs, prefetches or suspended tenants.
//
// Clients follow what the policy asks of them (they load, drop, evict, prefetch), late, or not at all. So after the first answer that
// differs all else does. Virtual time. Exits 1 where an invariant is broken.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "action_hash.h"
#include "policy/overloaded.h"
#include "policy/policy.h"

namespace {

using namespace nvshare::policy;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Duration kMillisecond = 1'000'000;
constexpr Duration kSecond = 1'000 * kMillisecond;
constexpr size_t kAnswersMost = 200;  // of clients, between two events that are drawn

struct Options {
  uint64_t seed = 1;
  uint64_t runs = 20;
  uint64_t steps = 1000;  // events that are drawn; answers come on top
  bool check = false;
  bool print = false;
  bool twice = false;
  bool gangs = false;
  bool measured = false;
};

// ---- chance ----

class Random {  // xorshift: the same on each machine
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 88172645463325252U) {
    for (int i = 0; i < 20; ++i) next();
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
  int64_t amount(int64_t bound) { return static_cast<int64_t>(below(static_cast<uint64_t>(bound))); }  // 0..bound-1
  int percent() { return static_cast<int>(below(100)); }
  bool chance(int of_hundred) { return percent() < of_hundred; }

 private:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  uint64_t state_;
};

// Each setting is as by default in most runs.
Config random_config(Random& random, bool measured) {
  Config config;
  if (random.chance(50)) config.scheduling_mode = kSchedulingModes[random.below(std::size(kSchedulingModes))];
  if (random.chance(25)) config.compute_window = (100 + random.amount(3000)) * kMillisecond;
  if (random.chance(15)) config.quota_sample_interval = random.amount(50) * kMillisecond;
  if (random.chance(15)) config.scheduling_slice = (1 + random.amount(100)) * kMillisecond;
  if (random.chance(20)) config.quota_carryover_percent = random.percent();
  if (random.chance(20)) config.drop_tail_billing_percent = random.percent();
  if (random.chance(20)) config.prefetch = !measured;
  if (random.chance(10)) config.explains = !measured;
  if (random.chance(20)) {
    config.switch_time_min = 100 * kMillisecond;
    config.switch_time_max = 2 * kSecond;
  }
  return config;
}

// ---- hashes ----

class Hash {  // FNV-1a, a word at a time
 public:
  template <typename... Values>
  void add(Values... values) {
    ((value_ = (value_ ^ static_cast<uint64_t>(values)) * 1099511628211U), ...);
  }
  void add_text(const std::string& text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037U;
};

// All that the policy has said so far.
class Answers {
 public:
  void add(Instant now, const Actions& actions, std::optional<Instant> deadline) {
    ++events_;
    actions_.add(now, actions);
    deadlines_.add(deadline.value_or(-1));
    for (const Action& action : actions) {
      if (const auto* note = std::get_if<Note>(&action)) notes_.add_text(note->text);
    }
  }
  void add(const std::vector<GpuView>& gpus) {
    for (const GpuView& gpu : gpus) {
      views_.add_text(gpu.mode);
      views_.add(gpu.mode_changes, gpu.safe_limit, gpu.overhead, gpu.departed, gpu.switches, gpu.sharing_trials, gpu.swap_time);
      for (const TenantView& tenant : gpu.tenants) {
        views_.add(tenant.tenant, static_cast<int64_t>(tenant.quota * 1e6), tenant.last_window, tenant.used, tenant.active,
                   tenant.throttled, tenant.throttled_time, tenant.debt, tenant.beside_others, tenant.ceiling);
      }
      for (const ClientView& client : gpu.clients) {
        views_.add(client.client, client.state, client.budget, client.turns, client.time_running, client.time_waiting, client.held);
        views_.add_text(client.waiting_for);
      }
    }
  }
  uint64_t events() const { return events_; }
  std::string line(uint64_t seed) const {
    std::array<char, 200> text{};
    std::snprintf(text.data(), text.size(),
                  "%" PRIu64 " events %" PRIu64 " actions %016" PRIx64 " deadlines %016" PRIx64 " notes %016" PRIx64 " views %016" PRIx64,
                  seed, events_, actions_.value(), deadlines_.value(), notes_.value(), views_.value());
    return text.data();
  }

 private:
  uint64_t events_ = 0;
  ActionHash actions_;
  Hash deadlines_, notes_, views_;
};

// ---- a node ----

struct Program {  // a client, as itself knows it
  ClientId id = 0;
  GpuId gpu = 0;
  TenantId tenant = 0;
  Memory memory;
  GrantId grant = 0;  // 0: without the lock
  Bytes budget = 0;
  uint64_t budget_sequence = 0;
  bool waits = false;
  bool paused = false;
};

class Node {
 public:
  Node(uint64_t seed, const Options& options);
  // Nullopt, or which invariant was broken.
  std::optional<std::string> run();
  const Answers& answers() const { return answers_; }

 private:
  void feed(const Event& event);
  void print(const Event& event, const Actions& actions, std::optional<Instant> deadline) const;
  void look();
  void answer(const Action& action);
  void answer_later();
  void let_time_pass();

  // What clients do when they are asked to.
  void granted(const SendLock& lock);
  void load(ClientId id);
  void drop(const SendDrop& drop);
  void evict(const SendEvict& evict);
  void prefetch(const SendPrefetch& prefetch);

  // What happens by itself: see kHappenings.
  void change_memory(Program& program);
  void request(Program& program);
  void give_up(Program& program) { release(program, true); }
  void pause_or_resume(Program& program);
  void leave(Program& program);
  void limit(Program& program);
  void prioritize(Program& program) { feed(TenantPriority{program.tenant, static_cast<int>(random_.below(3))}); }
  void end(Program& program) { feed(TenantEnds{program.tenant, random_.chance(50)}); }
  void suspend(Program& program) { feed(TenantSuspended{program.tenant, random_.chance(40)}); }
  void set_turns(Program& program);
  void share(Program& program) { feed(ClientShares{program.id, random_.below(3), random_.chance(30)}); }
  void believe(Program& program) { feed(MemoryBelieved{program.id, program.memory}); }
  void use_foreign(Program& program) { feed(ForeignMemory{program.gpu, random_.amount(100) * kMiB}); }
  void use_host(Program&) { feed(HostMemory{random_.amount(100'000) * kMiB}); }
  void weigh(Program& program) { feed(ClientOverhead{program.id, random_.amount(400) * kMiB}); }
  void configure(Program&) { feed(ConfigChanged{random_config(random_, options_.measured)}); }

  void join();
  void join_on(GpuId gpu, TenantId tenant, ProcessId process);
  void release(Program& program, bool early);
  void draw();
  ComputeLimit random_limit(TenantId tenant, bool may_lift);
  Program* find(ClientId id);

  // Draws in a thousand; what is left does nothing.
  struct Happening {
    uint64_t weight;
    void (Node::*happen)(Program&);
  };
  static const std::vector<Happening> kHappenings;

  const Options& options_;
  Random random_;
  StatePointer state_;
  Answers answers_;
  Instant now_ = kSecond;
  std::map<ClientId, Program> programs_;
  std::deque<std::function<void()>> later_;  // answers on their way
  std::optional<std::string> broken_;
  ClientId next_ = 1;

  // Drawn once for a run.
  size_t gpus_ = 1;
  size_t programs_most_ = 0;
  bool gangs_ = false;
  int limited_percent_ = 0;  // of tenants
  int64_t memory_most_ = 0;  // MiB, of a program
};

const std::vector<Node::Happening> Node::kHappenings = {
    {350, &Node::change_memory}, {170, &Node::request}, {160, &Node::give_up},   {40, &Node::pause_or_resume},
    {40, &Node::leave},          {40, &Node::limit},    {15, &Node::prioritize}, {5, &Node::end},
    {4, &Node::suspend},         {6, &Node::set_turns}, {3, &Node::share},       {4, &Node::believe},
    {3, &Node::use_foreign},     {3, &Node::use_host},  {4, &Node::weigh},       {1, &Node::configure},
};

Node::Node(uint64_t seed, const Options& options)
    : options_(options), random_(seed), state_(make_state(random_config(random_, options.measured))) {
  if (random_.chance(40)) gpus_ = 1 + random_.below(4);
  if (options.gangs) gpus_ = 2 + random_.below(7);
  gangs_ = options.gangs || (gpus_ > 1 && random_.chance(40) && !options.measured);
  programs_most_ = random_.chance(50) ? 2 + random_.below(8) : 5 + random_.below(60);
  if (random_.chance(80)) limited_percent_ = options.measured ? 0 : random_.percent();
  memory_most_ = 64 + random_.amount(500);
  const bool tight = random_.chance(options.gangs ? 80 : 35);
  const auto count = static_cast<int64_t>(options.gangs ? programs_most_ / 2 : programs_most_);
  for (GpuId gpu = 0; gpu < gpus_; ++gpu) {
    const int64_t total = tight ? 300 * count + 600 + memory_most_ * (1 + random_.amount(count)) : 3000 * count + 100'000;
    feed(GpuAppeared{gpu, total * kMiB});
  }
}

std::optional<std::string> Node::run() {
  for (uint64_t step = 0; step < options_.steps && !broken_; ++step) {
    while (programs_.size() < programs_most_) join();
    draw();
    answer_later();
    let_time_pass();
  }
  return broken_;
}

Program* Node::find(ClientId id) {
  const auto at = programs_.find(id);
  return at != programs_.end() ? &at->second : nullptr;
}

// ---- one event ----

void Node::feed(const Event& event) {
  if (broken_) return;
  const Actions actions = step(*state_, event, now_);
  const std::optional<Instant> deadline = next_deadline(*state_);
  answers_.add(now_, actions, deadline);
  if (options_.print) print(event, actions, deadline);
  look();
  for (const Action& action : actions) answer(action);
}

void Node::print(const Event& event, const Actions& actions, std::optional<Instant> deadline) const {
  std::printf("%" PRIu64 " at %" PRId64 ": event %zu, deadline %" PRId64 "\n", answers_.events(), now_, event.index(),
              deadline.value_or(-1));
  for (const Action& action : actions) {
    const auto* note = std::get_if<Note>(&action);
    std::printf("  action %zu%s%s\n", action.index(), note != nullptr ? ": " : "", note != nullptr ? note->text.c_str() : "");
  }
}

void Node::look() {
  if (answers_.events() % 16 == 0) answers_.add(view(*state_, now_));
  if (!options_.check && answers_.events() % 8 != 0) return;
  if (auto broken = check_invariants(*state_)) broken_ = *broken + ", at event " + std::to_string(answers_.events());
}

void Node::answer(const Action& action) {
  std::visit(Overloaded{[&](const SendLock& lock) { granted(lock); },
                        [&](const SendDrop& asked) { later_.emplace_back([this, asked] { drop(asked); }); },
                        [&](const SendEvict& asked) { later_.emplace_back([this, asked] { evict(asked); }); },
                        [&](const SendPrefetch& asked) { later_.emplace_back([this, asked] { prefetch(asked); }); },
                        [&](const SendMemory& memory) {
                          Program* program = find(memory.client);
                          if (program == nullptr) return;
                          program->budget = memory.budget;
                          program->budget_sequence = memory.budget_sequence;
                        },
                        [&](const SendAskProgress& asked) {
                          later_.emplace_back([this, asked] {
                            if (find(asked.client) != nullptr) feed(ClientProgressed{asked.client, asked.question, answers_.events() * 7});
                          });
                        },
                        [](const SendKeep&) {}, [](const SendWait&) {}, [](const SendContention&) {}, [](const SendCeiling&) {},
                        [](const Note&) {}},
             action);
}

void Node::answer_later() {
  for (size_t count = 0; !later_.empty() && count < kAnswersMost; ++count) {
    if (random_.chance(25)) now_ += random_.amount(3 * kMillisecond);
    const std::function<void()> next = std::move(later_.front());
    later_.pop_front();
    next();
  }
}

void Node::let_time_pass() {
  const int kind = random_.percent();
  if (kind >= 98) {
    now_ += random_.amount(3 * kSecond);
  } else if (kind >= 90) {
    now_ += random_.amount(100 * kMillisecond);
  } else if (kind >= 30) {
    now_ += random_.amount(3 * kMillisecond);
  }
  std::optional<Instant> deadline = next_deadline(*state_);
  for (int ticks = 0; ticks < 3 && deadline && *deadline <= now_; ++ticks) {
    feed(Tick{});
    deadline = next_deadline(*state_);
  }
  if (!random_.chance(30) || !deadline || *deadline <= now_ || *deadline >= now_ + 200 * kMillisecond) return;
  now_ = *deadline;  // to the nanosecond
  feed(Tick{});
}

// ---- what clients do when they are asked to ----

void Node::granted(const SendLock& lock) {
  Program* program = find(lock.client);
  if (program == nullptr) return;
  const bool is_new = program->grant != lock.grant;
  program->grant = lock.grant;
  program->budget = lock.budget;
  program->budget_sequence = lock.budget_sequence;
  program->waits = false;
  if (is_new) program->paused = false;
  if (is_new || lock.budget > program->memory.resident) later_.emplace_back([this, id = lock.client] { load(id); });
}

void Node::load(ClientId id) {
  Program* program = find(id);
  if (program == nullptr || program->grant == 0) return;
  const Bytes to = std::min(program->budget, program->memory.allocated);
  if (program->memory.resident >= to) return;
  SwapProgressed done{};
  done.client = id;
  done.finished = true;
  done.id = program->grant;
  done.copied = to - std::exchange(program->memory.resident, to);
  done.elapsed = kMillisecond / 2;
  done.memory = program->memory;
  feed(done);
}

void Node::drop(const SendDrop& drop) {
  const auto asked = [&]() -> Program* {
    Program* program = find(drop.client);
    return program != nullptr && program->grant == drop.grant ? program : nullptr;
  };
  Program* program = asked();
  if (program == nullptr) return;
  if (random_.chance(4)) return feed(DrainFailed{program->id, program->grant});
  if (drop.together && random_.chance(80)) {
    feed(Drained{program->id, program->grant, drop.attempt});
    if (random_.chance(50)) return;
    program = asked();
    if (program == nullptr) return;
  }
  if (random_.chance(2)) return;  // it does not answer
  release(*program, false);
  if (program = find(drop.client); program != nullptr && random_.chance(85)) request(*program);
}

void Node::evict(const SendEvict& evict) {
  Program* program = find(evict.client);
  if (program == nullptr) return;
  SwapProgressed done{};
  done.failed = random_.chance(5);
  if (!done.failed) {
    const Bytes left = std::max<Bytes>(program->memory.resident - evict.bytes, 0);
    done.copied = program->memory.resident - left;
    program->memory.resident = left;
  }
  done.client = program->id;
  done.out = true;
  done.finished = true;
  done.id = evict.eviction;
  done.elapsed = 800'000;
  done.memory = program->memory;
  feed(done);
}

void Node::prefetch(const SendPrefetch& prefetch) {
  Program* program = find(prefetch.client);
  if (program == nullptr) return;
  const Bytes to = std::max(program->memory.resident, std::min(prefetch.budget, program->memory.allocated));
  SwapProgressed done{};
  if (program->grant == 0) done.copied = to - std::exchange(program->memory.resident, to);
  done.client = program->id;
  done.finished = true;
  done.id = prefetch.prefetch;
  done.elapsed = kMillisecond;
  done.memory = program->memory;
  done.ahead = true;
  feed(done);
}

// ---- what happens by itself ----

void Node::draw() {
  auto at = programs_.begin();
  std::advance(at, random_.below(programs_.size()));
  uint64_t drawn = random_.below(1000);
  for (const Happening& happening : kHappenings) {
    const bool left_out = options_.measured && (happening.happen == &Node::share || happening.happen == &Node::suspend);
    if (drawn < happening.weight) return left_out ? void() : (this->*happening.happen)(at->second);
    drawn -= happening.weight;
  }
}

ComputeLimit Node::random_limit(TenantId tenant, bool may_lift) {
  const int ceiling = may_lift && random_.chance(30) ? 100 : 1 + random_.percent();
  return {tenant, ceiling, random_.chance(25) ? static_cast<int>(random_.below(static_cast<uint64_t>(ceiling) + 1)) : 0};
}

void Node::join() {
  const TenantId tenant = random_.chance(75) ? 1000 + next_ : 1 + random_.below(8);
  const ProcessId process = next_;
  const bool is_gang = gangs_ && random_.chance(60);
  if (!is_gang) return join_on(static_cast<GpuId>(random_.below(gpus_)), tenant, process);
  for (GpuId gpu = 0; gpu < gpus_; ++gpu) {
    if (options_.gangs && random_.chance(60)) continue;
    join_on(gpu, tenant, process);
    if (options_.gangs && random_.chance(10)) join_on(gpu, tenant, process);
  }
}

void Node::join_on(GpuId gpu, TenantId tenant, ProcessId process) {
  Program program;
  program.id = next_++;
  program.gpu = gpu;
  program.tenant = tenant;
  program.memory.allocated = (1 + random_.amount(memory_most_)) * kMiB;
  program.memory.resident = random_.chance(20) ? program.memory.allocated / 2 : 0;
  if (random_.chance(limited_percent_)) feed(random_limit(tenant, false));
  ClientJoined joined{};
  joined.client = program.id;
  joined.gpu = gpu;
  joined.tenant = tenant;
  joined.priority = random_.chance(80) ? 0 : static_cast<int>(random_.below(3));
  joined.memory = program.memory;
  joined.swappable = random_.chance(95);
  joined.process = process;
  joined.prefetches = true;
  joined.ends = random_.chance(2);
  programs_[program.id] = program;
  feed(joined);
  if (options_.measured) feed(ClientShares{program.id, 0, true});
  if (random_.chance(10)) feed(AccountKept{tenant, gpu, now_ - kSecond, random_.amount(3 * kSecond), 5000, 0});
  if (Program* there = find(program.id); there != nullptr && random_.chance(70)) request(*there);
}

void Node::change_memory(Program& program) {
  Memory& memory = program.memory;
  if (random_.chance(70)) memory.allocated = (1 + random_.amount(memory_most_)) * kMiB;
  memory.resident = std::min(memory.allocated, program.grant != 0 ? program.budget : memory.resident);
  const Bytes wanted = program.grant != 0 && random_.chance(10) ? random_.amount(100) * kMiB : 0;
  if (random_.chance(5)) memory.unswappable = std::min(memory.allocated, 4 * kMiB);
  memory.unswappable = std::min(memory.unswappable, memory.resident);
  feed(MemoryChanged{program.id, memory, program.budget, program.budget_sequence, wanted, wanted != 0 ? answers_.events() + 1 : 0});
}

void Node::request(Program& program) {
  if (program.grant != 0 || std::exchange(program.waits, true)) return;
  feed(LockRequested{program.id});
}

void Node::release(Program& program, bool early) {
  if (program.grant == 0) return;
  LockReleased released{};
  released.client = program.id;
  released.grant = std::exchange(program.grant, 0);
  released.memory = program.memory;
  released.early = early;
  if (random_.chance(50)) released.idle = random_.amount(3 * kMillisecond);
  if (random_.chance(60)) released.used = random_.amount(20 * kMillisecond);
  if (random_.chance(50)) released.work = random_.below(100);
  program.paused = false;
  feed(released);
}

void Node::pause_or_resume(Program& program) {
  if (program.grant == 0) return;
  program.paused = !program.paused;
  if (!program.paused) return feed(LockResumed{program.id, program.grant});
  feed(LockPaused{program.id, program.grant, random_.amount(5 * kMillisecond), random_.below(50)});
}

void Node::leave(Program& program) {
  const ClientLeft left{program.id, random_.chance(60), random_.chance(50)};
  const MemoryHeld held{next_++, program.gpu, program.memory.resident};
  programs_.erase(program.id);  // `program` ends here
  feed(left);
  if (left.watched && !left.memory_freed && random_.chance(70)) {
    later_.emplace_back([this, id = left.client] { feed(ClientMemoryFreed{id}); });
  }
  if (!random_.chance(5)) return;
  feed(held);  // of another, that an earlier scheduler had
  later_.emplace_back([this, id = held.client] { feed(ClientMemoryFreed{id}); });
}

void Node::limit(Program& program) {
  if (random_.chance(limited_percent_)) feed(random_limit(program.tenant, true));
}

void Node::set_turns(Program& program) {
  const auto sharing = static_cast<TenantSharing>(random_.below(3));
  feed(TenantTurns{program.tenant, sharing, random_.chance(50) ? random_.amount(100) * kMillisecond : 0});
}

// ---- the program ----

bool parse(int argc, char** argv, Options* options) {
  const std::map<std::string, uint64_t Options::*> numbers = {
      {"--seed", &Options::seed}, {"--runs", &Options::runs}, {"--steps", &Options::steps}};
  const std::map<std::string, bool Options::*> flags = {{"--check", &Options::check},
                                                        {"--print", &Options::print},
                                                        {"--twice", &Options::twice},
                                                        {"--gangs", &Options::gangs},
                                                        {"--measured", &Options::measured}};
  for (int i = 1; i < argc; ++i) {
    if (const auto flag = flags.find(argv[i]); flag != flags.end()) {
      options->*flag->second = true;
      continue;
    }
    const auto number = numbers.find(argv[i]);
    if (number == numbers.end() || i + 1 == argc) return false;
    char* end = nullptr;
    options->*number->second = std::strtoull(argv[++i], &end, 10);
    if (end == argv[i] || *end != 0) return false;
  }
  return true;
}

// The line of a seed; nullopt: an invariant is broken.
std::optional<std::string> line_of(uint64_t seed, const Options& options) {
  Node node(seed, options);
  const std::optional<std::string> broken = node.run();
  if (!broken) return node.answers().line(seed);
  std::fprintf(stderr, "seed %" PRIu64 ": %s\n", seed, broken->c_str());
  return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: policy_answers [--seed 1] [--runs 20] [--steps 1000] [--check] [--print] [--twice] [--gangs] [--measured]\n");
    return 2;
  }
  for (uint64_t seed = options.seed; seed < options.seed + options.runs; ++seed) {
    const std::optional<std::string> line = line_of(seed, options);
    if (!line) return 1;
    std::printf("%s\n", line->c_str());
    if (!options.twice) continue;
    const std::optional<std::string> again = line_of(seed, options);
    if (again == line) continue;
    std::fprintf(stderr, "seed %" PRIu64 ": other answers when it ran again: %s\n", seed,
                 again ? again->c_str() : "an invariant is broken");
    return 1;
  }
  return 0;
}
