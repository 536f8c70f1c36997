// What the policy remembers of one client. Private to policy/ and its tests.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "policy/constants.h"
#include "policy/policy.h"
#include "policy/quota.h"

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
  Duration passed_at_start = 0;  // Switches::passing when it began to wait
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

}  // namespace nvshare::policy
