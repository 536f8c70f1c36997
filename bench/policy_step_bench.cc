// What one event costs the policy, by the number of clients: events per second of processor time, with everything fitting ("running"), with
// one client running at a time and all others waiting ("waiting"), beside compute limits ("limited"), with half of the clients waiting for
// the memory of the other half, whose work cannot drain ("stuck"), with so many contexts that nobody fits who comes ("unfit"), and with
// programs on two of eight GPUs each: nearly all fit, but some could come to wait for each other ("gangs"), or a quarter of them fits at a
// time and the others wait ("queued"), or most run, whose turns began one after the other, and some wait for the first to end
// ("rotating"); or on two of 64 GPUs, which they tie together, and all fit ("tied"). Virtual time, a fixed seed.
//
//   policy_step_bench [--seconds 1] [--clients 10,100,1000,10000] [--shapes running,waiting,limited,stuck,unfit,gangs,queued,rotating,tied]
//                     [--sharing auto] [--json FILE] [--turns 0]
//
// --sharing auto: all clients share as measured, as by default, and say how much they have done when they are asked; together: none is.
// --turns N: so many events of the mix instead of a time, and a hash of all that the policy answered, to compare two builds by.
//
// Of 100 events 70 are changes of memory, 10 requests for the lock, 10 releases, 5 joins or leaves, 5 priorities, limits or swaps; what the
// policy asks for (drops, movements) is answered at once, and counts as an event.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "action_hash.h"
#include "policy/policy.h"

namespace {

using namespace nvshare::policy;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kOverhead = 300 * kMiB;
constexpr Bytes kSmall = 64 * kMiB;
constexpr Bytes kLarge = 10240 * kMiB;
constexpr Duration kBetweenEvents = 1'000'000;
constexpr Duration kArrivals = 20'000'000'000;  // of all, where they come one after the other
constexpr size_t kClientsPerGpu = 2000;         // beyond that many they are spread over kGpus
constexpr size_t kGpus = 64;
constexpr size_t kGpusOfGangs = 8;

double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

enum class Shape { kRunning, kWaiting, kLimited, kStuck, kUnfit, kGangs, kQueued, kRotating, kTied };

const char* name_of(Shape shape) {
  switch (shape) {
    case Shape::kRunning:
      return "running";
    case Shape::kWaiting:
      return "waiting";
    case Shape::kLimited:
      return "limited";
    case Shape::kStuck:
      return "stuck";
    case Shape::kUnfit:
      return "unfit";
    case Shape::kGangs:
      return "gangs";
    case Shape::kQueued:
      return "queued";
    case Shape::kRotating:
      return "rotating";
    case Shape::kTied:
      return "tied";
  }
  return "";
}

// The GPU's, for so many clients and their contexts.
Bytes total_of(Shape shape, Bytes clients) {
  const Bytes contexts = clients * kOverhead, ample = contexts * 5 / 4;
  switch (shape) {
    case Shape::kRunning:
    case Shape::kLimited:
    case Shape::kTied:
      return ample + 2 * clients * kSmall;
    case Shape::kWaiting:
      return ample + kLarge + kLarge / 2;
    case Shape::kStuck:
      return contexts + 500 * kMiB + clients * kSmall / 2;
    case Shape::kUnfit:
      return contexts - kOverhead + 500 * kMiB + kSmall / 2;  // so many and one more
    case Shape::kGangs:
      return ample + clients * kSmall / 4;
    case Shape::kQueued:
      return ample + clients * kLarge / 4;
    case Shape::kRotating:
      return contexts + 500 * kMiB + clients * kSmall * 3 / 4;
  }
  return 0;
}

bool in_gangs(Shape shape) {
  return shape == Shape::kGangs || shape == Shape::kQueued || shape == Shape::kRotating || shape == Shape::kTied;
}

size_t gpus_of(Shape shape, size_t clients) {
  if (shape == Shape::kTied) return kGpus;
  if (in_gangs(shape)) return kGpusOfGangs;
  return clients > kClientsPerGpu ? kGpus : 1;
}

Bytes memory_of(Shape shape) { return shape == Shape::kWaiting || shape == Shape::kQueued ? kLarge : kSmall; }

struct Program {
  ClientId id = 0;
  GpuId gpu = 0;
  TenantId tenant = 0;
  Memory memory;
  GrantId grant = 0;
  Bytes budget = 0;
  uint64_t budget_sequence = 0;
  bool waits = false;
};

// Programs on virtual time; the only caller of the policy.
class World {
 public:
  World(Shape shape, size_t clients, bool measured, bool hashes)
      : shape_(shape), measured_(measured), hashes_(hashes), gpus_(gpus_of(shape, clients)), state_(make_state(Config())) {
    const auto per_gpu = static_cast<Bytes>(clients / gpus_ + 1);
    for (GpuId gpu = 0; gpu < gpus_; ++gpu) step_in(GpuAppeared{gpu, total_of(shape, per_gpu)});
    for (size_t i = 0; i < clients; ++i) join(programs_.emplace_back());
    for (Program& program : programs_) {
      step_in(LockRequested{program.id});
      program.waits = program.grant == 0;
      answer();
      if (shape_ == Shape::kRotating) pass(kArrivals / static_cast<Duration>(clients));
    }
  }

