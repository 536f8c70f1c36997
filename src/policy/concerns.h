// What the files of this folder offer to each other: one block per file. step() applies an event, then settles the GPU: each function
// below looks at the state as it is and moves it a step towards where it should be, so that no event needs a special path.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

// clients.cc: a client's life and its state
StateTimes times_until(const Client& client, Instant now);  // in all, with the state that it has
void set_state(Client& client, ClientState to, Instant now);
void join(Context& context, const ClientJoined& event);
void take_memory(Gpu& gpu, Client& client, const Memory& memory);  // what a client reports, made consistent
void set_priority(Context& context, const TenantPriority& event);
void set_ends(Context& context, const TenantEnds& event);
void set_suspended(Context& context, const TenantSuspended& event);
void set_turns(Context& context, const TenantTurns& event);
void hold_suspended(Context& context, Gpu& gpu);  // clients of suspended tenants: no turn goes on or is waited for
// A client's place in the indexes by tenant; before it goes.
void note_in_indexes(State& state, Gpu& gpu, Client& client);
void forget_in_indexes(State& state, Gpu& gpu, const Client& client);
// Of one tenant on a GPU.
template <typename Change>
void each_client(Gpu& gpu, TenantId tenant, Change change) {
  if (const auto at = gpu.of_tenant.find(tenant); at != gpu.of_tenant.end()) {
    for (const auto& [id, client] : at->second.clients) change(*client);
  }
}
template <typename Test>
bool any_client(const Tenancy& tenancy, Test test) {
  return std::any_of(tenancy.clients.begin(), tenancy.clients.end(),
                     [&](const auto& entry) { return test(static_cast<const Client&>(*entry.second)); });
}
template <typename Test>
bool any_client(const Gpu& gpu, TenantId tenant, Test test) {
  const auto at = gpu.of_tenant.find(tenant);
  return at != gpu.of_tenant.end() && any_client(at->second, test);
}

// departures.cc
void leave(Context& context, const ClientLeft& event);
void departed_freed(State& state, ClientId client);
void hold_memory(Context& context, const MemoryHeld& event);
void forget_departed(Context& context, Gpu& gpu);  // whose grace is over

// gangs.cc: tenants, or processes, on several GPUs, switched together
// The GPUs that an event is about: nearly always one.
struct AllGpus {};
using Concerned = std::variant<AllGpus, Gpu*, Gpus>;
enum class GangPhase { kOut, kRunning, kLeaving };
struct TurnTerms {
  Duration length = 0;         // how long a turn lasts
  Duration quantum = 0;        // how long it must have lasted before a waking client may end it
  bool wakes = false;          // such a client comes
  bool load_is_stuck = false;  // what holds the lock on this GPU does not fit together
};
// The members of gangs, and how their turns stand: of tenants with clients on these GPUs, which settle_with() found.
void form_gangs(Context& context, const Gpus& gpus);
Gang* find_gang(State& state, const Client& client);
// Null: its turns are its own. Nearly all are, and each step asks again and again.
inline Gang* gang_of(State& state, const Client& client) {
  return state.gangs.empty() || !client.gang ? nullptr : find_gang(state, client);
}
inline const Gang* gang_of(const State& state, const Client& client) { return gang_of(const_cast<State&>(state), client); }
bool is_member(const Gang& gang, const Client& client);
Instant gang_began(const Gang& gang);        // its turn: when all had loaded, or will have at the latest
Duration gang_loaded_for(const Gang& gang);  // before that: no longer than the link takes
std::set<GpuId> gpus_of(const Gang& gang);
GangPhase phase_of(const State& state, const Gang& gang);
bool joins_its_gang(const State& state, const Client& client);            // waits while its gang runs
void keep_place(Context& context, Client& client);                        // it gave the lock up; do others of its gang go on?
bool others_run(const State& state, const Client& client);                // of its gang: they hold the lock
void start_gangs(Context& context, const Gpus& gpus);                     // turns whose members have loaded
std::vector<Client*> stays_together(State& state, const Client& client);  // all that leave with it; empty: it is in no gang
Instant gang_due(const Context& context, const Gang& gang, const TurnTerms& terms);
std::set<GangId> rivals_of(const Context& context, const Gang& comes);  // gangs that must have left before it may come
std::set<GpuId> tied_to(const State& state, GpuId gpu);                 // the GPUs whose turns may depend on that one's, by way of gangs
// The same of several, by way of tenants that are, or could become, gangs.
std::set<GpuId> gpus_around(const State& state, std::set<GpuId> around);
// GPUs to be settled after an event that concerns some (State::settled): those around them now, and around those of `besides`.
// Either all of a gang's GPUs are among them or none.
void settle_with(State& state, const Concerned& concerned, std::set<GpuId> besides);
bool is_settled_with(const Gang& gang, const Gpus& gpus);

