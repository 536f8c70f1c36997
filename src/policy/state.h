// What the policy remembers. Plain data in ordered containers, so that the same events always give the same actions; the functions that
// change it stand in one file per concern (README.md). Everything here is private to policy/ and its tests.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "policy/client.h"
#include "policy/constants.h"
#include "policy/flat.h"
#include "policy/limits/quota.h"
#include "policy/policy.h"
#include "policy/sharing/share_gain.h"

namespace nvshare::policy {

// Memory of clients that have left: it counts until somebody has seen it freed, or its grace is over. Invariant: bytes() is their sum.
class DepartedMemory {
 public:
  struct Part {
    Bytes bytes = 0;
    Instant until = 0;
  };
  bool empty() const { return by_client_.empty(); }
  Bytes bytes() const { return bytes_; }
  const std::map<ClientId, Part>& by_client() const { return by_client_; }
  void hold(ClientId client, const Part& part);  // in place of what is held of that client
  void release(ClientId client);

 private:
  std::map<ClientId, Part> by_client_;
  Bytes bytes_ = 0;
};

// A tenant's clients on a GPU.
struct Tenancy {
  Doing does;
  Account* account = nullptr;  // null: none yet
  FlatMap<ClientId, Client*> clients;
  std::vector<Client*> waiting;  // of them, by id
};

// Clients that wait for what others hold.
struct Contenders {
  uint32_t waiters = 0, memory_waiters = 0;

  bool operator==(const Contenders&) const = default;
};

// All that contend on a GPU, in the step that counted them.
struct CountedContenders {
  uint64_t counted_by = 0;  // ContentionCounts
  Contenders all;
};

// Bytes/s in each direction; 0 = not measured yet.
struct LinkSpeed {
  Bytes out = 0, in = 0;
};

// The link between GPU and host memory, as swaps measured it. Invariant: `median` is the median of `of_tenants` as of the last sample, so
// that the word of one tenant among several does not make it faster.
struct Link {
  std::map<TenantId, LinkSpeed> of_tenants;  // that have clients here
  LinkSpeed median;                          // of two the lower one

  // What is counted on: until memory has moved both ways, the other way is taken to be as fast.
  Bytes out() const { return median.out > 0 ? median.out : median.in; }
  Bytes in() const { return median.in > 0 ? median.in : median.out; }
  void take(TenantId tenant, Bytes LinkSpeed::*direction, Bytes sample);
};

// turn_limit(), as long as what it is worked out from is as it was: the safe limit, the link and the configuration.
struct LongestTurn {
  Bytes memory = 0;
  Bytes out = 0, in = 0;
  Duration length = 0;
};

// Turns that began by another's end.
struct Switches {
  mutable std::optional<LongestTurn> longest;
  uint64_t count = 0;
  Duration cost = 0;     // expected, of the last one that was planned
  Duration passing = 0;  // sum of the turns of waking clients that went before others
  Duration noted = 0;    // the length of turns that the log has last
  Instant noted_at = 0;
  std::optional<Instant> note_due;  // of another length, as the last step planned: it is for the log from then on
};

// What clients were told of their ceilings, so that nobody is looked at again whose ceiling is as it was. With more than kCeilingsAtOnce
// clients a change reaches so many of them in a step.
struct CeilingReports {
  bool due = true;                 // a client came, or what it can never move out is other than it was
  Bytes base = 0;                  // safe limit - immovable bytes of all, in the last step
  ClientId next = 0;               // the first to be looked at, of
  size_t left = 0;                 // so many
  Instant at = 0;                  // and not before then
  std::optional<ClientId> speaks;  // whom the step is about: it is told its own at once
};

// The costs of a switch that lock holders were told of whose memory others wait for: none was told less, or more.
struct CostsTold {
  Duration least = std::numeric_limits<Duration>::max(), most = 0;

  bool any() const { return least <= most; }
  void add(Duration cost) {
    least = std::min(least, cost);
    most = std::max(most, cost);
  }
};

// What holds for all clients of what they were told of contention: where that is as it was, only those are looked at that have changed.
struct ContentionReports {
  bool plain = false;  // nobody has heard of gangs or pauses, and all have heard of these:
  bool limited = false;
  bool held = false;
  Duration idle = 0;
  Contenders contenders;  // whether there are any
  Duration cost = 0;
  CostsTold costs;
  std::vector<Client*> to_tell;       // in the step under way
  std::vector<Client*> also_to_tell;  // then: of gangs that have changed, of tenants that were suspended or no longer are
  mutable CountedContenders counted;
};

struct Gang;
struct Spread;
struct GangChanges;

// All of a tenant, or, where that does not fit together, one of its processes.
struct GangId {
  TenantId tenant = 0;
  ProcessId process = 0;  // 0: all of the tenant

