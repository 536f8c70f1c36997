#include "fleet/fleet.h"

#include <algorithm>
#include <memory>
#include <queue>

namespace nvshare::fleet {
namespace {

Nanoseconds nanoseconds_of(double seconds) { return static_cast<Nanoseconds>(seconds * kSecond) + 1; }

struct Event {
  Nanoseconds when;
  uint64_t order;
  int job;  // that ends; -1: an event of a GPU
  int gpu;
  GpuEvent inner;
  bool operator>(const Event& other) const { return when != other.when ? when > other.when : order > other.order; }
};

class Fleet {
 public:
  Fleet(const Plan& plan, const std::vector<Job>& jobs)
      : plan_(plan),
        jobs_(jobs),
        offers_(rules_of(plan.machine.memory, plan.way == Way::kNvshare ? plan.oversubscription : 1, plan.way == Way::kExclusive),
                plan.nodes, plan.gpus_per_node),
        gpus_(static_cast<size_t>(plan.nodes) * static_cast<size_t>(plan.gpus_per_node)),
        states_(jobs.size()),
        end_(plan.warm_up + plan.counted) {
    for (const Kind kind : kKinds) outcome_.kinds[kind];
  }

  Outcome run() {
    size_t next = 0;
    while (true) {
      const Nanoseconds arrival = next < jobs_.size() ? jobs_[next].arrival : end_;
      const Nanoseconds event = events_.empty() ? end_ : events_.top().when;
      if (std::min(arrival, event) >= end_) break;
      if (arrival <= event) {
        now_ = arrival;
        arrive(static_cast<int>(next++));
      } else {
        const Event happening = events_.top();
        events_.pop();
        now_ = happening.when;
        handle(happening);
      }
      check();
    }
    now_ = end_;
    sum_up(next);
    return std::move(outcome_);
  }

 private:
  enum class Stage { kComing, kWaiting, kRunning, kEnded };
  struct JobState {
    Stage stage = Stage::kComing;
    std::vector<int> gpus;
    Nanoseconds started = 0;
    policy::ClientId client = 0;
  };
  struct GpuSlot {
    SharedGpuHooks hooks;
    std::unique_ptr<SharedGpu> shared;
    Nanoseconds taken_since = 0;
  };

  bool counts(const Job& job) const { return job.arrival >= plan_.warm_up; }
  Figures& figures(const Job& job) { return outcome_.kinds[job.kind]; }
  const Job& job(int index) const { return jobs_[static_cast<size_t>(index)]; }
  JobState& state(int index) { return states_[static_cast<size_t>(index)]; }

  void push(Nanoseconds when, int job, int gpu, GpuEvent inner) { events_.push({when, ++order_, job, gpu, inner}); }

  void arrive(int index) {
    const Job& made = job(index);
    if (counts(made)) ++figures(made).arrived;
    // Single GPUs from the first node on, several from the last: whole nodes stay free for longer.
    std::vector<int> found;
    if (made.gpus == 1) found = offers_.place(made);
    for (int node = plan_.nodes - 1; made.gpus > 1 && node >= 0 && found.empty(); --node) found = offers_.place_on(node, made);
    if (!found.empty()) return start(index, std::move(found));
    state(index).stage = Stage::kWaiting;
    waiting_.push_back(index);
  }

  void start(int index, std::vector<int> found) {
    const Job& made = job(index);
    JobState& now = state(index);
    now.stage = Stage::kRunning;
    now.started = now_;
    now.gpus = std::move(found);
    if (counts(made)) {
      ++figures(made).started;
      figures(made).waits.push_back(static_cast<double>(now_ - made.arrival) / kSecond);
    }
    for (const int gpu : now.gpus) {
      if (offers_.taken()[static_cast<size_t>(gpu)].claims == 1) gpus_[static_cast<size_t>(gpu)].taken_since = now_;
    }
    if (plan_.way == Way::kNvshare && made.cores_asked < 100) return start_shared(index);
    push(now_ + alone(made), index, 0, {});
  }

  void start_shared(int index) {
    const Job& made = job(index);
    const int gpu = state(index).gpus[0];
    GpuSlot& slot = gpus_[static_cast<size_t>(gpu)];
    if (!slot.shared) {
      slot.hooks = {[this, gpu](Nanoseconds when, GpuEvent inner) { push(when, -1, gpu, inner); },
                    [this](Nanoseconds from, Nanoseconds to, double rate) { count_work(from, to, rate); },
                    [this](Burst burst) { count_burst(burst.kind, burst.delay, now_); }, [this](int done) { push(now_, done, 0, {}); }};
      slot.shared = std::make_unique<SharedGpu>(plan_.machine, slot.hooks, now_);
      ++outcome_.shared_gpus;
    }
    if (is_session(made.kind)) push(now_ + nanoseconds_of(made.seconds), index, 0, {});
    state(index).client = slot.shared->join(index, made, now_);
  }

