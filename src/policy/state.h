// What the policy remembers. Plain data in ordered containers, so that the same events always give the same actions; the functions that
// change it stand in one file per concern (README.md). Everything here is private to policy/ and its tests.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "policy/policy.h"
#include "policy/quota.h"

namespace nvshare::policy {

inline constexpr Bytes kMiB = 1LL << 20;
inline constexpr Bytes kHostMost = 1LL << 56;
inline constexpr Bytes kBytesMost = 1LL << 50;  // of one client, or one movement: sums of thousands stay far from overflow
inline constexpr Duration kMillisecond = 1'000'000;
inline constexpr Duration kSecond = 1'000'000'000;

inline constexpr Bytes kGrowthBatchMax = 256 * kMiB;  // moved out at once for a program that grows
inline constexpr Bytes kPieceMost = 64 * kMiB;        // memory moves out in pieces as large as that, and the last one goes as a whole
inline constexpr Bytes kSlackMax = 256 * kMiB;        // budget beyond the need while nobody waits
inline constexpr Bytes kSlackMin = 8 * kMiB;
inline constexpr Bytes kBudgetStep = 32 * kMiB;   // smallest raise on the way to a full budget: one message per chunk, not per page
inline constexpr Bytes kCeilingStep = 64 * kMiB;  // smallest change of a ceiling worth a message
// Where a GPU has more clients than that, so many are told of a new ceiling in one step, and all within a second.
inline constexpr size_t kCeilingsAtOnce = 64;
inline constexpr Duration kCeilingsWithin = kSecond;
inline constexpr Bytes kBandwidthAssumed = 1'000'000'000;  // bytes/s until a swap was measured
inline constexpr Bytes kBandwidthLeast = kMiB;             // bytes/s, and
inline constexpr Bytes kBandwidthMost = 1LL << 42;         // beyond these it is no measurement
inline constexpr Bytes kBandwidthSample = 64 * kMiB;       // smaller copies say little about the link
inline constexpr Duration kBackoffMin = 200 * kMillisecond;
inline constexpr Duration kBackoffMax = 10 * kSecond;
inline constexpr Duration kDrainBackoffMax = 2 * kSecond;  // of a drain; but at least twice as long as the attempt held the program up
inline constexpr Duration kLoadGrace = 10 * kSecond;       // a load may take this + twice the expected time before its turn's clock starts
inline constexpr Duration kShareWindow = 60 * kSecond;     // over which the use of a waking client is judged
inline constexpr int kPromoteTurns = 4;                    // a waiter passed over for so many turn limits is served as the highest priority
inline constexpr int kUndrainable = 5;                     // drains that failed in a row before a client is shown as not drainable
inline constexpr int kDoubtful = 2;                        // drains that failed in a row before nobody is held back for the next attempt
inline constexpr Duration kOverstayMost = 60 * kSecond;    // so long a client may keep the GPU against requests; then it comes last
// The same of a member of a gang, whose drain fails whenever it meets the members at different places.
inline constexpr Duration kGangOverstayMost = 180 * kSecond;
inline constexpr Duration kLastFor = 600 * kSecond;  // and so long at most after it gave the GPU up
inline constexpr Duration kSlowDrain = kSecond;      // a drain that takes longer holds nobody back either
// Members of a gang drain together within this time, or within twice what the last drain of who has not drained took; else one waits for
// another.
inline constexpr Duration kCatchUpAfter = 30 * kMillisecond;
inline constexpr Duration kCatchUpAfterMost = 2 * kSecond;
inline constexpr size_t kGangMost = 512;        // a tenant with more clients is in no gang: a step looks at all of a gang, on all its GPUs
inline constexpr int kCatchUps = 20;            // so often members catch up before the gang goes on, to be asked again later
inline constexpr Duration kOwnPause = kSecond;  // who was dropped in mid-work asks again sooner
inline constexpr Duration kGangForming = 10 * kSecond;  // a new member of a gang that has not asked yet may soon need any amount
inline constexpr Duration kGangReturn = kSecond;        // who was dropped in mid-work is taken to ask again within this time
inline constexpr int kEvictionHopeless = 3;             // evictions that failed in a row before nobody waits for the next attempt

// Failed attempts in a row, and when to try again.
struct Backoff {
  int failures = 0;
  Instant retry_at = 0;

