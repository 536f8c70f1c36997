// A GPU and programs under compute limits, on virtual time and from a seed: kernels that cannot be cut short, work in flight that a drop
// has to wait for, messages that take time, a driver whose own time-slicing loses a tenth when two work at once. What it measures is work
// done, not what the policy believes to have billed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "policy/testing/test_ledger.h"

namespace nvshare::policy::testing {

inline constexpr Duration kUs = 1'000;
inline constexpr Duration kMsec = 1'000'000;
inline constexpr Duration kSeconds = 1'000'000'000;

struct Job {
  enum class State {
    kAway,
    kWaiting,
    kGranted,
    kLoading,
    kBusy,
    kDraining,
    kPausing,
    kPaused
  };  // kPausing: holds the lock; kPaused: and has said so
  ClientId id = 0;
  TenantId tenant = 0;
  Duration kernel = kMsec;
  Duration on = 0, off = 0;          // of work and pause; 0: never pauses
  Duration in_flight = 10 * kMsec;   // work submitted ahead, at most
  Duration in_flight_least = 0;      // and at least
  Duration patience = 2 * kSeconds;  // a drain that takes longer is given up
  Bytes memory = 0;

  State state = State::kAway;
  bool alive = true;
  GrantId grant = 0;
  Bytes budget = 0, resident = 0;
  bool moving = false;
  double done = 0;    // work, in nanoseconds of a GPU of its own
  double target = 0;  // of `done`, where the burst or the drain ends
  double burst_end = 0;
  uint64_t activity = 0;  // timers of an earlier one are void
  Duration idle_release = 0, pause_after = 0;
  bool lies = false;                    // says that it used nothing of its turns
  bool boasts = false;                  // says of its turns alone that it did ten times as much
  Instant first_use = 0, last_use = 0;  // in this turn
  double done_before = 0;               // it
  uint64_t drops = 0, failed_drains = 0, bursts = 0, pauses = 0;
  bool late = false;     // its pause before was
  bool first = false;    // it drains before others work
  Instant switched = 0;  // when the GPU has switched to it
};

class QuotaWorld {
 public:
  QuotaWorld(const Config& config, uint64_t seed);

  Job& add(TenantId tenant, Duration kernel = kMsec, Bytes memory = 0);
  Job& add_bursty(TenantId tenant, Duration on, Duration off, Duration kernel = kMsec);
  void remove(ClientId id);
  // A bursty program, in place of its bursts: works until it is told to end, and pauses until it is told to begin.
  void begin_work(ClientId id);
  void end_work(ClientId id);
  void limit(TenantId tenant, int percent);    // as the node grants it: a reservation, and the ceiling; 100: none
  void ceiling(TenantId tenant, int percent);  // as a tenant sets it for itself
  void set(const ComputeLimit& limit);
  void end(TenantId tenant) { feed(TenantEnds{tenant, true}); }
  void suspend_tenant(TenantId tenant, bool suspended) { feed(TenantSuspended{tenant, suspended}); }
  void set_turns(const TenantTurns& turns) { feed(turns); }
  void set_config(const Config& config);
  void talk_of_memory(Duration every);  // from now on each program says so often what it has, in turns
  // A new scheduler, to which all register again. It knows what the former one had on the accounts, or (false) not.
  void restart(bool keeps_accounts = true);
  void at(Instant when, std::function<void()> what);
  void run_for(Duration time);

  Instant now() const { return now_; }
  double work(TenantId tenant) const;            // done so far, of all its jobs
  double idle() const { return idle_; }          // nanoseconds in which the GPU did no work
  double swapping() const { return swapping_; }  // of them: while memory moved
  Job& job(ClientId id) { return jobs_.at(id); }
  const std::map<ClientId, Job>& jobs() const { return jobs_; }
  GpuView gpu() const { return view(*state_, now_)[0]; }
  TenantView tenant(TenantId id) const;
  const std::optional<std::string>& broken() const { return broken_; }
  std::string describe() const;
  uint64_t steps() const { return steps_; }
  // Before the programs see them: to prove that the judge can say no.
  void tamper_with(std::function<void(Actions&)> tamper) { tamper_ = std::move(tamper); }

  double efficiency_together = 0.9;
  bool drains_go_first = false;  // what a program that works alone has in flight as it is asked to drop is done before others' work
  Duration switch_takes = 0;     // of the GPU from one program's work to another's
  Bytes bandwidth = 10LL << 30;
  bool says_what_it_used = true;    // programs say of each turn how long they used it
  bool says_what_it_did = true;     // and how much they submitted
  Duration start_delay = 75 * kUs;  // from the grant's arrival to the first work, about
  Duration resume_delay = 20 * kUs;
  Duration notice_delay = 0;  // from the end of the last work to the release
  Duration seen_within = 0;   // of the end of a burst: programs know of it at most so much later
  Duration launch_takes = 0;  // of each turn: from when the program submits to when the GPU works
  Duration launch_known = 0;  // so much of that they know of, and say with each pause
  Duration pause_delay = 0;   // the message of a pause takes at least so long
  int late_each = 0;          // of so many pauses one is late_by longer, and the next one shorter; 0: none
  Duration late_by = 700 * kUs;
  Duration idle_claim = 0;  // what programs say, when they give the lock up, of how long they did not use it

 private:
  bool works(const Job& job) const { return job.state == Job::State::kBusy || job.state == Job::State::kDraining; }
  double speed(const Job& job) const;
  Duration pause_of(Job& job);
  Duration between(Duration low, Duration high);
  void advance_to(Instant when);
  void feed(const Event& event);
  void deliver(const Action& action);
  void tell(Job& job, Event event);
  void later(Job& job, Duration delay, std::function<void(Job&)> what);
  void want(Job& job);
  void begin(Job& job);
  void work(Job& job);
  void move_in(Job& job);
  void drop(Job& job, GrantId grant);
  void pause(Job& job);
  void go_on(Job& job);
  void release(Job& job, bool early);
  std::optional<Duration> used(const Job& job) const;  // as it says
  uint64_t submitted(const Job& job) const;            // in this turn, as it says
  Instant arrival(const Job& job);                     // of a message of its that goes out now
  void reached_target(Job& job);

  Config config_;
  StatePointer state_;
  Ledger ledger_;
  std::mt19937_64 random_;
  Instant now_ = 1000 * kSeconds;
  std::map<std::pair<Instant, uint64_t>, std::function<void()>> queue_;
  uint64_t order_ = 0, steps_ = 0, epoch_ = 0;
  std::map<ClientId, Job> jobs_;
  std::map<TenantId, ComputeLimit> limits_;

  std::map<ClientId, Instant> last_told_, last_heard_;
  ClientId next_id_ = 1;
  ClientId worked_ = 0;  // alone, last
  ClientId talked_ = 0;  // of its memory last
  double idle_ = 0, swapping_ = 0;
  std::function<void(Actions&)> tamper_;
  std::optional<std::string> broken_;
  std::deque<std::pair<Instant, Action>> history_;
};

}  // namespace nvshare::policy::testing