  // Nobody is in its way: how long it takes with what it asked for.
  Nanoseconds alone(const Job& made) {
    Random random(made.seed);
    const double full = rate_of(made.kind);
    const double rate = plan_.way == Way::kExclusive ? full : std::min(full, made.cores_asked / 100.0);
    const Nanoseconds last = is_session(made.kind) ? now_ + nanoseconds_of(made.seconds) : end_;
    Nanoseconds at = now_;
    for (double left = made.seconds; left > 1e-6 && at < last;) {
      Phase phase = next_phase(made.kind, random);
      if (!is_session(made.kind)) {
        phase.work = std::min(phase.work, left * full);
        left -= phase.work / full;
        phase.idle = std::min(phase.idle, std::max(left, 0.0));
        left -= phase.idle;
      }
      const Nanoseconds done = at + nanoseconds_of(phase.work / rate);
      count_work(at, std::min(done, last), rate * made.gpus);
      if (done <= last) count_burst(made.kind, phase.work / rate - phase.work / full, done);
      at = done + nanoseconds_of(phase.idle);
    }
    if (is_session(made.kind)) return last - now_;
    return at - now_;  // beyond end_: it does not end
  }

  void handle(const Event& event) {
    if (event.job < 0) return gpus_[static_cast<size_t>(event.gpu)].shared->handle(event.inner, now_);
    end(event.job);
  }

  void end(int index) {
    const Job& made = job(index);
    JobState& now = state(index);
    if (now.stage != Stage::kRunning) return;
    now.stage = Stage::kEnded;
    if (now.client != 0) gpus_[static_cast<size_t>(now.gpus[0])].shared->leave(now.client, now_);
    if (now_ >= plan_.warm_up) ++figures(made).ended;
    offers_.give_back(made, now.gpus);
    for (const int gpu : now.gpus) {
      if (offers_.taken()[static_cast<size_t>(gpu)].claims == 0) count_taken(gpus_[static_cast<size_t>(gpu)].taken_since, now_);
    }
    serve_waiting(offers_.node_of(now.gpus[0]));
  }

  void serve_waiting(int node) {
    size_t kept = 0, at = 0;
    for (; at < waiting_.size() && offers_.has_room(node); ++at) {
      std::vector<int> found = offers_.place_on(node, job(waiting_[at]));
      if (found.empty()) {
        waiting_[kept++] = waiting_[at];
      } else {
        start(waiting_[at], std::move(found));
      }
    }
    if (kept != at)
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(kept), waiting_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  double counted(Nanoseconds from, Nanoseconds to) const {
    return static_cast<double>(std::max<Nanoseconds>(std::min(to, end_) - std::max(from, plan_.warm_up), 0)) / kSecond;
  }
  void count_work(Nanoseconds from, Nanoseconds to, double rate) { outcome_.busy_seconds += counted(from, to) * rate; }
  void count_taken(Nanoseconds from, Nanoseconds to) { outcome_.taken_seconds += counted(from, to); }
  void count_burst(Kind kind, double delay, Nanoseconds when) {
    if (when >= plan_.warm_up && when < end_) outcome_.kinds[kind].delays.push_back(delay);
  }

  void check() {
    if (plan_.checks && outcome_.broken.empty() && !offers_.holds()) outcome_.broken = "a GPU's sums pass what it offers";
  }

  void sum_up(size_t arrived) {
    for (size_t i = 0; i < arrived; ++i) {
      const Job& made = jobs_[i];
      JobState& now = states_[i];
      if (now.stage == Stage::kWaiting && counts(made)) {
        ++figures(made).waiting_at_end;
        figures(made).waits.push_back(static_cast<double>(end_ - made.arrival) / kSecond);
      }
      if (now.stage != Stage::kRunning) continue;
      ++figures(made).running_at_end;
      if (now.client != 0) gpus_[static_cast<size_t>(now.gpus[0])].shared->leave(now.client, end_);
    }
    outcome_.gpu_seconds = static_cast<double>(gpus_.size()) * static_cast<double>(plan_.counted) / kSecond;
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      if (offers_.taken()[gpu].claims > 0) count_taken(gpus_[gpu].taken_since, end_);
      if (!gpus_[gpu].shared) continue;
      const SharedGpu::Sums& sums = gpus_[gpu].shared->sums();
      outcome_.policy.moved_out += sums.moved_out;
      outcome_.policy.moved_in += sums.moved_in;
      outcome_.policy.turns += sums.turns;
      outcome_.policy.drops += sums.drops;
      outcome_.policy.steps += sums.steps;
      outcome_.policy.host_peak = std::max(outcome_.policy.host_peak, sums.host_peak);
      if (outcome_.broken.empty()) outcome_.broken = sums.broken;
    }
  }

  const Plan& plan_;
  const std::vector<Job>& jobs_;
  Offers offers_;
  std::vector<GpuSlot> gpus_;
  std::vector<JobState> states_;
  std::vector<int> waiting_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  Nanoseconds now_ = 0;
  Nanoseconds end_;
  Outcome outcome_;
};

}  // namespace

const char* name_of(Way way) {
  switch (way) {
    case Way::kExclusive:
      return "exclusive";
    case Way::kFractions:
      return "fractions";
    case Way::kNvshare:
      return "nvshare";
  }
  return "";
}

Outcome run_fleet(const Plan& plan, const std::vector<Job>& jobs) { return Fleet(plan, jobs).run(); }

}  // namespace nvshare::fleet