  bool operator==(const GangId&) const = default;
  bool operator<(const GangId& other) const { return std::tie(tenant, process) < std::tie(other.tenant, other.process); }
};

// Of a gang that is in use, on one of its GPUs, what others may have to wait for: a client that has the lock, or keeps a place. And which
// may come to wait: a client that has neither.
struct GangStanding {
  bool lacks = false;    // a client there may come to wait
  bool settled = false;  // a client of it may, there or elsewhere, but here all go on, or keep their places
  bool mixed = false;    // the same, and here some do, some do not

  bool operator==(const GangStanding&) const = default;
};

constexpr Instant kEndsAnyTime = std::numeric_limits<Instant>::min();

// When a gang's turn began, less what it had carried over; and that of the last of its clients, if that was later. kEndsAnyTime: it may end
// before its time is over.
struct TurnBegan {
  Instant first = kEndsAnyTime, last = kEndsAnyTime;

  bool operator==(const TurnBegan&) const = default;
};

// Of a gang on one of its GPUs, as GangsHere has it.
struct TurnOnGpu {
  std::optional<TurnBegan> began;  // a client of it there may have to leave for others; of these:
  int priority = 0;                // the highest
  ClientId first = 0;
  size_t placed = 0;  // clients there: how often they have the lock, or a place

