// A GPU of which is said how much several programs at once get done on it, in steps of a millisecond or less, and the policy that shares it
// among them. For tests of the choice of how programs share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "policy/state.h"

namespace nvshare::policy::testing {

inline constexpr Bytes kGiB = 1LL << 30;
inline constexpr Duration kMs = 1'000'000;
inline constexpr Duration kSec = 1'000 * kMs;

struct Program {
  double burst = 0;          // ms of work alone, then `pause`; 0: it never pauses
  int pause = 0;             // ms
  int varies = 0;            // so much more or less, by chance
  double every = 0;          // ms; > 0: instead of pauses, bursts are due by chance, so far apart on average, whether the last one ended
  double per_ms = 50;        // submissions of a millisecond's work
  double told_together = 1;  // what it says of them while others run, over the truth
  bool mute = false;         // answers nothing
  bool measured = true;
  uint64_t group = 0;  // not measured: those of one run together, each group in its turn; 0: together with all
  Bytes bytes = kGiB;
  TenantId tenant = 0;  // 0: its own
  // How it stands.
  GrantId grant = 0;
  bool waits = false, gone = false;
  int drops_in = 0, idle = 0, wakes_in = 0;  // steps
  double left = 0;
  Duration release = 0;
  int put_apart = 0;  // how often it was told to give the GPU up in pauses
  double work = 0, told = 0;
  Instant waits_since = 0;
  Duration longest_wait = 0;
  Instant woke_at = 0;
  std::mt19937 arrivals;       // its own, so that they are the same whatever the others do
  std::vector<Duration> took;  // from each wish to work to the end of that burst
};

// How much of one program's work `running` of them at once get done together.
using Model = std::function<double(int running)>;

// How fine the machine's time is, and how the driver switches: it gives each of those that run so long in turn where they get no more done
// together than one does. 0: it divides each step among them, which keeps bursts that overlap as far apart as they began.
struct Clockwork {
  Duration step = kMs;
  Duration slice = 0;
  unsigned seed = std::mt19937::default_seed;
};

inline double time_slicing(int running) { return running == 1 ? 1.0 : 0.9; }
inline double small_kernels(int running) { return 0.9 * running; }

class Machine {
 public:
  explicit Machine(Model model, const Config& config = {}, Bytes total = 64 * kGiB, const Clockwork& clockwork = {})
      : model_(std::move(model)), clockwork_(clockwork), random_(clockwork.seed), state_(make_state(config)) {
    feed(GpuAppeared{0, total});
  }

  ClientId add(Program program) {
    const ClientId id = programs_.size() + 1;
    if (program.tenant == 0) program.tenant = id;
    program.left = program.burst;
    program.woke_at = now_;
    program.arrivals.seed(clockwork_.seed * 1000 + static_cast<unsigned>(id));
    programs_[id] = program;
    feed(ClientJoined{id, 0, program.tenant, 0, {program.bytes, program.bytes, 0}, true, false, false});
    if (program.measured || program.group != 0) feed(ClientShares{id, program.group, program.measured});
    ask_for_lock(id);
    return id;
  }
  void end(ClientId id) {
    Program& program = programs_.at(id);
    program.gone = true;
    program.waits = false;
    program.grant = 0;
    feed(ClientLeft{id, true});
  }
  // It does nothing until then, and begins a burst.
  void begin_anew(ClientId id, Duration in) {
    programs_.at(id).left = programs_.at(id).burst;
    programs_.at(id).wakes_in = static_cast<int>(in / clockwork_.step) + 1;
  }
  void run(Duration time) {
    for (const Instant until = now_ + time; now_ < until;) pass();
  }
  double work() const {
    double sum = 0;
    for (const auto& [id, program] : programs_) sum += program.work;
    return sum;
  }
  // In programs' work alone, a millisecond each, over that time.
  double work_in(Duration time) {
    const double before = work();
    run(time);
    return (work() - before) / (static_cast<double>(time) / kMs);
  }
  GpuView gpu() const { return view(*state_, now_).at(0); }
  SharingWay chosen() const { return gpu().sharing; }
  bool bursts_apart() const { return state_->gpus.begin()->second.share_turn.bursts_apart(); }
  Duration tried() const { return tried_; }
  uint64_t asked() const { return asked_; }
  bool counting() const { return counting_; }
  Duration counted() const { return counted_; }
  Program& of(ClientId id) { return programs_.at(id); }
  const std::string& story() const { return story_; }
  uint64_t told() const { return told_; }    // messages of contention, to all
  uint64_t wakes() const { return wakes_; }  // how often the policy was woken, as it had asked
  void feed(const Event& event) {
    const Actions actions = step(*state_, event, now_);
    if (++fed_ % 8 == 0) {
      EXPECT_EQ(check_invariants(*state_), std::nullopt);
    }
    for (const Action& action : actions) {
      if (const auto* lock = std::get_if<SendLock>(&action)) take(*lock);
      if (const auto* drop = std::get_if<SendDrop>(&action)) programs_.at(drop->client).drops_in = steps(1);
      if (const auto* ask = std::get_if<SendAskProgress>(&action)) answer(*ask);
      if (const auto* told = std::get_if<SendContention>(&action)) take(*told);
    }
  }