  void failed(Instant now, Duration most = kBackoffMax) {
    Duration delay = kBackoffMin;
    for (int i = 0; i < failures && delay < most; ++i) delay *= 2;
    retry_at = now + std::min(delay, most);
    ++failures;
  }
  void succeeded() { *this = {}; }
  bool holds(Instant now) const { return failures > 0 && now < retry_at; }
};

struct Eviction {
  EvictionId id = 0;
  Bytes resident_target = 0;  // done when no more than this is resident
  Instant deadline = 0;       // without progress until then it counts as failed
  Instant asked_at = 0;
  bool ahead = false;  // nobody waits for it yet
};

// Memory that comes in without the lock: until it is told to have ended, all of the budget may be on the GPU.
struct Prefetch {
  PrefetchId id = 0;
  Bytes budget = 0;
  Bytes resident_before = 0;
  Instant deadline = 0;  // then it is overdue, and no memory of its client can be moved out before it has answered
  bool overdue = false;
};

// An allocation that waits: its client holds the lock, and has allocated + wanted > budget.
struct Growth {
  Bytes wanted = 0;
  uint64_t request = 0;
  uint64_t arrival = 0;
  Instant since = 0;
  bool wait_sent = false;
  bool satisfied = false;  // the budget covers it; SendMemory goes out at the end of this step
};

enum class WaitReason {
  kNone,
  kQueue,       // others come first
  kTurn,        // a neighbour's turn
  kDrain,       // a neighbour that was asked to drop
  kDeparted,    // memory that a dead client has left behind
  kEviction,    // its own memory is still moving out
  kHostMemory,  // host memory is too short to make room
  kNeverFits,   // it needs more than its ceiling
  kStuck,       // memory that its neighbours cannot give up at present
  kCrowding,    // its running would keep an older client from ever fitting
  kGang,        // another GPU of its gang
  kLimit,       // it has used up its compute limit
  kShare,       // another tenant's share of the GPU's time
};

// How far a client is that was asked to drop (kDropping).
enum class DrainStep {
  kAlone,       // gives the lock up as soon as its work has ended
  kTogether,    // is to tell when its work has ended
  kDrained,     // has told
  kCatchingUp,  // had told, and works again for a moment: others of its gang wait for what it holds back
};

// Time that a client ran in the running and the previous share window.
struct Usage {
  int64_t window = 0;
  Duration current = 0, previous = 0;

  void add(Instant from, Instant to);
  Duration recent(Instant now) const;  // over the last kShareWindow, the older part interpolated

 private:
  void advance(int64_t to_window);
};

// What the clients of a GPU add up to, so that nothing has to be summed up over all of them; recount() keeps it (room.cc).
struct Sums {
  Bytes overhead_told = 0;      // of those whose overhead is known
  int64_t overhead_untold = 0;  // how many others there are
  Bytes immovable = 0;          // resident bytes that can never be moved out
  Bytes needed = 0;             // what each needs (need())
  Bytes held_needed = 0;        // the same of lock holders
  Bytes committed = 0;          // budgets of lock holders, resident bytes of the others
  Bytes evicting = 0;           // still to come from evictions under way
  // As RoomCount has it without a question, were nobody's last eviction to have failed: what stays on the GPU, and what can be moved out;
  // with those that drop there, and with them gone.
  Bytes fixed = 0, moving = 0;
  Bytes fixed_released = 0, moving_released = 0;
  Bytes charged = 0;  // what each takes as a lock holder (charge())

  bool operator==(const Sums&) const = default;
};

struct Gpu;
struct Tenancy;

// Which of a GPU's indexes have a client.
struct Roles {
  GrantId grant = 0;                                // Gpu::holders
  bool waits = false;                               // Gpu::waiting
  bool unsettled = false;                           // Gpu::unsettled
  bool evictable = false;                           // Gpu::evictable
  bool stays = false, works = false, busy = false;  // Tenancy
  std::optional<Instant> lately;                    // Gpu::lately: when it had the lock last

  bool operator==(const Roles&) const = default;
};

// A client's or a gang's place among those that wait (place_of() in admission.cc).
using Place = std::tuple<int, bool, int, bool, Instant, uint64_t, ClientId>;

// What the places of all that wait on a GPU have in common.
struct PlaceTerms {
  bool wakers_pass = false;
  Duration promote_after = 0;
  int highest = 0;
};

// Of a client that waits: all that its place is worked out from, but for PlaceTerms and the time.
struct QueueKeys {
  bool ends = false, woke = false;
  int priority = 0;
  Instant last_used = 0;
  uint64_t arrival = 0;
  Instant waiting_since = 0;
  Duration passed_at_start = 0;
  Instant last_until = 0;