  bool operator==(const TurnOnGpu&) const = default;
};

// Gangs by when their turns began, in the order in which those that end at the same time are dropped.
using TurnKey = std::tuple<Instant, int, ClientId>;
using GangsByTurn = FlatMap<TurnKey, Gang*>;

// The gangs on a GPU that are put off (Gang::PutOff), by what makes them be looked at again.
struct GangsPutOff {
  FlatMap<Place, Gang*> behind;                              // others here: while nobody comes first here
  FlatMap<Place, Gang*> beside;                              // wait here as well, and nobody came first here: once somebody does
  FlatMap<std::pair<Bytes, GangId>, Gang*> by_room;          // do not fit here: once so much is free
  FlatMap<std::pair<Bytes, GangId>, Gang*> by_need;          // fit here: once less is free than this
  FlatMap<std::pair<Instant, GangId>, Gang*> low, promoted;  // have lower priority than others: by when they began to wait
  int highest = 0;                                           // priority of a client here, as their places have it
};

// The gangs on a GPU, by what a step asks of them.
struct GangsHere {
  FlatMap<std::pair<Bytes, GangId>, Spread*> by_need;  // all: by Gang::OnGpu::need
  Bytes room = 0;                                      // for them, when they were formed last
  // Of those that are in use, by GangStanding: for the rule that none may run of which two could come to wait for each other.
  FlatMap<GangId, Gang*> lacking, settled, mixed;
  // That may have to leave for others, by both of TurnBegan.
  GangsByTurn by_first, by_last;
  size_t placed = 0;  // a sum over TurnOnGpu
  GangsPutOff put_off;
  size_t most_members = 0;  // no gang ever had more here
  Contenders contenders;    // as the gangs' clients were told of them
};

// When a GPU is to be looked at again.
struct Wake {
  std::optional<Instant> at;       // as the step has it so far
  std::optional<Instant> indexed;  // as State::wakes has it
};

// Whose memory comes in beside those that run (prefetch.cc). One client's at a time.
struct PrefetchPlan {
  std::optional<ClientId> next;  // that waits for a turn's end
  ClientId client = 0;           // whose memory comes in; 0: nobody's
  Instant not_before = 0;        // of the next batch
};

constexpr Duration kShareSpell = 300'000'000;  // ns
constexpr Duration kShareSlice = 100'000'000;

// Which way of sharing gets more done (share_trials.cc): a spell together, then one in turns; between trials looks at who works.
struct ShareTrial {
  enum class Phase { kNone, kSettles, kCounts, kEnds, kLooks, kHasLooked };  // the last two: of a look
  Phase phase = Phase::kNone;
  bool confirms = false;                                                   // the first win of the other way
  bool second = false;                                                     // the spell, in turns
  Instant until = 0;                                                       // the phase
  SharingWay way = SharingWay::kTogether, chosen = SharingWay::kTogether;  // in force; when nothing is tried
  int64_t measured = 0;                                                    // clients that may be
  uint64_t question = 0;
  Instant asked_at = 0;
  std::vector<ClientId> mix;  // that are measured, or were last
  std::set<ClientId> apart;   // that used the GPU as well, and cannot be measured
  bool failed = false;        // the last trial
  GainPool gains;             // of their trials
  int wins = 0;               // of the other way, by what so many trials in a row and those before say
  bool unsure = false;        // whether it wins, after the first of them
  int changes = 0;            // of way, of the same clients
  int pieces = 0;             // of the spell that are yet to be counted
  struct Spells {
    std::map<ClientId, Progress> from, piece_from;
    SpellRates rates;
    SpellPieces counted;
    int odd_looks = 0;                      // since then, in a row: somebody does much more or less
    std::map<ClientId, int> looks_to_work;  // in a row, before one that works seldom counts as one that works all the time
    bool by_chance = false;                 // they met a server that was busy all through them, or say nothing: others are due soon,
    int chances = 1;                        // so often
    bool apart_is_cheap = false;            // all leave gaps, and lose little where each burst waits for the others'
  } spells;
  std::map<ClientId, int> seldom;     // did nothing in a piece of the spell together; looks in a row in which it worked
  std::map<ClientId, Instant> works;  // which of `mix` did when they were asked, and when that was seen last
  bool works_changed = false;         // since the last trial
  std::map<ClientId, Instant> left;   // which of `mix` do not use the GPU any more, and since when
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
  int64_t members = 0;            // clients that are in a group, or measured
  int64_t told = 0;               // of those: in a group
  int64_t fixed = 0;              // of those: not measured
  std::optional<uint64_t> group;  // none: they run as memory allows
  Instant began = 0;
  struct Moment {
    bool learns = false;     // of all, whether they leave gaps
    bool apart = false;      // now: who leaves gaps waits for another's burst
    bool met = false;        // a burst would have met another's, had it not waited for it
    Duration apart_for = 0;  // in it, until `seen_at`
    Instant seen_at = 0, began = 0, until = 0;
  };
  std::optional<Moment> moment;  // in which bursts are put apart while several programs want the GPU
  Instant next_moment = 0;
  Instant trials_rest_until = 0;  // while clients do what they do: nothing of ShareTrial is to be settled before then
  bool bursts_apart() const { return moment && moment->apart; }
  bool holds() const { return group || bursts_apart(); }  // some of those that wait, or may
  bool held = false;                                      // some: since all that wait were looked at without that
  bool watches = false;                                   // turns were chosen, so that it is to be seen who leaves gaps
  bool watches_gaps() const { return group || bursts_apart() || watches; }
  // Between two turns one alone wants the GPU, until the other asks for its next. Clients are told of turns in between, too.
  Instant lingers_until = 0;
  bool lingers = false;
  bool are_known() const { return watches_gaps() || lingers; }
};

// The clients that wait on a GPU (queue.cc).
struct Queue {
  PlaceTerms terms;  // as of the last refresh_queue(), as what stands in `order` and in the two below it
  FlatMap<Place, Client*> order;
  FlatSet<std::pair<Instant, ClientId>> low, promoted;  // of lower priority than others: by when they began to wait
  std::vector<Client*> fresh;                           // that are not in `order` yet
  FlatSet<std::pair<Instant, ClientId>> late;           // that come last until then
  FlatSet<std::pair<Duration, ClientId>> ordinary;      // that others may go before: by Wait::passed_at_start
  // These two are asked for only where there are no limits, and beside limits not kept.
  bool rooms_kept = true;
  FlatSet<std::pair<Bytes, ClientId>> by_room;    // all, by room_asked()
  FlatMap<ClientId, Client*> unplaced;            // that are not is_put_off()
  FlatSet<std::pair<Instant, ClientId>> unnoted;  // whose reason the log does not have: by when it may
  uint32_t waiters = 0, memory_waiters = 0;       // that wait for neighbours; for memory
  std::vector<Client*> free;                      // that neither limits nor turns keep waiting; in no order (QueueEntry::free_at)
  size_t ending = 0;                              // LastTurn::due
  // Of tenants on several GPUs, whose places depend on all of these: they are in no order here.
  size_t of_several = 0;
  FlatMap<ClientId, Client*> looked_at;  // of those: whose gang is not put off
};

// Whether what was decided on a GPU in the last step depends on how much room host memory has.
struct HostQuestions {
  bool decided = false;
  mutable bool asked = false;  // so far, in this step
};

// Clients without the lock of which more is asked than that they wait.
struct Lockless {
  FlatMap<ClientId, Client*> evictable;  // with memory that could move out
  FlatMap<ClientId, Client*> keepers;    // of a place (GangPlace::kept)
  FlatMap<ClientId, Client*> unmet;      // that wait, and whose last turn ended for want of memory (Client::unmet)
};

// What recount() keeps of all clients beside their sums.
struct Recounted {
  uint64_t times = 0;    // what was worked out before the last of them may be another now
  Bytes needs_most = 0;  // no client's need() beyond its immovable() bytes is more; all may be less by now
};

struct Gpu {
  GpuId id = 0;
  Bytes total = 0;
  Bytes foreign = 0;
  Link link;
  Switches switches;
  DepartedMemory departed;
  GangsHere gangs;
  std::map<ClientId, Client> clients;
  std::map<TenantId, Tenancy> of_tenant;  // the same
  int64_t tenants_working = 0;            // with Tenancy::works
  Sums sums;                              // over clients
  Recounted recounted;                    // the same
  FlatMap<GrantId, Client*> holders;      // of the lock, in the order of their grants
  FlatMap<ClientId, Client*> waiting;
  Queue queue;  // the same
  Lockless lockless;
  // Holders of which more is to be said than that they run with all their memory, and clients that move out or failed to: the others need
  // nothing in a step that is not about them.
  FlatMap<ClientId, Client*> unsettled;
  std::map<int, int64_t> priorities;  // how many clients have which
  // Without the lock, and not waiting for it: when they had it last. Those of more than kShareWindow ago may be missing.
  FlatSet<std::pair<Instant, ClientId>> lately;
  FlatMap<std::pair<Bytes, ClientId>, Client*> slack_takers;  // holders that may be given more than they need, by Indexed::slack_key
  uint64_t holders_hash = 0;                                  // of who has the lock: a sum, so that one can be taken out
  std::vector<ClientId> touched;  // in the last step: those that it may have changed; some twice, some that are gone
  CeilingReports ceilings;
  ContentionReports contention;
  Wake wake;
  Quota quota;
  ShareTurn share_turn;
  ShareTrial share_trial;
  PrefetchPlan prefetch;
  HostQuestions host;
};

// Clients of one tenant on several GPUs (gangs.cc).
struct Gang {
  struct Member {
    GpuId gpu;
    ClientId client;
    Gpu* on;  // the same
    Client* is;
  };
  // Its members on a GPU.
  struct OnGpu {
    Gpu* gpu = nullptr;
    size_t begin = 0, end = 0;
    Bytes need = 0;                   // they need together: beside whatever others have, as far as that can be moved out
    GangStanding standing;            // as the lists of GangsHere have it
    TurnOnGpu turn;                   // the same
    bool beside = false;              // GangsPutOff::beside has it
    std::optional<Bytes> fits_while;  // GangsPutOff::by_need has it, by that