 private:
  void take(const SendLock& lock) {
    Program& program = programs_.at(lock.client);
    if (program.grant == lock.grant) return;
    program.grant = lock.grant;
    program.waits = false;
    program.drops_in = program.idle = 0;
    program.longest_wait = std::max(program.longest_wait, now_ - program.waits_since);
    story_ += std::to_string(now_ / kMs) + ":" + std::to_string(lock.client) + " ";
  }
  void take(const SendContention& told) {
    ++told_;
    Program& program = programs_.at(told.client);
    program.put_apart += told.idle_release > 0 && told.idle_release != program.release;
    program.release = told.idle_release;
  }
  void answer(const SendAskProgress& ask) {
    ++asked_;
    counting_ = ask.counts;
    const Program& program = programs_.at(ask.client);
    if (!program.mute) events_.push_back(ClientProgressed{ask.client, ask.question, static_cast<uint64_t>(program.told)});
  }
  void ask_for_lock(ClientId id) {
    programs_.at(id).waits = true;
    programs_.at(id).waits_since = now_;
    feed(LockRequested{id});
  }
  void give_up(ClientId id, bool by_choice) {
    Program& program = programs_.at(id);
    const GrantId grant = std::exchange(program.grant, 0);
    feed(LockReleased{id, grant, {program.bytes, program.bytes, 0}, by_choice});
    if (!by_choice && program.wakes_in == 0) ask_for_lock(id);
  }
  int steps(int ms) const { return static_cast<int>(ms * kMs / clockwork_.step); }
  // Of what they get done together, in this step.
  double part_of(ClientId id, int running) {
    if (clockwork_.slice == 0 || model_(running) > 1 || running == 1) return 1.0 / running;
    return id == on_gpu_ ? 1.0 : 0.0;
  }
  void switch_programs() {
    const auto at = programs_.find(on_gpu_);
    if (at != programs_.end() && works(at->second) && now_ < slice_ends_) return;
    const auto next = [&](auto from, auto to) { return std::find_if(from, to, [](const auto& entry) { return works(entry.second); }); };
    auto found = next(programs_.upper_bound(on_gpu_), programs_.end());
    if (found == programs_.end()) found = next(programs_.begin(), programs_.end());
    if (found == programs_.end()) return;
    on_gpu_ = found->first;
    slice_ends_ = now_ + clockwork_.slice;
  }
  // Of a program whose burst ended: the next one may be due already.
  void next_arrival(Program& program) {
    const double part = (static_cast<double>(program.arrivals() >> 8U) + 0.5) / (1U << 24U);
    program.woke_at += static_cast<Duration>(-std::log(part) * program.every * kMs);
    program.wakes_in = static_cast<int>(std::max<Duration>(program.woke_at - now_, 0) / clockwork_.step);
  }
  static bool works(const Program& program) { return program.grant != 0 && program.wakes_in == 0; }
  void pass() {
    int running = 0;
    for (const auto& [id, program] : programs_) running += works(program);
    switch_programs();
    const double step = static_cast<double>(clockwork_.step) / kMs;
    for (auto& [id, program] : programs_) {
      if (!works(program)) continue;
      const double done = model_(running) * part_of(id, running) * step;
      program.work += done;
      program.told += done * program.per_ms * (running > 1 ? program.told_together : 1);
      if (program.burst == 0) continue;
      program.left -= done;
      if (program.left > 0) continue;
      program.left += program.burst;
      program.took.push_back(now_ + clockwork_.step - program.woke_at);
      if (program.every > 0) {
        next_arrival(program);
        continue;
      }
      const int varied =
          program.varies == 0 ? 0 : static_cast<int>(random_() % static_cast<unsigned>(2 * program.varies + 1)) - program.varies;
      program.wakes_in = steps(program.pause + varied) + 1;
    }
    if (counting_ && gpu().sharing_tried) tried_ += clockwork_.step;
    if (counting_) counted_ += clockwork_.step;
    now_ += clockwork_.step;
    for (; !events_.empty(); events_.pop_front()) feed(events_.front());
    const std::optional<Instant> deadline = next_deadline(*state_);
    wakes_ += deadline && *deadline <= now_;
    feed(Tick{});
    for (auto& [id, program] : programs_) {
      if (program.gone) continue;
      const bool woke = program.wakes_in > 0 && --program.wakes_in == 0;
      if (woke && program.every == 0) program.woke_at = now_;
      if (program.grant != 0 && program.drops_in > 0 && --program.drops_in == 0) {
        give_up(id, false);
      } else if (program.grant != 0 && program.wakes_in > 0 && program.release > 0 && ++program.idle > program.release / clockwork_.step) {
        give_up(id, true);
      } else if (woke && program.grant == 0 && !program.waits) {
        ask_for_lock(id);
      }
      if (program.wakes_in == 0) program.idle = 0;
    }
  }

  Model model_;
  Clockwork clockwork_;
  std::mt19937 random_;
  ClientId on_gpu_ = 0;
  Instant slice_ends_ = 0;
  StatePointer state_;
  Instant now_ = 100 * kSec;
  std::map<ClientId, Program> programs_;
  std::deque<Event> events_;
  Duration tried_ = 0;
  uint64_t asked_ = 0;
  bool counting_ = false;
  Duration counted_ = 0;
  uint64_t fed_ = 0, told_ = 0, wakes_ = 0;
  std::string story_;
};

}  // namespace nvshare::policy::testing