  bool operator==(const QueueKeys&) const = default;
};

// As what Queue has it.
struct QueueEntry {
  bool waits = false;  // it is there
  QueueKeys keys;
  std::optional<Place> place;
  bool low = false, promoted = false;
  Bytes room = 0;
  std::optional<Instant> unnoted;
  bool counts = false, counts_for_memory = false, held = false;
};

struct Client {
  ClientId id = 0;
  GpuId gpu = 0;
  TenantId tenant = 0;
  ProcessId process = 0;
  int priority = 0;
  bool swappable = true;
  bool gang = true;            // as its tenant wants it
  bool asked = false;          // it has asked for the lock, or come with it
  bool ends = false;           // it has its last turn before it, which comes before all others'
  bool last_turn = false;      // and this is it
  Duration last_turn_ran = 0;  // of it so far: one that it gives up by itself, to write down what it has, goes on later
  uint64_t joined = 0;         // order of arrival
  Instant joined_at = 0;
  Memory memory;
  std::optional<Bytes> overhead;

  ClientState state = ClientState::kIdle;
  Instant since = 0;

  // With the lock.
  GrantId grant = 0;  // 0: without the lock
  Bytes budget = 0;
  uint64_t budget_sequence = 0;
  Bytes budget_told = 0;        // as last sent with this grant
  bool budget_dirty = false;    // to be sent at the end of this step
  bool slack_declined = false;  // it gave slack back: none again until it grows
  bool unproven = false;        // only it says that it had the lock already: it is dropped before all others
  Instant granted_at = 0;
  Duration load_allowance = 0;
  bool loads = false;                    // has yet to tell that all has come in; its memory counts as resident before the copies are done
  std::optional<Instant> turn_start;     // when loading ended
  Duration turn_without_room = 0;        // of the turn: allocations waited for room
  Duration turn_carried = 0;             // of an interrupted turn that this one resumes
  std::optional<Instant> due_cap;        // passed a larger waiter: has to be gone by that one's turn
  std::optional<Instant> passing_since;  // its turn ended another's early
  std::optional<Instant> idle_since;     // it said that nothing runs
  std::optional<Instant> paused_since;   // it said that it uses nothing until it says otherwise; then turn_start is not set
  Duration unused_before_pause = 0;      // of the turn before; and at which rate that was billed
  int64_t billed_before_pause = 0;
  bool interrupted = false;   // being dropped for a waking client, before its time
  Duration interruption = 0;  // work that the switch for which it is being dropped asks for (Switch::quantum)
  Duration earned = 0;        // work of its former turns that no switch was charged for
  Instant drop_sent_at = 0;
  DrainStep drain_step = DrainStep::kAlone;
  uint64_t drain_attempt = 0;
  Instant overstays_since = 0, overstays_until = 0;  // requests to drop in a row that it did not follow: the first, and the last answer
  bool overstays = false;                            // for too long: everybody goes before it
  Instant last_until = 0;                            // the same after it gave the GPU up
  Instant drained_at = 0;
  Duration drain_took = 0;  // its last that ended while nobody went on for its sake: so long its own work takes to end
  Backoff drain;
  Backoff load;
  std::optional<Growth> growth;
  uint32_t contention_waiters = 0, contention_memory_waiters = 0;  // as last sent
  Duration contention_cost = 0;                                    // the same
  bool limited_sent = false;
  Duration idle_release_sent = 0;
  bool gang_runs_sent = false;
  Duration pause_sent = 0;

  uint64_t beside_noted = 0;  // a hash of its neighbours at its grant, and what it waited for, as the log has them last
  Instant beside_noted_at = 0;
  Instant wait_noted_at = 0;

  // Without it.
  bool asks_paused = false;  // asked for it while its tenant is paused
  uint64_t arrival = 0;      // of its lock request
  Instant waiting_since = 0;
  Instant last_used = 0;  // end of its last turn; when it joined, if it had none
  // It gave the lock up while others of its gang go on: its place is kept until the gang's turn ends. place_leaves: they were asked to
  // drop.
  bool keeps_place = false;
  bool place_leaves = false;
  bool lost_place = false;  // waits, and does not fit into the place that is kept
  Instant released_at = 0;
  bool left_early = false;  // its last turn ended by its own choice
  bool woke = false;        // it waits after having been idle, and used little lately
  bool waited_for_memory = false;
  Duration passed_at_start = 0;  // Gpu::time_passing when it began to wait
  WaitReason reason = WaitReason::kNone;
  WaitReason reason_noted = WaitReason::kNone;
  std::optional<Eviction> eviction;
  Backoff evict;
  bool prefetches = false;  // it knows how to
  std::optional<Prefetch> prefetch;
  bool prefetch_ended = false;  // nothing more comes in that way before its next turn
  Bytes unused_ahead = 0;       // came in so since its last turn, and is still there

