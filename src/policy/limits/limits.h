// What a tenant may use of a GPU's time, and who may therefore run: a block for each file. quota.h is what is remembered of it.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

// quota.cc: accounts of GPU time
// Bills the time since the accounts were right to those that ran in it.
void bring_accounts_up_to(Context& context, Gpu& gpu);
// Nothing has changed for limits since they were settled, and their time has not come: a step about memory alone need not look at them.
// limits_change() is called before something does.
bool limits_rest(const Context& context, const Gpu& gpu);
void begin_accounts(Gpu& gpu, Instant now);  // nobody is billed there up to now, if no tenant has a limit there
Account& account_of(State& state, Gpu& gpu, TenantId tenant, Instant now);
void begin_account(State& state, Gpu& gpu, TenantId tenant, Instant now);  // the same, of a tenant that has come; where it has none
void open_account(Gpu& gpu, Tenancy& tenancy, Account& account);           // for clients that have come
// An account that there is; that of a tenant that left comes back to Quota::accounts, as it stands now. Null: none, or nothing is owed any
// more.
Account* known_account(const Config& config, Gpu& gpu, TenantId tenant);
class Earnings;
class LeftTimes;
// What the accounts of a GPU say at that time, for people: a tenant that runs is billed by steps.
class AccountsAt {
 public:
  AccountsAt(const Config& config, const Gpu& gpu, Instant now);
  ~AccountsAt();
  AccountsAt(const AccountsAt&) = delete;
  AccountsAt& operator=(const AccountsAt&) = delete;
  Account of(const Account& as_billed);

 private:
  const Quota& quota_;
  std::unique_ptr<LeftTimes> rested_;      // worked out once for all of them, as there may be thousands
  std::unique_ptr<Earnings> here_, left_;  // since the accounts were right
};
// A debt outlives the programs that made it, as long as the largest takes to be paid. Where nobody with a limit is left nothing is
// earned, so that what the account says is no measure.
inline bool outlives_clients(const Quota& quota, const Account& account, Instant now) {
  return (account.limit.has_ceiling() || account.lifted.owed > 0) && now - account.last_busy <= std::max(kDebtMax, 2 * quota.period);
}
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
inline Pace pace_of(const Gpu& gpu) { return {gpu.quota.period, gpu.quota.mode == GpuMode::kRotation}; }
Duration window_of(const Config& config, const Pace& pace);
bool is_windowed(const Config& config, const Pace& pace);  // what is not used in a window is lost
inline Duration window_of(const Config& config, const Gpu& gpu) { return window_of(config, pace_of(gpu)); }
inline bool is_windowed(const Config& config, const Gpu& gpu) { return is_windowed(config, pace_of(gpu)); }
Duration rest_of_window(const Config& config, const Gpu& gpu, Instant now);
int64_t billing_rate(const Config& config, const Gpu& gpu, const Account& account);  // of a tenant that runs now

// quota_left.cc: accounts of tenants that left a debt
void set_left_apart(Context& context, Gpu& gpu);  // brings those that are looked at up to date; those that count no more are forgotten
void let_left_rest(const Config& config, Quota& quota);                               // after limits had a look at them
void look_at_all_left(const Config& config, Gpu& gpu);                                // from now on none rests
void earn_left(const Config& config, Gpu& gpu);                                       // the same, and all are as of Quota::until
std::unique_ptr<Account> take_left(const Config& config, Gpu& gpu, TenantId tenant);  // as of Quota::until; null: there is none

// quota_changes.cc: which accounts a step looks at
void look_at_accounts(Context& context, Gpu& gpu);
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
// A turn begins, or goes on after a pause.
inline void note_work_begins(const Client& client) {
  if (Account* const account = client.indexed.tenancy->account; account != nullptr) account->slice.saves = true;
}
// How long turns last beside limits, of one GPU.
class Slices {
 public:
  Slices(const Config& config, const Gpu& gpu) : Slices(config, pace_of(gpu)) {}
  Slices(const Config& config, const Pace& pace) : per_(pace.period), per_beside_(per_) {
    if (pace.rotates) return;
    const SchedulingMode& mode = config.scheduling_mode;
    fixed_ = config.scheduling_slice > 0 ? config.scheduling_slice : mode.slice_ms * kMillisecond;
    const bool of_window = mode.turns_of == SchedulingMode::TurnsOf::kWindow;
    if (of_window) per_ = window_of(config, pace);
    per_beside_ = of_window ? per_ : std::min(per_, kPeriodMax);
  }
  Duration of(int64_t quota) const { return of(quota, per_); }
  Duration of(const Account& account) const { return of(account.quota); }
  // How far a balance that grows at that rate swings from where its tenant is throttled to where it runs again.
  Duration half_band(const Account& account, int64_t rate) const {
    return portion(of(account.quota, account.slice.gappy ? per_beside_ : per_), kWholeGpu - rate) / 2;
  }

 private:
  Duration of(int64_t quota, Duration per) const { return std::max(fixed_ > 0 ? fixed_ : portion(per, quota), kSliceMin); }

  Duration per_, fixed_ = 0;
  Duration per_beside_;  // of those that run beside others because they leave gaps: they take no turns, so that others' are no measure
};
inline constexpr Duration kHalfBandLeast = kSliceMin / 100 / 2;  // Slices::half_band() of the shortest slice and the highest ceiling
bool pass_over_blocked(Context& context, Gpu& gpu);              // whose turn it is, but who cannot have the lock: then it is another's
Verdict may_run(const State& state, const Client& client);       // of a gang: on all of its GPUs
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
Duration idle_release(const Gpu& gpu, const Client& client, Duration of_all);

// quota_notes.cc: what the log says of limits
void note_throttled(Context& context, const Gpu& gpu, Account& account);
void note_released(Context& context, const Gpu& gpu, Account& account);
void note_limit(Context& context, const Gpu& gpu, const Account& account, const CoreLimit& former);  // after it changed
void note_scale(Context& context, Gpu& gpu);                                                         // of the active tenants' reservations
void note_window(Context& context, Gpu& gpu, Duration length);  // before a window of that length is forgotten
void note_mode(Context& context, const Gpu& gpu, GpuMode former);
const char* name_of(GpuMode mode);

// foreseen.cc: others make way for bursts that come at even times
void note_burst_ended(const Context& context, Gpu& gpu, const Client& client, std::optional<Duration> used);  // before learn_overlap()
void note_burst_begins(const Context& context, const Client& client);                                         // a pause is over
void look_at_foreseen(Context& context, Gpu& gpu);  // those that are over, or did not come, are forgotten
// From when on the tenant is not to run, for the sake of others' bursts; nullopt: it may.
std::optional<Instant> makes_way_from(const Context& context, const Gpu& gpu, Account& as_billed);
void take_back(Account& account, Duration unused);                               // quota.cc: that was billed
void note_drop_asked(const Context& context, const Gpu& gpu, Account& account);  // limits ask it to drop
void learn_drain(const Context& context, Gpu& gpu, const Client& client);        // before learn_overlap()

// pauses.cc: a client that has a limit, and the GPU to itself or together with others, keeps the lock in its pauses
int64_t count_there(const Context& context, const Gpu& gpu);  // clients that use the GPU or did so lately; of several not all
Duration may_pause(const Context& context, const Gpu& gpu, const Client& client, int64_t there);  // once idle for so long; 0: it may not
void pause_turn(Context& context, Gpu& gpu, Client& client, const LockPaused& event);
void resume_turn(Context& context, Client& client);
void end_pauses(Context& context, Gpu& gpu);  // those that may not last

}  // namespace nvshare::policy