    bool operator==(const OnGpu&) const = default;
  };
  GangId id;
  std::vector<Member> members;  // by GPU, then by client
  std::vector<OnGpu> on;        // the same, by GPU
  bool whole = false;           // its turns are on all GPUs together: its clients fit together on each GPU
  Spread* of = nullptr;
  mutable uint64_t reached_by = 0;  // the latest search for rivals that came by
  uint64_t queued_by = 0;           // the latest InOrder that has it (State::searches)
  bool split_noted = false;
  bool parted = false;    // gangs of single processes of this tenant are known, too
  Instant last_used = 0;  // end of its last turn

  // Its turn: from the first grant until no member holds the lock.
  bool in_turn = false;
  Instant granted_at = 0;
  Duration load_allowance = 0;        // of the slowest member
  std::optional<Instant> turn_start;  // when all had loaded that got the lock together
  Duration turn_carried = 0;
  bool interrupted = false;
  int catch_ups = 0;  // in the drain under way

  // It waits behind others and for memory (gang_queue.cc). Until one of its clients changes, its place does, or there may be room for it,
  // that is all that is to be said of it wherever others come first.
  struct PutOff {
    Place place;
    Gpu* behind = nullptr;  // others, there
    Gpu* no_room_on = nullptr;
    Bytes room = 0;         // the least that would have to be free there
    Instant since = 0;      // when the first of its clients began to wait
    Gpu* low_on = nullptr;  // it has lower priority than others, and has not waited for as long as puts it before them there
    bool promoted = false;  // it has lower priority than others, and has waited for so long everywhere

    bool operator==(const PutOff&) const = default;
  };
  std::optional<PutOff> put_off;