  uint64_t movement = 0;  // of its last swap message: id and direction, to turn running totals into differences
  bool movement_out = false, movement_ahead = false;
  Bytes movement_copied = 0, movement_unmoved = 0;
  std::optional<Bytes> ceiling_sent;

  Sums counted;         // its part of Gpu::sums
  Gpu* home = nullptr;  // where it is indexed; null: a copy, to be looked at
  Roles roles;          // as indexed there
  QueueEntry queued;    // the same
  Tenancy* tenancy = nullptr;
  // Its key in Gpu::slack_takers: no more than its slack, which may have grown since.
  std::optional<Bytes> slack_key;

  uint64_t share_group = 0;  // as ClientShares has it
  bool measured = false;     // the same
  struct Progress {
    uint64_t question = 0, work = 0;
    Instant at = 0;
  } progress;                     // its last answer
  int gaps_in_row = 0;            // turns that its own choice ended while groups took turns
  bool leaves_by_choice = true;   // so its last such turn ended, or it had none yet, or it did not want it back at once
  Instant runs_beside_until = 0;  // it leaves gaps, so it takes no turns with other groups
  Duration beside_for = 0;        // so long, the last time; 0: since it held on, it has not

  Usage usage;
  uint64_t turns = 0, drops = 0, unanswered_drops = 0, failed_drains = 0;
  Duration time_running = 0, time_waiting = 0, time_swapping = 0;
  Bytes swapped_out = 0, swapped_in = 0, unmoved = 0;
  Bytes prefetched = 0, prefetched_in_vain = 0;

  bool holds_lock() const { return grant != 0; }
  bool stays() const {
    return state == ClientState::kLoading || state == ClientState::kRunning || state == ClientState::kPaused;
  }  // holds the lock and was not asked to drop
  // It has told that its work has ended, and waits for our word, or goes on until we ask again.
  bool is_held() const { return drain_step == DrainStep::kDrained || drain_step == DrainStep::kCatchingUp; }
  bool comes_last(Instant now) const { return overstays || now < last_until; }
  bool waits() const { return state == ClientState::kWaiting; }
  bool takes_place() const { return stays() || (keeps_place && !place_leaves); }  // whoever comes has to fit beside it
};

struct Departed {
  Bytes bytes = 0;
  Instant until = 0;
};

// A tenant's clients on a GPU.
struct Tenancy {
  Doing does;
  Account* account = nullptr;  // null: none yet
  // A client comes, or has another reason to wait than limits.
  void forget_held_for() const {
    if (account != nullptr) account->held_for = WaitReason::kNone;
  }
  std::map<ClientId, Client*> clients;
  std::map<ClientId, Client*> waiting;  // of them
};

// Clients that wait for what others hold.
struct Contenders {
  uint32_t waiters = 0, memory_waiters = 0;

  bool operator==(const Contenders&) const = default;
};

// As one tenant's movements measured the link, bytes/s; 0 = not yet.
struct LinkSpeed {
  Bytes out = 0, in = 0;
};

constexpr Duration kShareSpell = 300'000'000;  // ns

// Which way of sharing gets more done (share_trials.cc): a spell of the chosen one, then one of the other; between trials looks at who
// works.
struct ShareTrial {
  enum class Phase { kNone, kSettles, kCounts, kEnds, kLooks, kHasLooked };  // the last two: of a look
  Phase phase = Phase::kNone;
  bool second = false;                                                     // the spell
  Instant until = 0;                                                       // the phase
  SharingWay way = SharingWay::kTogether, chosen = SharingWay::kTogether;  // in force; when nothing is tried
  int64_t measured = 0;                                                    // clients that may be
  uint64_t question = 0;
  Instant asked_at = 0;
  std::vector<ClientId> mix;  // that are measured, or were last
  bool failed = false;        // the last trial
  int wins = 0;               // of the other way, in so many of their trials in a row
  int changes = 0;            // of way, of the same clients
  std::map<ClientId, Client::Progress> from;
  std::map<ClientId, std::array<int64_t, 2>> rates;  // of the spells
  std::map<ClientId, Instant> works;                 // which of `mix` did when they were asked, and when that was seen last
  bool works_changed = false;                        // since the last trial
  Instant looked_at = 0;
  std::optional<std::vector<ClientId>> seen;  // that use the GPU; nullopt: not all can be measured
  Instant seen_since = 0;
  Instant ended_at = 0;
  int spare = 3;  // trials that may begin
  Instant spare_at = 0;
  double gain = 0;
  uint64_t trials = 0;