  void next() {
    Program& program = programs_[random() % programs_.size()];
    const uint64_t kind = random() % 100;
    if (kind < 70) {
      change_memory(program);
    } else if (kind < 80) {
      request(program);
    } else if (kind < 90) {
      release(program, true);
    } else if (kind < 95) {
      step_in(ClientLeft{program.id, true});
      join(program);
    } else {
      change_tenant(program);
    }
    answer();
    pass(kBetweenEvents);
  }

  uint64_t events() const { return events_; }
  uint64_t hash() const { return hash_.value(); }

 private:
  uint64_t random() {
    seed_ ^= seed_ << 13;
    seed_ ^= seed_ >> 7;
    seed_ ^= seed_ << 17;
    return seed_;
  }

  void pass(Duration time) {
    now_ += time;
    if (const auto deadline = next_deadline(*state_); deadline && *deadline <= now_) step_in(Tick{});
    answer();
  }

  void join(Program& program) {
    const size_t index = static_cast<size_t>(&program - programs_.data());
    if (program.id != 0) index_[program.id] = SIZE_MAX;
    program = {next_id_, static_cast<GpuId>(index % gpus_), next_id_, {}, 0, 0, 0, false};
    const bool in_gang = in_gangs(shape_);
    if (in_gang) {  // two in a row are one program's, on a GPU and the next one
      program.gpu = static_cast<GpuId>((index / 2 + index % 2) % gpus_);
      program.tenant = index / 2 + 1;
    }
    ++next_id_;
    index_.resize(next_id_, SIZE_MAX);
    index_[program.id] = index;
    program.memory.allocated = memory_of(shape_);
    if (shape_ == Shape::kLimited && index % 10 == 0) step_in(ComputeLimit{program.tenant, 50});
    ClientJoined joined{program.id, program.gpu, program.tenant, 0, program.memory, true, false, false};
    if (in_gang) joined.process = program.tenant;
    step_in(joined);
    if (measured_) step_in(ClientShares{program.id, 0, true});
  }

  void change_memory(Program& program) {
    program.memory.allocated = memory_of(shape_) - static_cast<Bytes>(random() % 16) * kMiB;
    program.memory.resident = program.grant != 0 ? program.memory.allocated : std::min(program.memory.resident, program.memory.allocated);
    step_in(MemoryChanged{program.id, program.memory, 0, 0, 0, 0});
  }

  void request(Program& program) {
    if (program.grant != 0 || program.waits) return release(program, true);
    program.waits = true;
    step_in(LockRequested{program.id});
  }

  void release(Program& program, bool early) {
    if (program.grant == 0) {
      if (early && !program.waits) request(program);
      return;
    }
    const GrantId grant = std::exchange(program.grant, 0);
    step_in(LockReleased{program.id, grant, program.memory, early, 0, std::nullopt});
  }

  void change_tenant(Program& program) {
    if (shape_ == Shape::kLimited) {
      step_in(ComputeLimit{program.tenant, static_cast<int>(random() % 100) + 1});
    } else if (program.grant != 0) {
      program.memory.resident = program.memory.allocated;
      step_in(SwapProgressed{program.id, false, true, false, program.grant, program.memory.resident, 1'000'000, program.memory});
    } else {
      step_in(TenantPriority{program.tenant, static_cast<int>(random() % 3)});
    }
  }

