// A virtual world for the policy: GPUs, host memory, and clients that load, run, drain, allocate, free, move out, fail and die, on virtual
// time and from a seed. It holds the policy to its promises at every step (Ledger, check_invariants, and its own account of what the
// clients could have resident), and remembers the first that was broken.
#pragma once

#include <deque>
#include <functional>
#include <random>
#include <set>

#include "policy/testing/test_ledger.h"

namespace nvshare::policy::testing {

inline constexpr Bytes kGiB = 1LL << 30;
inline constexpr Duration kMs = 1'000'000;
inline constexpr Duration kSec = 1'000'000'000;

struct Phase {
  enum class Kind { kRun, kIdle, kGrow, kShrink, kExit, kMeet } kind;
  int64_t amount;  // nanoseconds or bytes
};

inline Phase run_for(Duration time) { return {Phase::Kind::kRun, time}; }
inline Phase idle_for(Duration time) { return {Phase::Kind::kIdle, time}; }
inline Phase grow_by(Bytes bytes) { return {Phase::Kind::kGrow, bytes}; }
inline Phase shrink_by(Bytes bytes) { return {Phase::Kind::kShrink, bytes}; }
// A collective: GPU work that ends so long after all of its tenant's players have submitted theirs. Until then it cannot be drained.
inline Phase meet_for(Duration time) { return {Phase::Kind::kMeet, time}; }
inline Phase leave_now() { return {Phase::Kind::kExit, 0}; }

struct Player {
  // What it is.
  ClientId id = 0;
  GpuId gpu = 0;
  TenantId tenant = 0;  // its own id at first
  int priority = 0;
  bool swappable = true;
  bool prefetches = false;
  Duration drain = 3 * kMs;
  Duration idle_patience = 0;  // from its last work to its giving the lock up, while somebody waits
  bool sits_out_cost = false;  // and at least what the switch is said to cost, as a library does that knows no pause yet
  bool hangs = false;          // never answers a drop
  int drains_to_fail = 0;      // so many drains do not end
  int evictions_to_fail = 0;   // so many evictions fail half-way
  bool measured = false;       // its tenant shares as measured: asked for its progress, it says anything
  std::deque<Phase> phases;    // what it does
  // How it stands.
  bool alive = true;
  bool joined = false;
  bool regrant = false;  // keeps the lock over a restart of the policy; the next grant gives it a new name
  Memory memory;
  Bytes host = 0;  // swapped bytes with data in them
  Bytes fidgets = 0;
  bool requested = false, has_lock = false, loaded = false, dropping = false, moving = false;
  GrantId grant = 0;
  Bytes prefetch_budget = 0;  // on its way, or in force
  Bytes budget = 0;
  uint64_t sequence = 0;
  Bytes ceiling = 0;
  uint32_t contention = 0;
  Duration swap_cost = 0;  // as told with it
  Instant idling_since = 0;
  bool gang_runs = false;  // others of its gang have the lock: it gets it before it grows
  bool told = false;       // it has had its first SendContention
  uint64_t request = 0;    // last growth request
  bool growing = false;    // waits for its answer
  std::optional<Instant> running_since;
  bool idling = false;
  uint64_t meetings = 0;      // collectives submitted so far
  bool meets = false;         // the last of them has not ended
  bool meeting_ends = false;  // everybody is there
  bool drop_after_meeting = false;
  bool together = false, held = false;  // it leaves with others; it has drained, and is to be told what comes next
  uint64_t attempt = 0, drain_count = 0;
  uint64_t activity = 0;  // counts up: callbacks of an earlier activity are void
  Instant last_to_policy = 0, last_from_policy = 0;
  // What happened to it.
  uint64_t grants = 0, drops = 0, refusals = 0;
  Duration ran = 0;
  std::vector<Instant> granted_at, running_at;
  std::optional<Instant> finished_at;
  std::optional<Instant> run_wanted_at;  // of the run phase under way
  Duration run_length = 0;
  std::vector<Duration> delays;  // of each finished run phase: what it took beyond its own length
  GrantId granted_last = 0;      // by the policy, perhaps still on its way
  std::multiset<std::pair<GrantId, Bytes>> budgets_in_flight;
};

class World {
 public:
  World(const Config& config, uint64_t seed);