// gang_drains.cc: how the members of a gang come to an end together
void take_drained(Context& context, Client& client, const Drained& event);
void settle_gang_drains(Context& context, const Gpus& gpus);
void gang_goes_on(Context& context, const Client& client);  // with its drain given up for all: one of them cannot end

// turns.cc: how long a turn lasts, and how it ends
struct Switch {
  std::set<ClientId> leavers;
  Instant at = 0;
  Bytes out = 0, in = 0;           // that move
  Duration cost = 0;               // expected, of moving what this switch moves
  Duration quantum = 0;            // what a leaver should have worked for that
  std::set<ClientId> interrupted;  // of the leavers: whose time is not over, but a waking client comes
  bool doubtful = false;           // some leaver has not drained lately: nobody is to be held back for this switch
};
Duration swap_time(const Gpu& gpu, Bytes out, Bytes in);
Duration turn_limit(const Config& config, const Gpu& gpu);  // the longest that a turn can last while somebody waits
Duration switch_time(const Config& config, Duration cost);  // of a switch that costs so much
Duration load_allowance(const Gpu& gpu, Bytes out, Bytes in);
std::optional<Instant> end_of_turn(const State& state, const Gpu& gpu, const Client& client);  // a switch as the last; none: of a gang
Instant growth_due(const Context& context, const Client& client, Duration cost);               // the same, for a neighbour's growth
struct Comers {
  std::span<const ClientId> clients;  // that are to run on this GPU
  bool wakes = false;                 // may end turns before their time
  bool at_once = false;               // and need not wait until those have worked for what the switch costs
  std::set<GangId> rivals = {};       // have to leave in any case
  Duration least_cost = 0;            // of the same switch on other GPUs
};
// Prefers leavers whose drain is not in doubt.
std::optional<Switch> plan_switch(const Context& context, const Gpu& gpu, const Comers& comers);
bool drain_is_doubtful(const State& state, const Client& client, Instant now);
Instant drop_due(const Context& context, const Client& client, TurnTerms terms);
TurnTerms terms_of(const Config& config, Duration cost, bool wakes);
// why: for the log.
void ask_to_drop(Context& context, Gpu& gpu, Client& client, const char* why);      // with its gang
void ask_one_to_drop(Context& context, Gpu& gpu, Client& client, const char* why);  // by itself, whatever its gang does
void send_drop(Context& context, Gpu& gpu, Client& client, DrainStep step, const char* why);
// The idle end of which it speaks is no part of its share, but billed where limits hold.
void end_turn(Context& context, Gpu& gpu, Client& client, const LockReleased& event);
void drain_failed(Context& context, Client& client);
void note_overstay(Context& context, Client& client);  // it did not follow a request to drop
void start_running(Context& context, Gpu& gpu);        // whoever has loaded
void watch_answers(Context& context, Gpu& gpu);

// queue.cc: those that wait
QueueKeys keys_of(const Client& client);
Bytes room_asked(const Client& client);
bool is_put_off(const Client& client);                                        // behind others, and for memory
std::optional<Instant> wait_note_due(const Client& client);                   // nullopt: the log has its reason, or asks for none
void set_reason(Client& client, WaitReason reason, bool waited_for_memory);   // why it waits
const PlaceTerms& refresh_queue(const Context& context, Gpu& gpu);            // the order, where there are no gangs
std::vector<Client*> that_may_fit(Gpu& gpu, const Place& after, Bytes room);  // or of which more is to be said than that they wait