  bool looks() const { return phase == Phase::kLooks || phase == Phase::kHasLooked; }
};

// Whose turn it is among groups of clients that share the GPU in different ways (share_turns.cc).
struct ShareTurn {
  int64_t members = 0;            // clients that are in a group
  std::optional<uint64_t> group;  // none: they run as memory allows
  Instant began = 0;
};

// The clients that wait on a GPU (queue.cc).
struct Queue {
  PlaceTerms terms;  // as of the last refresh_queue(), as what stands in `order` and in the two below it
  std::map<Place, Client*> order;
  std::set<std::pair<Instant, ClientId>> low, promoted;  // of lower priority than others: by when they began to wait
  std::map<ClientId, Client*> fresh;                     // that are not in `order` yet
  std::set<std::pair<Instant, ClientId>> late;           // that come last until then
  std::set<std::pair<Duration, ClientId>> ordinary;      // that others may go before: by Client::passed_at_start
  std::set<std::pair<Bytes, ClientId>> by_room;          // all, by room_asked()
  std::map<ClientId, Client*> unplaced;                  // that are not is_put_off()
  std::set<std::pair<Instant, ClientId>> unnoted;        // whose reason the log does not have: by when it may
  uint32_t waiters = 0, memory_waiters = 0;              // that wait for neighbours; for memory
  std::map<ClientId, Client*> free;                      // that neither limits nor turns keep waiting
  size_t ending = 0;                                     // Client::ends
};

struct Gpu {
  GpuId id = 0;
  Bytes total = 0;
  Bytes foreign = 0;
  std::map<TenantId, LinkSpeed> speeds;       // of tenants with clients here
  Bytes bandwidth_out = 0, bandwidth_in = 0;  // bytes/s, 0 until measured: the median of the tenants'
  uint64_t switches = 0;
  Duration switch_time_noted = 0;  // the length of turns that the log has last
  Instant switch_time_noted_at = 0;
  Duration switch_cost = 0;   // expected, of the last switch that was planned
  Duration time_passing = 0;  // sum of the turns of waking clients that went before others
  std::map<ClientId, Departed> departed;
  Bytes departed_bytes = 0;  // of all of them
  std::map<ClientId, Client> clients;
  std::map<TenantId, Tenancy> of_tenant;  // the same
  int64_t tenants_working = 0;            // with Tenancy::works
  Sums sums;                              // over clients
  std::map<GrantId, Client*> holders;     // of the lock, in the order of their grants
  std::map<ClientId, Client*> waiting;
  Queue queue;                            // the same
  std::map<ClientId, Client*> evictable;  // without the lock, and with memory that could move out
  // Holders of which more is to be said than that they run with all their memory, and clients that move out or failed to: the others need
  // nothing in a step that is not about them.
  std::map<ClientId, Client*> unsettled;
  std::map<int, int64_t> priorities;  // how many clients have which
  // Without the lock, and not waiting for it: when they had it last. Those of more than kShareWindow ago may be missing.
  std::set<std::pair<Instant, ClientId>> lately;
  std::map<std::pair<Bytes, ClientId>, Client*> slack_takers;  // holders that may be given more than they need, by Client::slack_key
  Bytes needs_most = 0;           // no client's need() beyond its immovable() bytes is more; all may be less by now
  uint64_t holders_hash = 0;      // of who has the lock: a sum, so that one can be taken out
  std::vector<ClientId> touched;  // in the last step: those that it may have changed; some twice, some that are gone
  // What clients were told last, so that nothing is looked at again that is as it was.
  bool ceilings_due = true;
  Bytes ceilings_base = 0;         // safe limit - immovable bytes of all
  ClientId ceilings_next = 0;      // the first to be looked at, of
  size_t ceilings_left = 0;        // so many, with many clients
  Instant ceilings_at = 0;         // and not before then
  std::optional<ClientId> speaks;  // whom the step is about: it is told at once
  bool contention_plain = false;   // nobody has heard of gangs or pauses, and all have heard of these:
  bool contention_limited = false;
  Duration contention_idle = 0;
  Contenders contention_told;
  Duration contention_cost = 0;
  std::optional<Instant> wake_at;
  std::optional<Instant> wake_known;  // as State::wakes has it
  Quota quota;
  ShareTurn share_turn;
  ShareTrial share_trial;
  std::optional<ClientId> next;  // waits for a turn's end: whose memory may come in beside who runs
  ClientId prefetching = 0;      // whose does; 0: nobody's
  Instant prefetch_at = 0;       // nothing more is moved for it before
};

// All of a tenant, or, where that does not fit together, one of its processes.
struct GangId {
  TenantId tenant = 0;
  ProcessId process = 0;  // 0: all of the tenant