  void add_gpu(GpuId gpu, Bytes total);
  void set_host(Bytes total);  // room for swapped bytes; without this call there is no bound
  void set_foreign(GpuId gpu, Bytes bytes);
  Player& add_player(GpuId gpu, std::deque<Phase> phases, Bytes allocated = 0, int priority = 0);
  // How many players of that tenant meet. None submits a collective before all have run once: setting one up takes GPU work of each.
  void expect_members(TenantId tenant, size_t count) { members_expected_[tenant] = count; }
  void set_priority(TenantId tenant, int priority);
  void announce_end(TenantId tenant, bool ends = true) { feed(TenantEnds{tenant, ends}); }
  void suspend_tenant(TenantId tenant, bool suspended);
  void kill(ClientId id, bool freed_at_once);
  void restart_policy();  // a new scheduler, to which everybody registers again; messages under way are lost
  void at(Instant when, std::function<void()> what);
  void run_until(Instant when);  // stops early when something broke
  // From now on a second policy gets the same events, of which no step ends early: what both say has to be the same. Before the first GPU.
  void compare_with_whole_steps();
  uint64_t early_ends() const;  // so many steps ended early
  // The program allocates a little without the lock, or frees what it has allocated so.
  void fidget(ClientId id);
  // Changes the policy's actions before anybody sees them: to prove that the checks notice.
  void tamper_with(std::function<void(Actions&)> tamper) { tamper_ = std::move(tamper); }

  Instant now() const { return now_; }
  Player& player(ClientId id) { return players_.at(id); }
  ClientView view_of(ClientId id) const;
  GpuView gpu_view(GpuId gpu) const;
  const std::optional<std::string>& broken() const { return broken_; }
  uint64_t trace() const { return trace_; }  // a hash of all actions and their times
  uint64_t steps() const { return steps_; }
  Bytes resident(GpuId gpu) const;  // of all clients, and of dead ones whose memory is not free yet
  bool all_finished() const;
  std::string describe() const;

  Bytes bandwidth = 10 * kGiB;  // bytes/s, each way
  Duration latency_max = kMs;
  Bytes chunk = 256LL << 20;
  bool expect_bounded = true;  // a waiter with no bound counts as broken

 private:
  void feed(const Event& event);
  void compare(const Event& event, const Actions& actions);
  static ClientJoined joined(const Player& player);
  void deliver(const Action& action);
  void send(Player& player, Event event);  // from the client to the policy, in order
  void want_lock(Player& player);
  void advance(Player& player);
  void load(Player& player);
  void prefetch(Player& player, const SendPrefetch& asked);
  void move_out(Player& player, EvictionId id, Bytes bytes, Bytes moved, Instant began);
  void allocate(Player& player, Bytes bytes);
  void report_memory(Player& player, Bytes wanted);
  void pause(Player& player);
  void release(Player& player, bool early);
  void release_when_idle(Player& player);
  void drop(Player& player, const SendDrop& asked);
  void keep(Player& player);
  void got_lock(Player& player, const SendLock& lock);
  void release_after_drain(Player& player);
  bool all_have_run(TenantId tenant) const;
  void gather(TenantId tenant);  // ends the collectives for which everybody is there
  void end_meeting(Player& player);
  void check_promises();
  void check_glimpses();
  void check_gangs(const std::map<ClientId, ClientState>& before);
  std::map<ClientId, ClientState> states() const;
  void check_waits();
  void check_progress();
  void report_host();
  Bytes host_free() const;
  void fail(const std::string& what);

  Config config_;
  uint64_t epoch_ = 0;
  std::set<TenantId> suspended_;
  bool restarting_ = false;
  StatePointer state_;
  StatePointer twin_;  // null: there is none
  uint64_t early_ends_ = 0;
  Ledger ledger_;
  std::mt19937_64 random_;
  Instant now_ = 1000 * kSec;
  uint64_t next_order_ = 0;
  std::map<std::pair<Instant, uint64_t>, std::function<void()>> queue_;
  std::optional<Instant> tick_at_;
  std::map<ClientId, Player> players_;
  std::map<TenantId, size_t> members_expected_;
  std::map<GpuId, Bytes> gpus_;
  std::map<GpuId, Bytes> foreign_;
  std::map<ClientId, std::pair<GpuId, Bytes>> not_freed_;
  std::optional<Bytes> host_total_;
  bool host_report_due_ = false;
  struct Wait {
    Instant since = 0;
    Duration bound = 0;
    bool excused = false;  // has no bound at present
  };
  std::map<ClientId, Wait> waits_;
  std::map<GpuId, std::pair<bool, Instant>> stands_still_;
  std::map<ClientId, ClientGlimpse> glimpsed_;  // as the touched of each step had it
  ClientId next_client_ = 1;
  std::function<void(Actions&)> tamper_;
  std::optional<std::string> broken_;
  std::deque<std::string> history_;
  uint64_t trace_ = 14695981039346656037ULL;
  uint64_t steps_ = 0;
};

}  // namespace nvshare::policy::testing