// admission.cc: who gets the lock
PlaceTerms place_terms_on(const Context& context, const Gpu& gpu);
Place place_of(const Context& context, const PlaceTerms& terms, const Client& client);
void request_lock(Context& context, Gpu& gpu, Client& client);
void grant(Context& context, Gpu& gpu, Client& client);
void admit(Context& context, const Gpus& gpus);
// The first of the waiting on a GPU that do not fit now, but will by somebody's leaving: one client, or those of a gang.
struct Head {
  std::span<const ClientId> clients;
  Switch plan;
};
using Heads = std::map<GpuId, std::optional<Head>>;
bool fits_beside(const Context& context, const Gpu& gpu, const Head& head, std::span<const ClientId> comers);
bool fits_when_departed_freed(const Context& context, const Gpu& gpu, std::span<const ClientId> clients);
// Lock holders whose needs pass their ceilings: the contexts of clients that came later take what they need. Right as long as no client
// changes.
class Pressed {
 public:
  Pressed(const Config& config, Gpu& gpu);
  bool empty() const { return empty_; }
  // Its context, and others that came after an older lock holder, take what that one needs: the older one ends first.
  bool crowded_by(const Client& comer) const;

 private:
  struct Part {
    uint64_t joined;
    Bytes bytes;
  };
  Bytes taken_after(uint64_t joined) const;  // for good, by clients that joined later

  bool empty_ = true;
  std::vector<Part> later_;  // by joining: what it takes for good, and all after it
  std::vector<Part> lacks_;  // by joining: the most that one of them, or of those before it, lacks and would have without those after it
};
void ask_leavers_to_drop(Context& context, Gpu& gpu, const Switch& plan);
// They would not fit if all lock holders who answer left.
bool cannot_have_it_soon(WaitReason reason);  // not by waiting alone
WaitReason why_not_even_alone(const Context& context, const Gpu& gpu, std::span<const ClientId> clients);

// trades.cc: where nobody is whole and host memory is short
void trade_places(Context& context, Gpu& gpu);

// gang_admission.cc: a gang's turn, on all GPUs where its members wait
using Waiting = std::map<GpuId, std::vector<ClientId>>;
// For a gang that runs without those who wait: they get the lock if that makes it complete. A gang that lacks a member may be unable
// to drain, a complete one can.
bool complete_gang(Context& context, const Waiting& waiting);
void admit_gang(Context& context, Heads& heads, Gang& gang, const Waiting& waiting);

// pauses.cc: a client that has a limit, and the GPU to itself or together with others, keeps the lock in its pauses
int64_t count_there(const Context& context, const Gpu& gpu);  // clients that use the GPU or did so lately; of several not all
Duration may_pause(const Context& context, const Gpu& gpu, const Client& client, int64_t there);  // once idle for so long; 0: it may not
void pause_turn(Context& context, Gpu& gpu, Client& client, const LockPaused& event);
void resume_turn(Context& context, Client& client);
void end_pauses(Context& context, Gpu& gpu);  // those that may not last

// share_trials.cc: which way of sharing gets more done
void take_progress(const Context& context, Gpu& gpu, Client& client, const ClientProgressed& event);
void settle_share_trials(Context& context, Gpu& gpu);

// share_turns.cc: groups of clients that share the GPU in different ways take turns where all fit
void take_shares(Gpu& gpu, Client& client, const ClientShares& event);
void forget_shares(Gpu& gpu, const Client& client);  // which leaves
void settle_share_turns(Context& context, Gpu& gpu);
bool has_share_turn(const Context& context, const Gpu& gpu, const Client& client);  // or needs none
Duration begin_long_moment(const Context& context, Gpu& gpu);  // that tells who leaves gaps no more, and its length; 0: nobody is known to
void note_share_turn(const Context& context, const Gpu& gpu, Client& client, bool by_choice);  // its turn ends
void note_share_wish(const Context& context, const Gpu& gpu, Client& client);                  // it wants the lock