  bool operator==(const GangId&) const = default;
  bool operator<(const GangId& other) const { return std::tie(tenant, process) < std::tie(other.tenant, other.process); }
};

// Clients of one tenant on several GPUs (gangs.cc).
struct Gang {
  struct Member {
    GpuId gpu;
    ClientId client;
  };
  GangId id;
  std::vector<Member> members;  // by GPU
  bool whole = false;           // its turns are on all GPUs together: gangs are wanted, and its clients fit together on each GPU
  bool split_noted = false;
  Instant last_used = 0;  // end of its last turn

  // Its turn: from the first grant until no member holds the lock.
  bool in_turn = false;
  Instant granted_at = 0;
  Duration load_allowance = 0;        // of the slowest member
  std::optional<Instant> turn_start;  // when all had loaded that got the lock together
  Duration turn_carried = 0;
  bool interrupted = false;
  int catch_ups = 0;  // in the drain under way
};

// How many clients of a tenant are where, and in all.
struct Spread {
  std::map<GpuId, int64_t> on;
  size_t clients = 0;
};

struct CoreLimit {
  int ceiling = 100, reserved = 0;
};

class State {
 public:
  Config config;
  std::map<GpuId, Gpu> gpus;
  std::unordered_map<ClientId, Client*> clients;        // of all GPUs. To be looked up: its order is none
  std::set<std::pair<Instant, GpuId>> wakes;            // when GPUs are to be looked at again (Gpu::wake_at)
  std::map<TenantId, std::map<GpuId, int64_t>> homes;   // how many clients of tenants are where
  std::map<GpuId, Gpu*> limited;                        // GPUs on which time is billed (Quota::limited)
  std::map<GangId, Gang> gangs;                         // kept up to date by form_gangs()
  std::map<TenantId, Spread> spread;                    // of tenants' clients that may be in gangs
  std::set<TenantId> on_several;                        // tenants of `spread` with several GPUs, and no more than kGangMost clients
  std::set<std::pair<GpuId, ClientId>> asked_together;  // that may be past DrainStep::kAlone
  std::map<TenantId, CoreLimit> core_limits;            // of tenants that have a ceiling or a reservation
  std::map<TenantId, TenantTurns> turns;                // of tenants that take theirs in another way than all
  std::set<TenantId> paused;                            // that get no turns
  std::optional<Bytes> host_available;                  // nullopt: nobody said, so it is not a bound
  std::vector<GpuId> settled;                           // in the last step
  uint64_t next_arrival = 1;
  GrantId next_grant = 1;
  EvictionId next_eviction = 1;
  PrefetchId next_prefetch = 1;
  std::optional<std::string> broken;  // the first invariant that a step violated

  Client* find(ClientId id);
  const Client* find(ClientId id) const;
};

// One call of step().
struct Context {
  State& state;
  Instant now;
  Actions& actions;

  const Config& config() const { return state.config; }
  void wake(Gpu& gpu, Instant at) const {
    if (at > now && (!gpu.wake_at || at < *gpu.wake_at)) gpu.wake_at = at;
  }
  void note(Note::Level level, ClientId client, std::string text) const { actions.push_back(Note{level, client, std::move(text)}); }
  void note(Note::Level level, const Gpu& gpu, TenantId tenant, std::string text) const {
    actions.push_back(Note{level, 0, std::move(text), gpu.id, tenant});
  }
};

std::string mib(Bytes bytes);  // "123 MiB"

}  // namespace nvshare::policy