  // As ContentionCounts has them, while it is the one that counted them.
  struct Contention {
    uint64_t counted_by = 0;
    size_t holders = 0;     // of its members
    Contenders contenders;  // that are none, on the GPU of its where most are
  };
  mutable Contention contention;
};

// Tenants on several GPUs, by what of their gangs is to be done: a client of theirs has changed, or what it has to fit beside.
struct GangChanges {
  FlatMap<TenantId, Spread*> to_form;      // since they were formed
  FlatMap<TenantId, Spread*> to_list;      // since the lists of GangsHere were brought up to date
  FlatMap<TenantId, Spread*> to_tell;      // since their clients were told of contention
  FlatMap<TenantId, Spread*> asking_back;  // that have clients that keep a place and wait: whether these fit is asked in each step
  FlatMap<GangId, Gang*> loading;          // that are in a turn and have not all loaded
  std::vector<Gang*> brought_back;         // that are not put off any more, since admission looked here last

  void note(TenantId tenant, Spread& spread);
  void forget(TenantId tenant, Spread& spread);
};

// How many clients of a tenant are where, and in all.
struct Spread {
  std::map<GpuId, int64_t> on;
  size_t clients = 0;
  bool changed = true;             // since the tenant's gang was formed: a client has come or gone
  Gang* gang = nullptr;            // that one; null: none is
  uint64_t seen_by = 0;            // the latest of State::searches that came by
  size_t asking_back = 0;          // clients that keep a place and wait
  GangChanges* changes = nullptr;  // null: it is not among State::on_several
  // Whether it is in the lists of `changes`.
  bool to_form = false, to_list = false, to_tell = false;
};

using Gpus = std::vector<Gpu*>;  // in the order of their ids

// HostMemory as told last, and what was moved since.
struct HostRoom {
  Bytes available = 0, free = 0, kept = 0, share = 0;
  std::map<TenantId, Bytes> used;

  Bytes used_by(TenantId tenant) const {
    const auto at = used.find(tenant);
    return at != used.end() ? at->second : 0;
  }
};

// Steps that end where they would change nothing (step.cc MemoryNews).
struct EarlyEnds {
  bool allowed = true;  // false: in tests, to compare
  uint64_t count = 0;
};

class State {
 public:
  Config config;
  std::map<GpuId, Gpu> gpus;
  PointerTable<Client> clients;                        // of all GPUs
  FlatSet<std::pair<Instant, GpuId>> wakes;            // when GPUs are to be looked at again (Gpu::wake)
  std::map<TenantId, std::map<GpuId, int64_t>> homes;  // how many clients of tenants are where
  FlatSet<std::pair<TenantId, GpuId>> away;            // where tenants have accounts (Quota) and no clients
  std::map<GpuId, Gpu*> limited;                       // GPUs on which time is billed (Quota::limited)
  std::map<GangId, Gang> gangs;                        // kept up to date by form_gangs()
  std::map<TenantId, Spread> spread;                   // of tenants' clients that may be in gangs
  FlatMap<TenantId, Spread*> on_several;  // where gangs are wanted: tenants of `spread` with several GPUs and at most kGangMost clients
  std::map<GpuId, std::shared_ptr<const Gpus>> around;  // as gpus_around() found them since that may have changed; many share one
  GangChanges gang_changes;
  std::set<TenantId> apart;                             // that have left on_several since gangs were formed
  std::set<std::pair<GpuId, ClientId>> asked_together;  // that may be past DrainStep::kAlone
  std::map<TenantId, CoreLimit> core_limits;            // of tenants that have a ceiling or a reservation
  std::map<TenantId, TenantTurns> turns;                // of tenants that take theirs in another way than all
  std::set<TenantId> suspended;                         // that get no turns
  std::optional<HostRoom> host;                         // nullopt: nobody said, so it is not a bound
  Gpus settled;                                         // in the last step
  EarlyEnds early_ends;
  uint64_t searches = 0;  // of gpus_around() and rivals_of()
  uint64_t next_arrival = 1;
  uint64_t next_count = 1;  // of contention
  GrantId next_grant = 1;
  EvictionId next_eviction = 1;
  PrefetchId next_prefetch = 1;
  std::optional<std::string> broken;  // the first invariant that a step violated

  Client* find(ClientId id) { return clients.find(id); }
  const Client* find(ClientId id) const { return clients.find(id); }
};

// One call of step().
struct Context {
  State& state;
  Instant now;
  Actions& actions;

  const Config& config() const { return state.config; }
  void wake(Gpu& gpu, Instant at) const {
    if (at > now && (!gpu.wake.at || at < *gpu.wake.at)) gpu.wake.at = at;
  }
  void note(Note::Level level, ClientId client, std::string text) const { actions.push_back(Note{level, client, std::move(text)}); }
  void note(Note::Level level, const Gpu& gpu, TenantId tenant, std::string text) const {
    actions.push_back(Note{level, 0, std::move(text), gpu.id, tenant});
  }
};

std::string mib(Bytes bytes);  // "123 MiB"

}  // namespace nvshare::policy
