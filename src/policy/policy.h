// The scheduling policy: a pure function from state, event and time to actions. No clock, no I/O, no threads, no randomness; integer
// nanoseconds and bytes; the same sequence of (now, event) always gives the same actions. Not thread-safe: one State, one caller.
//
// The daemon (scheduler/) turns messages into events and actions into messages; tests and the simulator do the same on virtual time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "policy/modes.h"

namespace nvshare::policy {

using Instant = int64_t;    // nanoseconds, any monotonic origin
using Duration = int64_t;   // nanoseconds
using Bytes = int64_t;      // >= 0
using GpuId = uint32_t;     // chosen by the caller, stable
using ClientId = uint64_t;  // chosen by the caller, never reused
using TenantId = uint64_t;
using ProcessId = uint64_t;  // chosen by the caller; 0: not known
using GrantId = uint64_t;    // chosen by the policy, counts up from 1
using EvictionId = uint64_t;
using PrefetchId = uint64_t;

enum class SwitchTimeMode { kAuto, kFixed };

struct Config {
  SwitchTimeMode switch_time_mode = SwitchTimeMode::kAuto;
  Duration switch_time_fixed = 60'000'000'000;
  int64_t switch_time_multiplier = 5;
  Duration switch_time_min = 10'000'000'000;  // bounds of kAuto
  Duration switch_time_max = 300'000'000'000;
  std::optional<int> memory_reserve_percent;  // replaces the computed reserve
  Bytes reserve_fixed = 500LL << 20;
  Bytes overhead_default = 300LL << 20;        // of a process with a context, while NVML has not told it
  Duration unanswered_grace = 30'000'000'000;  // a client that has not answered DropLock for this long: neighbours that fit go on beside it
  Duration departed_grace = 2'000'000'000;     // how long a dead client's memory counts when nobody can see it freed
  Duration watched_grace = 60'000'000'000;     // the same when somebody watches it, and has not reported it freed
  bool gang_turns = true;                      // a tenant on several GPUs has its turns on all of them together
  SchedulingMode scheduling_mode = kSchedulingModes[0];
  // For compute limits. Without a value (or 0): set from what is measured.
  Duration compute_window = 0;         // what is not used in such a window is lost; 0: time is saved up and owed without borders
  Duration quota_sample_interval = 0;  // limits are looked at so often; 0: at the very moment
  Duration scheduling_slice = 0;
  std::optional<int> quota_carryover_percent;    // of an overdraft that is owed later
  std::optional<int> drop_tail_billing_percent;  // of the time from a drop to its answer
  // Groups of ClientShares take turns: one whose last turn ended by its own choice goes first once it has waited for this long. >= 1 ms
  Duration latency_target = 50'000'000;
  bool prefetch = false;  // memory moves beside who runs, so that the next switch has less to move (docs/adr/0023)
  bool explains = false;  // notes of level kDebug, too: each billing, each drop with its reason. Decides nothing
};

struct Memory {
  Bytes allocated = 0;
  Bytes resident = 0;
  Bytes unswappable = 0;
};

// ---- events ----
struct GpuAppeared {
  GpuId gpu;
  Bytes total;
};
// Used on the GPU by programs that are not clients; live from NVML.
struct ForeignMemory {
  GpuId gpu;
  Bytes bytes;
};
// Room for swapped bytes, node-wide, beyond what is already swapped.
struct HostMemory {
  Bytes available = 0;  // to all together
  // Of `free` bytes so many are kept for tenants that use less than `share`; 0: none are.
  Bytes free = 0;
  Bytes kept = 0;
  Bytes share = 0;
  struct Use {
    TenantId tenant;
    Bytes used;
  };
  std::vector<Use> uses = {};  // by tenant, where some are kept; a tenant that is missing uses none
  bool changes = false;        // `uses` has those whose use is another than the policy reckons with, and no others
};
// What a tenant that uses so much may have of it: the more it uses, the less. Within its share it gets as much of what is kept as it leaves
// for the next, beyond that nothing (docs/adr/0015).
Bytes host_left_for(Bytes used, Bytes free, Bytes kept, Bytes share);
struct ClientJoined {
  ClientId client;
  GpuId gpu;
  TenantId tenant;
  int priority;  // higher goes first; default 0
  Memory memory;
  bool swappable;  // false: backend none
  bool has_lock;   // re-registered while holding it: it is running now
  bool wants_lock;
  bool gang = true;   // its tenant's turns may be on all of the tenant's GPUs together
  bool ends = false;  // as after TenantEnds
  // has_lock: known without its word. Else it may be running, so that it counts as a holder, and is the first to be dropped.
  bool proven = true;
  std::optional<Bytes> overhead = {};   // as after ClientOverhead
  std::vector<ClientId> replaces = {};  // clients of the same process that left: what still counts of their memory is this one's
  ProcessId process = 0;
  bool prefetches = false;  // it can bring memory in without the lock
};
// Its context and modules, from NVML.
struct ClientOverhead {
  ClientId client;
  Bytes bytes;
};
// Not memory_freed: its resident bytes count until ClientMemoryFreed or departed_grace; `watched`: ClientMemoryFreed will come.
struct ClientLeft {
  ClientId client;
  bool memory_freed;
  bool watched = false;
};
struct ClientMemoryFreed {
  ClientId client;
};
// A client of an earlier scheduler, whose process may still have so much on the GPU: counts until ClientMemoryFreed,
// ClientJoined::replaces or watched_grace.
struct MemoryHeld {
  ClientId client;
  GpuId gpu;
  Bytes bytes;  // without its context
};
struct LockRequested {
  ClientId client;
};
struct LockReleased {
  ClientId client;
  GrantId grant;
  Memory memory;
  bool early;
  Duration idle = 0;             // at the end of the turn: no use of the GPU
  std::optional<Duration> used;  // from its first to its last use of the GPU in the turn, as it says; none: it does not say
  uint64_t work = 0;             // submissions in the turn, all of which have ended, as it says; 0: none, or it does not say
};
// It keeps the lock, but uses nothing of the GPU until it has told that it goes on, which it may do at any time; where
// SendContention::pause allows it.
struct LockPaused {
  ClientId client;
  GrantId grant;
  std::optional<Duration> used;  // these two as in LockReleased, of the time since the turn began or since the last pause
  uint64_t work = 0;
};
struct LockResumed {
  ClientId client;
  GrantId grant;
};
// Asked to drop together with others: its work has ended, its gate is closed, it keeps the lock until it is told what comes next.
struct Drained {
  ClientId client;
  GrantId grant;
  uint64_t attempt;  // SendDrop::attempt that it answers
};
// The answer to SendDrop::tells_end: its work is about to end. It keeps the lock until LockReleased, and no turn waits for that.
struct EndsSoon {
  ClientId client;
  GrantId grant;
  uint64_t attempt;  // SendDrop::attempt that it answers
};
// It keeps the lock; ask again later (backoff).
struct DrainFailed {
  ClientId client;
  GrantId grant;
};
struct MemoryChanged {
  ClientId client;
  Memory memory;
  Bytes budget;
  uint64_t budget_sequence;
  Bytes wanted;
  uint64_t request;
};
struct SwapProgressed {
  ClientId client = 0;
  bool out = false;
  bool finished = false;
  bool failed = false;
  uint64_t id = 0;
  Bytes copied = 0;
  Duration elapsed = 0;
  Memory memory = {};
  Bytes unmoved = 0;   // that left without a copy, as they were unchanged
  bool ahead = false;  // of a SendPrefetch, whose id it has; then not `out`
  // So much more of its host memory is in use than before; none: as much as moved. HostMemory does not tell it again.
  std::optional<Bytes> host_more = {};
};
// What it said of its memory, as far as that is believed by now.
struct MemoryBelieved {
  ClientId client;
  Memory memory;
};
struct ConfigChanged {
  Config config;
};
// Of each GPU's time, in percent. Before the tenant's first client joins, and whenever it changes. docs/adr/0017 has the rule.
struct ComputeLimit {
  TenantId tenant;
  int ceiling;       // the most that it may use: 1..100, 100 = no limit. Never raises anybody's share
  int reserved = 0;  // of that, what the node has granted it: 0..ceiling
};
// Of all the tenant's clients that are there. Those that wait are served in the new order at once; no turn ends for it.
struct TenantPriority {
  TenantId tenant;
  int priority;  // as ClientJoined has it
};
// The tenant is about to be ended from outside, and has things to save: each client that it has now gets its next turn before all others,
// and as soon as those that run have had theirs loaded. One turn each; `ends` false takes back what was not used.
struct TenantEnds {
  TenantId tenant;
  bool ends;
};
// Of all the tenant's clients, those that come later included: their turns end, and none begins until `suspended` is false. They keep what
// they asked for, and their memory moves out as far as host memory has room: their processes may be stopped next. Such a wait counts as
// none.
struct TenantSuspended {
  TenantId tenant;
  bool suspended;
};
// How a tenant takes its turns, where it does not do as all: of its clients on each GPU, those that come later included.
enum class TenantSharing {
  kNode,      // as Config::scheduling_mode has it
  kTogether,  // beside compute limits it runs beside the others, within its limits
  kTurns,     // beside compute limits it runs in turns with the others
};
struct TenantTurns {
  TenantId tenant;
  TenantSharing sharing = TenantSharing::kNode;
  // The longest turn while others wait and memory moves between turns, 0 = as long as all others'. It makes none longer than it is without,
  // and none shorter than is worth what the switch costs (Config::switch_time_multiplier). Beside compute limits shares stay as they are,
  // so that the turns of the others become shorter, too.
  Duration most = 0;
  bool is_as_all() const { return sharing == TenantSharing::kNode && most <= 0; }
};
// Clients of one group run at the same time on the GPU, such as those attached to one MPS server; between groups the driver switches.
// 0, as a client begins: as the driver has it. `measured`: where that gets more done, each tenant is a group of its own instead; the
// client tells its progress.
struct ClientShares {
  ClientId client;
  uint64_t group;
  bool measured = false;
};
// The group of a tenant on its own. All other groups are below it.
inline constexpr uint64_t share_group_of(TenantId tenant) { return uint64_t{1} << 63 | tenant; }
// The answer to SendAskProgress. `work` counts up from anything; only differences mean something.
struct ClientProgressed {
  ClientId client;
  uint64_t question;
  uint64_t work;
};
// What an earlier scheduler had on the tenant's account there. Once, after its first client there has joined. What it had saved up is lost.
struct AccountKept {
  TenantId tenant;
  GpuId gpu;
  Instant joined_at;                    // as TenantView::since_joined counts
  Duration debt, used, throttled_time;  // as TenantView has them
};
struct Tick {};  // the deadline of next_deadline has come

using Event = std::variant<GpuAppeared, ForeignMemory, HostMemory, ClientJoined, ClientOverhead, ClientLeft, ClientMemoryFreed, MemoryHeld,
                           LockRequested, LockReleased, LockPaused, LockResumed, Drained, EndsSoon, DrainFailed, MemoryChanged,
                           SwapProgressed, MemoryBelieved, ConfigChanged, ComputeLimit, TenantPriority, TenantEnds, TenantSuspended,
                           TenantTurns, ClientShares, ClientProgressed, AccountKept, Tick>;

// ---- actions ----
// A grant, or a grant's new budget.
struct SendLock {
  ClientId client;
  GrantId grant;
  Bytes budget;
  uint64_t budget_sequence;
};
// together: it is to tell when its work has ended (Drained), and to keep the lock until SendKeep, or a SendDrop that is not `together`.
// tells_end: it may tell that its work is about to end (EndsSoon).
struct SendDrop {
  ClientId client = 0;
  GrantId grant = 0;
  bool together = false;
  uint64_t attempt = 0;  // counts up for each client
  bool tells_end = false;
};
// After a SendDrop with `together`: it goes on as if it had not been asked.
struct SendKeep {
  ClientId client;
  GrantId grant;
};
struct SendEvict {
  ClientId client;
  EvictionId eviction;
  Bytes bytes;
};
// It is to bring memory in, without the lock, until it has that much on the GPU: at once, and then to tell that this has ended
// (SwapProgressed::ahead), whatever came of it. From then on it has no more than it told.
struct SendPrefetch {
  ClientId client;
  PrefetchId prefetch;
  Bytes budget;
};
struct SendWait {
  ClientId client;
  uint64_t request;
};
struct SendMemory {
  ClientId client;
  uint64_t request;
  bool granted;
  Bytes budget;
  uint64_t budget_sequence;
};
struct SendContention {
  ClientId client = 0;
  uint32_t waiters = 0;
  uint32_t memory_waiters = 0;
  Duration swap_cost = 0;
  bool limited = false;       // a compute limit or slicing applies: the client is billed for the time that it holds the lock
  Duration idle_release = 0;  // it gives the lock up once idle for this long; whole microseconds; 0 = its own default
  bool gang_runs = false;     // others of its gang hold the lock: it allocates with the lock only, beyond turns too
  Duration pause = 0;         // once idle for this long it may pause instead of giving the lock up; whole microseconds; 0 = it may not
  bool held = false;          // without a scheduler it waits for the next one, even if all its memory is on the GPU
};
// It is to answer how much it has submitted so far, and counts that from now on, or no longer.
struct SendAskProgress {
  ClientId client;
  uint64_t question;
  bool counts;
};
// Allocations past it can never fit.
struct SendCeiling {
  ClientId client;
  Bytes ceiling;
};
// For the log. client 0: of the GPU, or of the tenant there.
struct Note {
  enum class Level { kDebug, kInfo, kWarning } level;
  ClientId client;
  std::string text;
  std::optional<GpuId> gpu = {};
  TenantId tenant = 0;
};

using Action = std::variant<SendLock, SendDrop, SendKeep, SendEvict, SendWait, SendMemory, SendContention, SendAskProgress, SendCeiling,
                            SendPrefetch, Note>;
using Actions = std::vector<Action>;

// ---- what people see ----
// kPaused: has the lock, and does not use it.
enum class ClientState { kIdle, kWaiting, kLoading, kRunning, kPaused, kDropping, kUnresponsive };
const char* name_of(ClientState state);
// How those of ClientShares::measured share a GPU.
enum class SharingWay { kTogether, kTurns };
const char* name_of(SharingWay way);

struct ClientView {
  ClientId client;
  GpuId gpu;
  TenantId tenant;
  int priority;
  ClientState state;
  Memory memory;
  Bytes budget;
  Bytes overhead;
  Instant since;                     // of the state
  std::string waiting_for;           // empty, or a sentence: what it waits for
  std::vector<ClientId> held_up_by;  // who has the lock, or is moving out, while it waits
  uint64_t turns, drops, unanswered_drops, failed_drains;
  Duration time_running, time_waiting, time_swapping;
  Bytes swapped_out_total, swapped_in_total;  // over the link
  Bytes unmoved_total;                        // that left without a copy, as they were unchanged
  Bytes prefetched_total;                     // of those that came in, beside another that ran
  Bytes prefetched_in_vain_total;             // of these, that left again before a turn of its
  bool evicting;
  bool in_turn = false;  // holds the lock, and does not pause: the last of its turns is not over
  bool held = false;     // idle, has asked for the lock, and its tenant is suspended
  int failed_drains_in_row = 0;
  bool drainable = true;   // false after several drains in a row that did not end
  uint32_t gang_gpus = 0;  // its turns begin and end on so many GPUs together; 0: on this one alone
};

// What any event may change of a client, without what takes time to find out: cheap enough to be looked at after each event.
struct ClientGlimpse {
  ClientId client;
  GpuId gpu;
  TenantId tenant;
  ClientState state;
  bool in_turn;
  uint64_t turns;
  Memory memory;
  Bytes swapped_out_total, swapped_in_total;
  bool held = false;  // idle, has asked for the lock, and its tenant is suspended
};

// A tenant's use of a GPU's time, in nanoseconds of GPU time as billed.
struct TenantView {
  TenantId tenant;
  int ceiling;            // percent, 100 = none
  int reserved;           // percent that it was granted, 0 = none
  double quota;           // percent that it is entitled to among the tenants that are active
  Duration last_window;   // used in the last complete window
  Duration since_joined;  // how long its account exists
  Duration used;          // since then
  bool active, throttled;
  Duration throttled_time;  // while it wanted to run
  Duration debt;            // used beyond its ceiling; without one, beyond its share
  bool beside_others;       // it leaves gaps, so that it need not take turns
};

struct GpuView {
  GpuId gpu;
  Bytes total, foreign, safe_limit, overhead, departed;
  double bandwidth_out, bandwidth_in;  // bytes per second, measured, 0 until then
  uint64_t switches;                   // turns that began by another's end
  Duration switch_time;                // as it stands now
  const char* mode;                    // "unlimited", "together", "turns" or "rotation"
  uint64_t mode_changes;
  Duration window;      // the length of the last complete one
  SharingWay sharing;   // the choice
  bool sharing_tried;   // the other way is in force for a moment, to measure it
  double sharing_gain;  // work done by the choice over that by the other way, when both were measured last; 0: they were not
  uint64_t sharing_trials;
  Duration swap_time;  // in which nobody ran because memory moved, beside compute limits: billed to nobody
  std::vector<TenantView> tenants;
  std::vector<ClientView> clients;
};

class State;  // state.h

struct StateDeleter {
  void operator()(State*) const;
};
using StatePointer = std::unique_ptr<State, StateDeleter>;

StatePointer make_state(const Config& config);
Actions step(State& state, const Event& event, Instant now);
// When step(Tick) must be called next, if nothing happens before. Never in the past once step(Tick) was called at that time.
std::optional<Instant> next_deadline(const State& state);
// The longest that a waiting client can wait for its turn, as things stand, if its neighbours answer and can move.
std::optional<Duration> waiting_bound(const State& state, ClientId client);
std::vector<GpuView> view(const State& state, Instant now);
// Replaces what is in `clients`; in the order of GPUs, then of clients.
void glimpse(const State& state, std::vector<ClientGlimpse>& clients);
// Nullopt: no client of the tenant waits, or one of them has a turn. Costs what the tenant's clients and the holders of one GPU are.
struct TurnWait {
  ClientId client;  // the tenant's that waits longest
  GpuId gpu;        // its
  Instant since;
  size_t holders = 0;  // of that GPU; if any, the first of those that run, by when that began:
  TenantId holder = 0;
  ClientState state = ClientState::kIdle;
  Instant held_since = 0;
  std::optional<Instant> ends;  // its turn, as things stand: where it alone has the GPU, in turns that memory forces
};
std::optional<TurnWait> turn_wait_of(const State& state, TenantId tenant);
std::string waiting_for(const State& state, ClientId client);  // as ClientView has it; empty: it does not wait, or is not known
// Whether a tenant there has a compute limit, so that time is billed.
bool shares_by_limits(const State& state, GpuId gpu);
// How much of each client's memory may have to move out, as things stand: what all of a GPU's clients need together beyond its safe limit.
// 0 for a client with nothing on the GPU, or that cannot move.
struct SwapDemand {
  ClientId client;
  Bytes bytes;
};
std::vector<SwapDemand> swap_demands(const State& state);
// Nullopt, or what is broken (safe limit passed, a waiter without a deadline, ...). For tests; the daemon runs it in debug builds.
std::optional<std::string> check_invariants(const State& state);

}  // namespace nvshare::policy
