// What the policy remembers of one client. Private to policy/ and its tests.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "policy/constants.h"
#include "policy/limits/quota.h"
#include "policy/policy.h"

namespace nvshare::policy {

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
struct Spread;
struct Tenancy;

// Which of a GPU's indexes have a client.
struct Roles {
  GrantId grant = 0;                                // Gpu::holders
  bool waits = false;                               // Gpu::waiting
  bool unsettled = false;                           // Gpu::unsettled
  bool evictable = false;                           // Lockless::evictable
  bool unmet = false;                               // Lockless::unmet
  bool stays = false, works = false, busy = false;  // Tenancy
  std::optional<Instant> lately;                    // Gpu::lately: when it had the lock last

  bool operator==(const Roles&) const = default;
};

// A client's or a gang's place among those that wait (place_of() in places.cc).
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
  bool of_several = false, put_off = false;  // its tenant is on several GPUs; its gang is put off
  size_t free_at = 0;                        // its place in Queue::free; `held`: none
};

struct Joining {
  uint64_t order = 0;  // of arrival
  Instant at = 0;
};

// A client's request for the lock. Of meaning while it waits, but for `asked` and `while_suspended`.
struct Wait {
  bool asked = false;            // it has asked for the lock once, or come with it
  bool while_suspended = false;  // asked while its tenant is suspended
  uint64_t arrival = 0;          // of its request
  Instant since = 0;
  bool woke = false;  // it waits after having been idle, and used little lately
  bool for_memory = false;
  Duration passed_at_start = 0;  // Switches::passing when it began to wait
  WaitReason reason = WaitReason::kNone;
};

// The turn that a client whose tenant ends (TenantEnds) gets before all others.
struct LastTurn {
  bool due = false;   // the client has it before it
  bool runs = false;  // this turn is it
  Duration ran = 0;   // of it so far: one that the client gives up by itself, to write down what it has, goes on later
};

// How much a lock holder may have on the GPU. `bytes` is 0 without the lock, and never less than what is resident with it.
struct Budget {
  Bytes bytes = 0;
  uint64_t sequence = 0;
  Bytes told = 0;               // as last sent with this grant
  bool dirty = false;           // to be sent at the end of this step
  bool slack_declined = false;  // it gave slack back: none again until it grows
};

// A turn's pause: the client keeps the lock, and uses nothing until it says otherwise. Then Turn::start is not set.
struct Pause {
  std::optional<Instant> since;
  Duration unused_before = 0;  // of the turn before; and at which rate that was billed
  int64_t billed_before = 0;
};

// A client's turn, from its grant until the lock is given up. `carried` outlives it, for the turn that resumes an interrupted one.
struct Turn {
  Instant granted_at = 0;
  bool unproven = false;  // only the client says that it had the lock already: it is dropped before all others
  Duration load_allowance = 0;
  bool loads = false;  // has yet to tell that all has come in; its memory counts as resident before the copies are done
  Backoff load;
  std::optional<Instant> start;          // when loading ended
  Duration without_room = 0;             // of the turn: allocations waited for room
  Duration carried = 0;                  // of an interrupted turn that this one resumes
  std::optional<Instant> due_cap;        // passed a larger waiter: has to be gone by that one's turn
  std::optional<Instant> passing_since;  // it ended another's early
  std::optional<Instant> idle_since;     // it pauses, or did so and has not said yet that it goes on
  Pause pause;
  bool interrupted = false;   // being dropped for a waking client, before its time
  Duration interruption = 0;  // work that the switch for which it is being dropped asks for (Switch::quantum)

  // When loading has ended, at the latest when its allowance is over.
  Instant began() const { return start.value_or(granted_at + load_allowance); }
  // When its time is over, were the client in no gang.
  Instant due(Duration length, Duration quantum) const { return std::max(began() - carried + length, began() + std::min(length, quantum)); }
  void end();
};