// quota.cc: accounts of GPU time
// Bills the time since the accounts were right to those that ran in it.
void bring_accounts_up_to(Context& context, Gpu& gpu);
// Nothing has changed for limits since they were settled, and their time has not come: a step about memory alone need not look at them.
// limits_change() is called before something does.
bool limits_rest(const Context& context, const Gpu& gpu);
void begin_accounts(Gpu& gpu, Instant now);  // nobody is billed there up to now, if no tenant has a limit there
Account& account_of(State& state, Gpu& gpu, TenantId tenant, Instant now);
void open_account(Gpu& gpu, Tenancy& tenancy, Account& account);  // for clients that have come
// An account that there is; that of a tenant that left comes back to Quota::accounts, as it stands now. Null: none, or nothing is owed any
// more.
Account* known_account(const Config& config, Gpu& gpu, TenantId tenant);
Account left_account(const Config& config, const Gpu& gpu, const Account& as_left);  // one of Quota::left as of Quota::until
// What it owes at that time, for people: a tenant that runs is billed by steps.
Account account_at(const Config& config, const Gpu& gpu, const Account& as_billed, Instant now);
bool outlives_clients(const Quota& quota, const Account& account, Instant now);
void set_left_apart(Context& context, Gpu& gpu);  // brings those that left up to date; those that owe nothing any more are forgotten
// Tenants below their shares that want the GPU: what another uses beyond its own is taken from them.
struct Pressers {
  bool any = false, several = false;
  TenantId tenant = 0;  // one of them
  bool press(const Account& account) const { return several || (any && tenant != account.tenant); }
};
Pressers pressers(const Gpu& gpu);
void set_core_limit(Context& context, const ComputeLimit& event);
void take_kept_account(Context& context, const AccountKept& event);
void quota_config_changed(Context& context, const Config& former);  // after it did
// Before the client's turn is forgotten. used: as LockReleased has it.
void quota_turn_ended(Context& context, Gpu& gpu, const Client& client, bool by_choice, std::optional<Duration> used);
// The same of a turn that a pause ends; the first returns what quota_turn_ended is to be told.
std::optional<Duration> note_unused_before_pause(const Context& context, const Gpu& gpu, Client& client, std::optional<Duration> used);
void quota_pause_ended(const Context& context, const Gpu& gpu, Client& client);  // before Pause::since is forgotten
Duration hand_over(const Gpu& gpu);                                              // what one costs
Duration window_of(const Config& config, const Gpu& gpu);
bool is_windowed(const Config& config, const Gpu& gpu);  // what is not used in a window is lost
Duration rest_of_window(const Config& config, const Gpu& gpu, Instant now);
int64_t billing_rate(const Config& config, const Gpu& gpu, const Account& account);  // of a tenant that runs now

// quota_changes.cc: which accounts a step looks at
void look_at_accounts(Context& context, Quota& quota);
void judge_uses(Context& context, Gpu& gpu);                                 // who runs, and who leaves gaps
const std::vector<Account*>& accounts_held(const Config& config, Gpu& gpu);  // may_be_held(), and maybe others; in the order of tenants
Present count_present(const Config& config, const Gpu& gpu);
Instant last_busy(const Quota& quota, const Account& account);
void insert_by_tenant(std::vector<Account*>& accounts, Account* account);
void erase_by_tenant(std::vector<Account*>& accounts, const Account* account);  // it is in there
// Makes the list of accounts_held() anew: each account that is apart is added, in the order of tenants.
class HeldAnew {
 public:
  explicit HeldAnew(Changes& changes);
  ~HeldAnew();
  HeldAnew(const HeldAnew&) = delete;
  HeldAnew& operator=(const HeldAnew&) = delete;
  // Without a branch: no processor could predict it.
  void add(Account& account, bool held) {
    changes_.held[size_] = &account;
    size_ += held;
  }

 private:
  Changes& changes_;
  size_t size_ = 0;
};

// quota_overlap.cc: what a tenant keeps of its speed beside others
void note_overlap(Overlap& overlap, Duration time, int64_t running);  // its tenant ran for so long, as one of so many
// Before the client's turn, or the part of it that a pause ends, is forgotten. What it says of it: as LockReleased has it.
void learn_overlap(const Context& context, const Gpu& gpu, const Client& client, std::optional<Duration> used, uint64_t work);

// quota_shares.cc: what each tenant is entitled to
void settle_shares(Context& context, const Gpus& gpus);