  // As the library does when others wait for memory: it holds itself to what is in use.
  void make_room(Program& program) {
    if (program.grant == 0 || program.memory.resident < program.memory.allocated || program.budget <= program.memory.resident) return;
    program.budget = program.memory.resident;
    step_in(MemoryChanged{program.id, program.memory, program.budget, program.budget_sequence, 0, 0});
  }

  Program* find(ClientId id) { return index_[id] == SIZE_MAX ? nullptr : &programs_[index_[id]]; }

  void step_in(const Event& event) {
    const Actions actions = step(*state_, event, now_);
    ++events_;
    if (hashes_) hash_.add(now_, actions);
    for (const Action& action : actions) {
      if (const auto* lock = std::get_if<SendLock>(&action)) {
        if (Program* program = find(lock->client)) {
          const bool is_new = program->grant != lock->grant;
          program->grant = lock->grant;
          program->budget = lock->budget;
          program->budget_sequence = lock->budget_sequence;
          program->waits = false;
          if (is_new || lock->budget > program->memory.resident) loads_.push_back({lock->client, lock->budget});
        }
      } else if (const auto* drop = std::get_if<SendDrop>(&action)) {
        drops_.push_back(drop->client);
      } else if (const auto* evict = std::get_if<SendEvict>(&action)) {
        evictions_.push_back(*evict);
      } else if (const auto* contention = std::get_if<SendContention>(&action)) {
        if (contention->memory_waiters > 0) rooms_.push_back(contention->client);
      } else if (const auto* question = std::get_if<SendAskProgress>(&action)) {
        questions_.push_back(*question);
      }
    }
  }

  // What programs say to what they were told.
  void answer() {
    while (!drops_.empty() || !evictions_.empty() || !loads_.empty() || !rooms_.empty() || !questions_.empty()) {
      if (!questions_.empty()) {  // whoever has the lock works all the time
        const SendAskProgress asked = questions_.front();
        questions_.pop_front();
        const Program* program = find(asked.client);
        if (program != nullptr)
          step_in(ClientProgressed{asked.client, asked.question, program->grant != 0 ? static_cast<uint64_t>(now_ / kBetweenEvents) : 0});
      } else if (!rooms_.empty()) {
        Program* program = find(rooms_.front());
        rooms_.pop_front();
        if (program != nullptr) make_room(*program);
      } else if (!drops_.empty()) {
        Program* program = find(drops_.front());
        drops_.pop_front();
        if (program == nullptr || program->grant == 0) continue;
        if (shape_ == Shape::kStuck) {
          step_in(DrainFailed{program->id, program->grant});
          continue;
        }
        release(*program, false);
        program->waits = true;
        step_in(LockRequested{program->id});
      } else if (!evictions_.empty()) {
        const SendEvict evict = evictions_.front();
        evictions_.pop_front();
        Program* program = find(evict.client);
        if (program == nullptr) continue;
        program->memory.resident = std::max<Bytes>(program->memory.resident - evict.bytes, 0);
        step_in(SwapProgressed{program->id, true, true, false, evict.eviction, evict.bytes, 1'000'000, program->memory});
      } else {
        const auto [client, budget] = loads_.front();
        loads_.pop_front();
        Program* program = find(client);
        if (program == nullptr || program->grant == 0 || program->memory.resident >= std::min(budget, program->memory.allocated)) continue;
        program->memory.resident = std::min(budget, program->memory.allocated);
        const bool finished = program->memory.resident == program->memory.allocated;
        step_in(SwapProgressed{client, false, finished, false, program->grant, program->memory.resident, 1'000'000, program->memory});
      }
    }
  }