// Requests to drop in a row that a client did not follow. One that does not for too long comes after everybody else, and for as long
// again after it gave the GPU up.
struct Overstay {
  Instant since = 0, until = 0;  // the first, and the last answer
  bool too_long = false;
  Instant last_until = 0;  // so long it comes last after it gave the GPU up

  bool comes_last(Instant now) const { return too_long || now < last_until; }
  void end(Instant now);  // it gave the GPU up
};

// A request to drop, and how the client's work comes to an end.
struct Drain {
  Instant asked_at = 0;
  DrainStep step = DrainStep::kAlone;
  uint64_t attempt = 0;
  bool tells_end = false;  // it was asked for that
  bool ends_soon = false;  // its answer
  Instant drained_at = 0;
  Duration took = 0;  // its last that ended while nobody went on for its sake: so long its own work takes to end
  Backoff backoff;
  Overstay overstay;

  // The client has told that its work has ended, and waits for our word, or goes on until we ask again.
  bool is_held() const { return step == DrainStep::kDrained || step == DrainStep::kCatchingUp; }
};

// The place of a client that gave the lock up while others of its gang go on: it is kept until the gang's turn ends.
// Invariant: `leaves` and `lost` only with `kept`.
struct GangPlace {
  bool kept = false;
  bool leaves = false;  // the others were asked to drop
  bool lost = false;    // the client waits, and does not fit into it

  bool operator==(const GangPlace&) const = default;
};

// What the turns that are over leave: for the client's place in the waiting order, and for whether it wakes.
struct PastTurns {
  Instant last_used = 0;  // end of the last one; when it joined, if it had none
  Instant released_at = 0;
  bool left_early = false;  // the last one ended by the client's own choice
  Duration earned = 0;      // their work that no switch was charged for
  Usage usage;
};

// Memory that moves out at the scheduler's request, one request at a time.
struct Evictions {
  std::optional<Eviction> current;
  Backoff backoff;
};

// Memory that comes in without the lock, before the client's turn (prefetch.cc).
struct Prefetches {
  bool supported = false;
  std::optional<Prefetch> current;
  bool ended = false;  // nothing more comes in that way before its next turn
  Bytes unused = 0;    // came in so since its last turn, and is still there
};

// The last swap that the client told of. Its messages have running totals.
struct Movement {
  struct Part {
    Bytes copied, unmoved;
  };
  Part take(const SwapProgressed& event);  // what is new in it

 private:
  uint64_t id_ = 0;
  bool out_ = false, ahead_ = false;
  Bytes copied_ = 0, unmoved_ = 0;
};

// What a client was sent last, so that only what differs is sent.
struct Sent {
  struct Rules {  // as SendContention has them
    bool limited = false;
    Duration idle_release = 0;
    bool gang_runs = false;
    Duration pause = 0;
    bool held = false;

    bool operator==(const Rules&) const = default;
  };
  uint32_t waiters = 0, memory_waiters = 0;  // these and the cost: with this grant
  Duration cost = 0;
  std::optional<Rules> rules;  // none yet: a client that has not heard them counts as held
  std::optional<Bytes> ceiling;

  void grant_ends() { waiters = memory_waiters = 0, cost = 0; }
};

// What the log has of a client.
struct Noted {
  uint64_t beside = 0;  // a hash of its neighbours at its grant
  Instant beside_at = 0;
  WaitReason reason = WaitReason::kNone;  // what it waited for
  Instant wait_at = 0;
};

// How a client stands in the indexes of its GPU and tenant, and what it adds to sums. Only recount(), note_place(), note_waiting() and what
// they call change this.
struct Indexed {
  Gpu* home = nullptr;  // null: a copy, to be looked at
  Tenancy* tenancy = nullptr;
  Spread* spread = nullptr;  // its tenant's, where it may be in a gang
  Sums counted;              // its part of Gpu::sums
  Roles roles;
  QueueEntry queued;
  GangPlace place;                 // as Lockless::keepers and `counted` have it
  bool asks_back = false;          // it keeps a place and waits: Spread::asking_back counts it
  std::optional<Bytes> slack_key;  // in Gpu::slack_takers: no more than its slack, which may have grown since
};