// quota_ranking.cc: who comes next of those that take turns
class Exclusive;
// A balance as the time in which the quota adds up to it: who is owed most is furthest behind.
Duration owed(Duration balance, int64_t quota);
inline Duration owed(const Account& account) { return owed(account.balance, account.quota); }
// The account stands apart from now on, as it is now. Before anything that it says, or does, is asked for or changes.
void unrank(Quota& quota, Account& account);
void unrank_all(Quota& quota);  // also where others than before take turns
void note_to_rank(Changes& changes, Account& account);
Account unranked(const Quota& quota, const Account& account);  // as it would be
void note_ranked_time(Quota& quota, const RankedTime& time);   // what they earned in it is in Ranking::earned
void set_ranked_quota(Quota& quota, int64_t quota_of_each);    // whose ceiling is below it leaves
bool may_stay_ranked(const Ranking& ranking, const Account& account);
struct NextTurn {
  Account* account = nullptr;  // null: nobody
  Duration owed = 0;
};
// Of those that may run. A throttled tenant may, too, where the GPU would stand still.
NextTurn next_of(Context& context, Gpu& gpu, const Exclusive& is_exclusive, TenantId but_not);

// quota_turns.cc: who may run
enum class Verdict { kRun, kLimit, kShare };
const char* name_of(GpuMode mode);  // view.cc
Present count_present(const Config& config, const Gpu& gpu);
void settle_quota(Context& context, Gpu& gpu);  // unless limits rest
void watch_quota(Context& context, Gpu& gpu);   // when to look again
// Which tenants take turns with others that do, of one GPU as it is now: asked of each account in most steps, hence without branches: no
// processor could predict them.
class Exclusive {
 public:
  Exclusive(const Config& config, const Gpu& gpu);
  bool operator()(const Account& account) const { return (exclusive_ >> manner_of(account) & 1U) != 0; }

 private:
  static unsigned manner_of(const Account& account) { return manner(account.gang, account.slice.gappy, account.sharing); }
  static constexpr unsigned manner(bool gang, bool gappy, TenantSharing sharing) {
    return static_cast<unsigned>(gang) | static_cast<unsigned>(gappy) << 1U | static_cast<unsigned>(sharing) << 2U;
  }

  static constexpr unsigned bits_of(TenantSharing sharing) {
    return 1U << manner(false, false, sharing) | 1U << manner(false, true, sharing);
  }

  unsigned exclusive_ = 0;  // a bit for each manner. A gang has its turns on several GPUs at once, and takes none
};
// It takes turns and waits for its own.
inline bool waits_for_turn(const Exclusive& is_exclusive, const Account& account) {
  const bool waits = account.does.waits > 0, throttled = account.throttled, exclusive = is_exclusive(account);
  return (waits & !throttled & exclusive) != 0;
}
// It is throttled, or uses up its ceiling.
inline bool is_at_ceiling(const Account& account) {
  const bool throttled = account.throttled, ceiling = account.limit.has_ceiling(), used_up = account.ceiling_balance <= 0;
  return (throttled | (ceiling & used_up)) != 0;
}
// It yields, or owes. Those that take turns may owe: next is always who is owed most.
inline bool is_above_quota(const Exclusive& is_exclusive, const Account& account) {
  const bool yields = account.yields, owes = account.balance <= 0, exclusive = is_exclusive(account);
  return (yields | (owes & !exclusive)) != 0;
}
inline bool may_be_held(const Exclusive& is_exclusive, const Account& account) {
  const bool at_ceiling = is_at_ceiling(account), above_quota = is_above_quota(is_exclusive, account);
  return (at_ceiling | above_quota) != 0;
}
// How long turns last beside limits, of one GPU as it is now.
class Slices {
 public:
  Slices(const Config& config, const Gpu& gpu) : per_(gpu.quota.period) {
    if (gpu.quota.mode == GpuMode::kRotation) return;
    const SchedulingMode& mode = config.scheduling_mode;
    fixed_ = config.scheduling_slice > 0 ? config.scheduling_slice : mode.slice_ms * kMillisecond;
    if (mode.turns_of == SchedulingMode::TurnsOf::kWindow) per_ = window_of(config, gpu);
  }
  Duration of(int64_t quota) const { return std::max(fixed_ > 0 ? fixed_ : portion(per_, quota), kSliceMin); }
  Duration of(const Account& account) const { return of(account.quota); }
  // How far a balance that grows at that rate swings from where its tenant is throttled to where it runs again.
  Duration half_band(const Account& account, int64_t rate) const { return portion(of(account), kWholeGpu - rate) / 2; }