  const Shape shape_;
  const bool measured_;
  const bool hashes_;
  ActionHash hash_;
  const size_t gpus_;
  StatePointer state_;
  Instant now_ = 1'000'000'000;
  std::vector<Program> programs_;
  std::vector<size_t> index_;
  ClientId next_id_ = 1;
  uint64_t seed_ = 88172645463325252ULL;
  uint64_t events_ = 0;
  std::deque<ClientId> drops_;
  std::deque<SendEvict> evictions_;
  std::deque<std::pair<ClientId, Bytes>> loads_;
  std::deque<ClientId> rooms_;
  std::deque<SendAskProgress> questions_;
};

struct Options {
  double seconds = 1;
  int64_t turns = 0;  // 0: `seconds`
  std::string clients = "10,100,1000,10000";
  std::string shapes = "running,waiting,limited,stuck,unfit,gangs,queued,rotating,tied";
  bool measured = true;
  std::string json;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds") {
      options.seconds = std::atof(argv[i + 1]);
    } else if (flag == "--turns") {
      options.turns = std::atoll(argv[i + 1]);
    } else if (flag == "--clients") {
      options.clients = argv[i + 1];
    } else if (flag == "--shapes") {
      options.shapes = argv[i + 1];
    } else if (flag == "--sharing") {
      const std::string way = argv[i + 1];
      if (way != "auto" && way != "together") return false;
      options.measured = way == "auto";
    } else if (flag == "--json") {
      options.json = argv[i + 1];
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && options.seconds > 0;
}

// What the programs of this file cost is in the figures. The clock hardly is: it is read once in a millisecond or so, as it is dear where
// the machine is a virtual one.
std::string measure(Shape shape, size_t clients, const Options& options) {
  double begin = cpu_seconds();
  World world(shape, clients, options.measured, options.turns > 0);
  const uint64_t before = world.events();
  const double joined_us = (cpu_seconds() - begin) * 1e6 / static_cast<double>(before);
  begin = cpu_seconds();
  double took = 0;
  int64_t turn = 0, batch = 1;
  const auto goes_on = [&] { return options.turns > 0 ? turn < options.turns : took < options.seconds; };
  while (goes_on()) {
    for (const int64_t end = turn + batch; turn < end && goes_on(); ++turn) world.next();
    const double former = std::exchange(took, cpu_seconds() - begin);
    if (took - former < 1e-3) batch *= 2;
  }
  const auto events = static_cast<double>(world.events() - before);
  std::printf("%-8s %6zu clients: %10.0f events/s, %9.2f us each; while they joined %9.2f us each\n", name_of(shape), clients,
              events / took, took * 1e6 / events, joined_us);
  if (options.turns > 0) std::printf("  answers %016lx\n", world.hash());
  std::fflush(stdout);
  return "{\"shape\": \"" + std::string(name_of(shape)) + "\", \"sharing\": \"" + (options.measured ? "auto" : "together") +
         "\", \"clients\": " + std::to_string(clients) + ", \"events\": " + std::to_string(static_cast<int64_t>(events)) +
         ", \"events_per_second\": " + std::to_string(static_cast<int64_t>(events / took)) +
         ", \"us_per_event\": " + std::to_string(took * 1e6 / events) + ", \"us_per_event_of_joins\": " + std::to_string(joined_us) + "}";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: policy_step_bench [--seconds 1] [--clients 10,100] [--shapes running,waiting,limited,stuck,unfit,gangs,queued,rotating,"
        "tied] "
        "[--sharing auto|together] [--json FILE] [--turns 0]\n");
    return 2;
  }
  std::string rows;
  for (const Shape shape : {Shape::kRunning, Shape::kWaiting, Shape::kLimited, Shape::kStuck, Shape::kUnfit, Shape::kGangs, Shape::kQueued,
                            Shape::kRotating, Shape::kTied}) {
    if (options.shapes.find(name_of(shape)) == std::string::npos) continue;
    for (const char* at = options.clients.c_str(); *at != 0;) {
      char* end = nullptr;
      const size_t clients = std::strtoull(at, &end, 10);
      if (end == at || clients == 0) return 2;
      rows += (rows.empty() ? "  " : ",\n  ") + measure(shape, clients, options);
      at = *end == ',' ? end + 1 : end;
    }
  }
  if (options.json.empty()) return 0;
  FILE* file = std::fopen(options.json.c_str(), "we");
  if (file == nullptr) return 1;
  std::fprintf(file, "{\"rows\": [\n%s\n]}\n", rows.c_str());
  return std::fclose(file) == 0 ? 0 : 1;
}
