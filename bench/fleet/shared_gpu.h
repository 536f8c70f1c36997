// One GPU that jobs share: the scheduler's own policy on virtual time, and clients that load, work, pause, drain and move out.
//
// A client works at a constant rate, at most its cores: a limit holds in its turns, too, which is against nvshare (its scheduler lets a
// limited program run faster in turns and makes them shorter). Sums of cores are at most 100, so those that run together do not slow
// each other.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "fleet/jobs.h"
#include "policy/policy.h"

namespace nvshare::fleet {

struct GpuEvent {
  enum class What { kWorkDone, kIdleOver, kLoaded, kMovedOut, kDrained, kIdleTooLong, kTick } what;
  policy::ClientId client;
  uint64_t version;
};

// What a client did while it was there, for the fleet's sums.
struct Burst {
  Kind kind;
  double delay;  // seconds beyond those that it takes alone, at full rate
};

struct SharedGpuHooks {
  std::function<void(Nanoseconds when, GpuEvent event)> at;
  std::function<void(Nanoseconds from, Nanoseconds to, double rate)> worked;
  std::function<void(Burst burst)> burst;
  std::function<void(int job)> finished;
};

class SharedGpu {
 public:
  struct Machine {
    int64_t memory = 80 * kGiB;
    double link = 25e9;  // bytes a second, each way
    int64_t host = 128 * kGiB;
  };
  struct Sums {
    int64_t moved_out = 0, moved_in = 0;  // bytes
    int64_t host = 0, host_peak = 0;
    uint64_t turns = 0, drops = 0, steps = 0;
    std::string broken;  // a promise that did not hold; empty: none
  };

  SharedGpu(const Machine& machine, const SharedGpuHooks& hooks, Nanoseconds now);

  policy::ClientId join(int job, const Job& made, Nanoseconds now);
  void leave(policy::ClientId client, Nanoseconds now);
  void handle(const GpuEvent& event, Nanoseconds now);
  const Sums& sums() const { return sums_; }

 private:
  struct Client {
    policy::ClientId id = 0;
    int job = 0;
    Kind kind = Kind::kBatch;
    bool session = false;
    Random random{0};
    double rate = 1, full_rate = 1;
    double alone_left = 0;  // seconds of the job alone that its phases have not had; of a session not used
    Phase phase;
    bool works = false;  // wants the GPU
    Nanoseconds wanted_at = 0;
    double burst_work = 0;
    policy::Memory memory;
    int64_t host = 0;  // bytes that have a copy there
    bool requested = false, has_lock = false, dropping = false, loading = false, moving = false;
    policy::GrantId grant = 0;
    policy::Bytes budget = 0;
    int64_t chunk = 0;
    Nanoseconds chunk_began = 0;
    policy::EvictionId eviction = 0;
    int64_t to_move = 0, moved = 0;
    Nanoseconds move_began = 0;
    uint32_t waiters = 0;
    std::optional<Nanoseconds> running_since;
    uint64_t version = 0;  // of what it does: a later one makes an event of before void
    bool last_phase = false;
  };

  void feed(const policy::Event& event);
  void take(const policy::Action& action);
  void take_lock(const policy::SendLock& lock);
  void next_phase_of(Client& client);
  void advance(Client& client);
  void load(Client& client);
  void loaded(Client& client);
  void move_out(Client& client);
  void moved_out(Client& client);
  void pause(Client& client);
  void finish_burst(Client& client);
  void release(Client& client, bool early, Nanoseconds idle);
  void report_host();
  void schedule(Nanoseconds after, GpuEvent::What what, Client& client);
  void watch_deadline();
  Client* find(policy::ClientId id);

  Machine machine_;
  const SharedGpuHooks& hooks_;
  policy::StatePointer state_;
  std::map<policy::ClientId, Client> clients_;
  std::deque<policy::Event> events_;
  bool feeding_ = false;
  Nanoseconds now_;
  std::optional<Nanoseconds> tick_at_;
  uint64_t tick_version_ = 0;
  policy::ClientId last_client_ = 0;
  Sums sums_;
};

}  // namespace nvshare::fleet