 private:
  Duration per_, fixed_ = 0;
};
// Limits keep all of its clients waiting that wait, and they know of that verdict.
bool knows_verdict(const Gpu& gpu, const Account& account, Verdict verdict);
bool pass_over_blocked(Context& context, Gpu& gpu);         // whose turn it is, but who cannot have the lock: then it is another's
Verdict may_run(const State& state, const Client& client);  // of a gang: on all of its GPUs
// A client that does not end and is in no gang, beside limits.
inline Verdict may_run(const Exclusive& is_exclusive, const Quota& quota, const Account& account) {
  if (account.throttled) return Verdict::kLimit;
  if (account.yields) return Verdict::kShare;
  return quota.owner != account.tenant && is_exclusive(account) ? Verdict::kShare : Verdict::kRun;
}
void take_turns_of_tenant(const State& state, Account& account);  // what State::turns says of it
inline Duration half_band(const Config& config, const Gpu& gpu, const Account& account, int64_t rate) {
  return Slices(config, gpu).half_band(account, rate);
}
Duration idle_release(const Gpu& gpu);

// budgets.cc
void raise_budgets(Context& context, Gpu& gpu);
void lower_budget(Gpu& gpu, Client& client, const MemoryChanged& event);  // what the client gives back by itself
void give_slack(Context& context, Gpu& gpu);
void send_budget(Context& context, Gpu& gpu, Client& client);  // if it changed in this step
void send_budgets(Context& context, Gpu& gpu);

// growth.cc: allocations that wait, and lock holders that no longer fit together
void take_growth(Context& context, Client& client, const MemoryChanged& event);
void growth_ends(Client& client, Instant now);            // answered, or no longer wanted
void note_unmet(const Context& context, Client& client);  // before a turn's growth is forgotten
void forget_unmet(Client& client);
void settle_growth(Context& context, Gpu& gpu);

// eviction.cc
void evict_shortfall(Context& context, Gpu& gpu);
void evict_suspended(Context& context, Gpu& gpu);  // what clients of suspended tenants have
// Room for one that comes next, while nobody waits for it yet. False: nobody has anything to move.
bool evict_ahead(Context& context, Gpu& gpu, const Client& next, Bytes bytes);
void watch_evictions(Context& context, Gpu& gpu);
void take_swap(Context& context, Gpu& gpu, Client& client, const SwapProgressed& event);

// prefetch.cc: the next switch's memory moves beside who runs
void prefetch_next(Context& context, Gpu& gpu);
void put_off_prefetch(const Context& context, Gpu& gpu);  // others need the link
void prefetch_ends(Gpu& gpu, Client& client);             // it is over, or a grant takes its place; or the client leaves
void take_prefetched(Gpu& gpu, Client& client, const SwapProgressed& event, Bytes copied);
void note_in_vain(Client& client, Bytes resident);  // no more than that is left on the GPU

// notes.cc: what the log says of routine decisions. What happens many times a second has a line in kNotePause, which counts the others.
void note_throttled(Context& context, const Gpu& gpu, Account& account);
void note_released(Context& context, const Gpu& gpu, Account& account);
void note_limit(Context& context, const Gpu& gpu, const Account& account, const CoreLimit& former);  // after it changed
void note_scale(Context& context, Gpu& gpu);                                                         // of the active tenants' reservations
void note_window(Context& context, Gpu& gpu, Duration length);  // before a window of that length is forgotten
void note_mode(Context& context, const Gpu& gpu, GpuMode former);
void note_switch_time(Context& context, Gpu& gpu, const Switch& plan);
void note_grant(Context& context, const Gpu& gpu, Client& client);
void note_wait(Context& context, const Gpu& gpu, Client& client);

// reports.cc: what clients and people are told
// Contenders, counted once a step for each GPU and gang. Right as long as no client changes.
class ContentionCounts {
 public:
  struct OfGang {
    size_t holders = 0;     // of its members
    Contenders contenders;  // that are none, on the GPU of its where most are
  };
  explicit ContentionCounts(const State& state) : state_(state) {}
  const Contenders& on(const Gpu& gpu);
  const OfGang& of(const Gang& gang);

 private:
  const State& state_;
  std::map<GpuId, Contenders> on_gpus_;
  std::map<GangId, OfGang> of_gangs_;
};
void report_contention(Context& context, Gpu& gpu, ContentionCounts& counts);
void report_ceilings(Context& context, Gpu& gpu);
void report_waits(Context& context, Gpu& gpu);
std::string waiting_sentence(const State& state, const Gpu& gpu, const Client& client);

}  // namespace nvshare::policy