// The answer to SendAskProgress.
struct Progress {
  uint64_t question = 0, work = 0;
  Instant at = 0;
};

// A client among groups that share the GPU in different ways (share_turns.cc, share_trials.cc).
struct ShareMember {
  uint64_t group = 0;     // as ClientShares has it
  bool measured = false;  // the same
  Progress progress;
  int gaps_in_row = 0;           // turns that its own choice ended while groups took turns
  bool leaves_by_choice = true;  // so its last such turn ended, or it had none yet, or it did not want it back at once
  Instant beside_until = 0;      // it leaves gaps, so it takes no turns with other groups
  Duration beside_for = 0;       // so long, the last time; 0: since it held on, it has not
  int soon_in_row = 0;           // wishes soon after the turn before
  int held_moments = 0;          // in a row, of those in which bursts are put apart: it had the lock all the time
  // Of one that is measured: it leaves gaps, as far as is known, so that where turns were chosen it takes none.
  bool gappy = true;
  Instant watched_from = 0;       // for that; since then:
  Duration used = 0, unused = 0;  // it had the lock; it neither had nor wanted it
  Instant steady_since = 0;       // it left no gaps, if it leaves none now
  Duration known_after = 0;       // with the lock for so long it leaves none any more; 0: for as long as any

  bool is_in_group() const { return group != 0 || measured; }
  bool is_fixed() const { return group != 0 && !measured; }
  void note_gap(Instant now);
  void watch(Instant from);
  void judge_gaps(Instant now);
  void set_gappy(bool leaves, Instant now);
};

struct StateTimes {
  Duration running = 0, waiting = 0, swapping = 0;
};

// What a client did since it joined, for people. `turns` also tells whether it had one.
struct Totals {
  uint64_t turns = 0, drops = 0, unanswered_drops = 0, failed_drains = 0;
  StateTimes times;  // without the state that it has
  Bytes swapped_out = 0, swapped_in = 0, unmoved = 0;
  Bytes prefetched = 0, prefetched_in_vain = 0;
};

struct Client {
  // Who it is.
  ClientId id = 0;
  GpuId gpu = 0;
  TenantId tenant = 0;
  ProcessId process = 0;
  int priority = 0;
  bool swappable = true;
  bool gang = true;  // as its tenant wants it
  Joining joined;

  // What it has and does.
  Memory memory;
  std::optional<Bytes> overhead;
  ClientState state = ClientState::kIdle;
  Instant since = 0;  // of the state

  // Without the lock.
  Wait wait;
  LastTurn last_turn;
  GangPlace place;
  PastTurns past;
  Evictions evictions;
  Prefetches prefetches;

  // With the lock.
  GrantId grant = 0;  // 0: without the lock
  Budget budget;
  std::optional<Growth> growth;
  Turn turn;
  Drain drain;

  // Of a tenant on several GPUs: its last turn ended while it waited for so much more. It needs that in the next one as well, until it is
  // allocated or asked for anew (growth.cc).
  Bytes unmet = 0;
  ShareMember share;
  Movement movement;
  Totals totals;
  Sent sent;
  Noted noted;
  Indexed indexed;

  bool holds_lock() const { return grant != 0; }
  bool stays() const {
    return state == ClientState::kLoading || state == ClientState::kRunning || state == ClientState::kPaused;
  }  // holds the lock and was not asked to drop
  bool waits() const { return state == ClientState::kWaiting; }
  bool takes_room() const { return stays() || place.kept; }                      // at present
  bool takes_place() const { return stays() || (place.kept && !place.leaves); }  // whoever comes has to fit beside it
};

}  // namespace nvshare::policy
