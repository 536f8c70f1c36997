// What each active tenant is entitled to on each GPU (docs/adr/0017): its reservation, and of the rest as much as everybody else up to its
// ceiling. A ceiling only ever takes: no figure here grows for anybody because a ceiling of its own was set.
#include <array>
#include <functional>
#include <tuple>
#include <utility>

#include "policy/limits/limits.h"

namespace nvshare::policy {

void scale_reservations(std::vector<Claim>& claims) {
  int64_t sum = 0, most = kWholeGpu;
  for (const Claim& claim : claims) {
    sum += claim.reserved;
    if (claim.reserved == 0) most = kWholeGpu - kRestLeast;
  }
  if (sum <= most) return;
  for (Claim& claim : claims) claim.reserved = claim.reserved * most / sum;
}

namespace {

constexpr int64_t kPercent = kWholeGpu / 100;

struct ClaimSums {
  int64_t reserved = 0, ceilings = 0;
  int64_t reserved_most = kWholeGpu;  // without scaling

  void add(const Claim& claim) {
    reserved += claim.reserved;
    ceilings += claim.ceiling;
    if (claim.reserved == 0) reserved_most = kWholeGpu - kRestLeast;
  }
};

ClaimSums sums_of(const std::vector<Claim>& claims) {
  ClaimSums sums;
  for (const Claim& claim : claims) sums.add(claim);
  return sums;
}

// Where `rising` of the shares, more or less than below it, rise with the level.
struct Border {
  int64_t at = 0, rising = 0;
};

// At each per cent.
using Percents = std::array<int64_t, 101>;

void add_borders(std::vector<Border>& borders, const Percents& percents) {
  for (int64_t percent = 0; percent <= 100; ++percent) {
    if (const int64_t rising = percents[static_cast<size_t>(percent)]; rising != 0) borders.push_back({percent * kPercent, rising});
  }
}

// In their order. Most tenants ask for whole per cents, so that few are different.
std::vector<Border> borders_of(const std::vector<Claim>& claims) {
  Percents percents{};
  std::vector<Border> borders;
  borders.reserve(101);
  const auto add = [&](int64_t at, int64_t rising) {
    const int64_t percent = at / kPercent;
    if (percent * kPercent == at && percent >= 0 && percent <= 100) {
      percents[static_cast<size_t>(percent)] += rising;
    } else {
      borders.push_back({at, rising});
    }
  };
  for (const Claim& claim : claims) {
    add(claim.reserved, 1);
    add(claim.ceiling, -1);
  }
  const auto others = static_cast<std::ptrdiff_t>(borders.size());
  add_borders(borders, percents);
  if (others == 0) return borders;
  const auto less = [](const Border& a, const Border& b) { return std::tie(a.at, a.rising) < std::tie(b.at, b.rising); };
  std::sort(borders.begin(), borders.begin() + others, less);
  std::inplace_merge(borders.begin(), borders.begin() + others, borders.end(), less);
  return borders;
}

// What one more claim would get beside those of a GPU, for many of them: each costs a search among the borders.
class OneMore {
 public:
  using ToScale = std::function<std::vector<Claim>()>;  // the claims, where they have to be scaled for one more

  // `borders`: theirs, as borders_of() has them.
  OneMore(const ClaimSums& sums, const std::vector<Border>& borders, ToScale claims) : sums_(sums), claims_(std::move(claims)) {
    steps_.reserve(borders.size());
    int64_t level = 0, filled = 0, rising = 0;
    for (const Border& border : borders) {
      filled += rising * (border.at - level);
      level = border.at;
      rising += border.rising;
      steps_.push_back({level, filled, rising});
    }
  }

  int64_t share(const Claim& more) const {
    const int64_t most = more.reserved == 0 ? kWholeGpu - kRestLeast : sums_.reserved_most;
    if (sums_.reserved + more.reserved > most) return share_of_scaled(more);
    const int64_t level = sums_.ceilings + more.ceiling > kWholeGpu ? level_with(more) : kWholeGpu;
    return std::max(more.reserved, std::min(more.ceiling, level));
  }

 private:
  // Up to the level the shares take `filled` beyond what is reserved; above it `rising` of them go on.
  struct Step {
    int64_t level, filled, rising;
  };

  int64_t share_of_scaled(const Claim& more) const {
    std::vector<Claim> claims = claims_();
    claims.push_back(more);
    scale_reservations(claims);
    share_out(claims);
    return claims.back().share;
  }

  int64_t level_with(const Claim& more) const {
    const int64_t left = kWholeGpu - sums_.reserved - more.reserved;
    if (left <= 0) return 0;
    const auto own = [&](int64_t level) { return std::clamp(level, more.reserved, more.ceiling) - more.reserved; };
    const auto own_rises = [&](int64_t level) { return static_cast<int64_t>(more.reserved <= level && level < more.ceiling); };
    const auto next =
        std::partition_point(steps_.begin(), steps_.end(), [&](const Step& step) { return step.filled + own(step.level) < left; });
    Step last = next == steps_.begin() ? Step{0, 0, 0} : *(next - 1);
    for (const int64_t border : {more.reserved, more.ceiling}) {  // its own may come before the next one
      const int64_t filled = last.filled + last.rising * (border - last.level);
      if (border > last.level && (next == steps_.end() || border < next->level) && filled + own(border) < left)
        last = {border, filled, last.rising};
    }
    const int64_t rising = last.rising + own_rises(last.level);
    return rising > 0 ? last.level + (left - last.filled - own(last.level)) / rising : last.level;
  }

  const ClaimSums sums_;
  const ToScale claims_;
  std::vector<Step> steps_;
};

}  // namespace

int64_t share_beside(const std::vector<Claim>& claims, const Claim& more) {
  return OneMore(sums_of(claims), borders_of(claims), [&] { return claims; }).share(more);
}

static int64_t level_of(const ClaimSums& sums, const std::vector<Border>& borders) {
  if (sums.ceilings <= kWholeGpu) return kWholeGpu;
  int64_t rising = 0, level = 0, left = kWholeGpu - sums.reserved;
  for (const Border& border : borders) {
    if (rising * (border.at - level) >= left) break;
    left -= rising * (border.at - level);
    level = border.at;
    rising += border.rising;
  }
  return rising > 0 ? level + std::max<int64_t>(left, 0) / rising : level;
}

static int64_t share_at(int64_t level, const Claim& claim) { return std::max(claim.reserved, std::min(claim.ceiling, level)); }

static void share_out(std::vector<Claim>& claims, const std::vector<Border>& borders) {
  const int64_t level = level_of(sums_of(claims), borders);
  for (Claim& claim : claims) claim.share = share_at(level, claim);
}

void share_out(std::vector<Claim>& claims) { share_out(claims, borders_of(claims)); }

namespace {

void look_at_tenants(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  begin_accounts(gpu, context.now);
  if (quota.accounts_here < gpu.of_tenant.size()) {
    for (const auto& [tenant, clients] : gpu.of_tenant) {
      if (clients.account == nullptr) account_of(context.state, gpu, tenant, context.now);
    }
  }
  const bool was_limited = quota.limited;
  look_at_accounts(context, gpu);
  set_left_apart(context, gpu);
  if (quota.limited == was_limited) return;
  if (quota.limited) {
    context.state.limited.emplace(gpu.id, &gpu);
  } else {
    context.state.limited.erase(gpu.id);
  }
}

Claim claim_of(const Account& account) { return {account.limit.reserved * (kWholeGpu / 100), account.limit.ceiling_rate()}; }

// The claims of the tenants that are active on a GPU.
struct Sharing {
  std::vector<Account*> accounts;
  std::vector<Claim> claims;
  std::vector<Border> borders;  // of the claims, when they were shared out last
};
using Claims = std::vector<Claim*>;  // of a gang, one for each of its GPUs

int64_t least_share(const Claims& claims) {
  return (*std::min_element(claims.begin(), claims.end(), [](const Claim* a, const Claim* b) { return a->share < b->share; }))->share;
}

// A gang's turns are as long on all its GPUs: its share is the least that it has on one of them. The gang that has least is fixed first;
// what it leaves on its other GPUs is shared by the same rule.
void even_out(std::map<GpuId, Sharing>& gpus, std::map<TenantId, Claims> gangs) {
  for (const auto& [tenant, claims] : gangs) {
    int64_t least = kWholeGpu;
    for (const Claim* claim : claims) least = std::min(least, claim->reserved);
    for (Claim* claim : claims) claim->reserved = least;
  }
  for (;;) {
    for (auto& [id, sharing] : gpus) {
      sharing.borders = borders_of(sharing.claims);
      share_out(sharing.claims, sharing.borders);
    }
    if (gangs.empty()) return;
    const auto next = std::min_element(gangs.begin(), gangs.end(),
                                       [](const auto& a, const auto& b) { return least_share(a.second) < least_share(b.second); });
    const int64_t share = least_share(next->second);
    for (Claim* claim : next->second) claim->ceiling = share;
    gangs.erase(next);
  }
}

void set_share(const Config& config, const Gpu& gpu, Account& account, int64_t share, Instant now) {
  const int64_t former = std::exchange(account.quota, share);
  if (!is_windowed(config, gpu)) return;
  // A new quota counts from its window's beginning: what was used stays used. A tenant that comes in mid-window has the rest of it.
  account.balance += former > 0 ? portion(window_of(config, gpu), share - former) : portion(rest_of_window(config, gpu, now), share);
}

// What tenants that are not active would have if they were.
class IdleShares {
 public:
  IdleShares(const ClaimSums& sums, const std::vector<Border>& borders, OneMore::ToScale claims)
      : one_more_(sums, borders, std::move(claims)) {}

  int64_t of(const Account& account) {
    if (account.limit.reserved > 0) return one_more_.share(claim_of(account));
    std::optional<int64_t>& known = of_ceilings_[static_cast<size_t>(account.limit.ceiling)];
    if (!known) known = one_more_.share(claim_of(account));
    return *known;
  }

 private:
  const OneMore one_more_;
  std::array<std::optional<int64_t>, 101> of_ceilings_;  // without a reservation
};

void set_shares(Context& context, Gpu& gpu, const Sharing& sharing) {
  const Config& config = context.config();
  const bool one_by_one = !config.scheduling_mode.scales;
  const auto in_force = [&](const Account& account, int64_t share) {
    return one_by_one && account.limit.has_ceiling() ? account.limit.ceiling_rate() : share;
  };
  const ClaimSums sum_of_claims = sums_of(sharing.claims);
  int64_t demand = 0, ceilings = 0;
  for (size_t i = 0; i < sharing.accounts.size(); ++i) {
    Account& account = *sharing.accounts[i];
    set_share(config, gpu, account, in_force(account, sharing.claims[i].share), context.now);
    demand += account.quota;
    ceilings += account.limit.ceiling_rate();
  }
  IdleShares idle(sum_of_claims, sharing.borders, [&] { return sharing.claims; });
  gpu.quota.shares_known = context.state.gangs.empty();  // these even their shares out
  gpu.quota.most_of_idle.reset();
  const auto set_idle = [&](Account& account) { set_share(config, gpu, account, in_force(account, idle.of(account)), context.now); };
  for (Account& account : gpu.quota.accounts) {
    account.shared = {account.active, account.limit.ceiling, account.limit.reserved};
    if (!account.active) set_idle(account);
  }
  if (gpu.quota.left.settles) {
    look_at_all_left(config, gpu);
    for (Account* account : gpu.quota.left.looked_at) set_idle(*account);
  }
  if (!one_by_one) note_scale(context, gpu);
  gpu.quota.changes.counted.reset();
  gpu.quota.changes.balances = gpu.quota.changes.hold_all = true;
  gpu.quota.over_asked = ceilings > kWholeGpu;
  gpu.quota.full_demand = demand >= kWholeGpu - kWholeGpu / 1000;
}

// Up to which level the shares rise, `rising` of them from the beginning, and take all that is not reserved.
int64_t level_of(const ClaimSums& sums, const Percents& percents, int64_t rising) {
  int64_t level = 0, left = kWholeGpu - sums.reserved;
  for (size_t percent = 0; percent < percents.size(); ++percent) {
    if (percents[percent] == 0) continue;
    const int64_t border = static_cast<int64_t>(percent) * kPercent;
    if (rising * (border - level) >= left) break;
    left -= rising * (border - level);
    level = border;
    rising += percents[percent];
  }
  return rising > 0 ? level + std::max<int64_t>(left, 0) / rising : level;
}

// What one more would get that has neither a reservation nor a ceiling. With a ceiling below that it would get its ceiling, as OneMore has
// it: the level then lies above that.
int64_t share_of_one_more(const ClaimSums& sums, const Percents& percents) {
  return sums.ceilings > 0 ? level_of(sums, percents, 1) : kWholeGpu;
}

// The active tenants' claims, all of whole per cents. False: some reservation has to be scaled, or would be for one more.
bool count_claims(const Changes& changes, ClaimSums& sums, Percents& percents) {
  if (const Ranking& ranking = changes.ranking; !ranking.places.empty()) {  // all of them are active, and none has a reservation
    sums.add({});
    sums.ceilings = 0;
    percents[0] = std::ssize(ranking.places);
    for (size_t percent = 0; percent < percents.size(); ++percent) {
      percents[percent] -= ranking.ceilings[percent];
      sums.ceilings += ranking.ceilings[percent] * static_cast<int64_t>(percent) * kPercent;
    }
  }
  for (const Account* account : changes.apart) {
    if (!account->active) continue;
    sums.add(claim_of(*account));
    ++percents[static_cast<size_t>(account->limit.reserved)];
    --percents[static_cast<size_t>(account->limit.ceiling)];
  }
  return sums.reserved <= sums.reserved_most;
}

// The same as IdleShares beside claims of whole per cents, of which few ask for more than a ceiling.
class IdlePercents {
 public:
  IdlePercents(const Accounts& accounts, const ClaimSums& sums, const Percents& percents)
      : accounts_(accounts), sums_(sums), percents_(percents), scales_(sums.reserved > kWholeGpu - kRestLeast) {
    if (!scales_) most_ = share_of_one_more(sums, percents);
  }

  std::optional<int64_t> most() const { return scales_ ? std::nullopt : std::optional(most_); }

  int64_t of(const Account& account) {
    if (!scales_ && account.limit.reserved == 0) [[likely]]
      return std::min(account.limit.ceiling_rate(), most_);
    if (!one_more_) ask();
    return one_more_->share(claim_of(account));
  }

 private:
  [[gnu::noinline]] void ask() {
    std::vector<Border> borders;
    borders.reserve(percents_.size());
    add_borders(borders, percents_);
    one_more_.emplace(sums_, borders, [this] {
      std::vector<Claim> claims;
      for (const Account& account : accounts_) {
        if (account.active) claims.push_back(claim_of(account));
      }
      return claims;
    });
  }

  const Accounts& accounts_;
  const ClaimSums& sums_;
  const Percents& percents_;
  const bool scales_;  // what is reserved, for one more without a reservation
  int64_t most_ = 0;   // without a ceiling
  std::optional<OneMore> one_more_;
};

// For those that rest.
void note_most_of_idle(const Config& config, Gpu& gpu) {
  const Quota& quota = gpu.quota;
  if (!quota.most_of_idle) return look_at_all_left(config, gpu);
  if (!gpu.quota.left.times.empty()) gpu.quota.left.times.back().most = *quota.most_of_idle;
}

// The same as set_shares() where no share depends on another GPU: most GPUs have nothing but whole per cents. False: a reservation has to
// be scaled, or limits are held to one by one.
bool set_shares_here(Context& context, Gpu& gpu) {
  const Config& config = context.config();
  if (!config.scheduling_mode.scales) return false;
  Quota& quota = gpu.quota;
  ClaimSums sums;
  Percents percents{};
  if (!count_claims(quota.changes, sums, percents)) return false;
  const int64_t level = sums.ceilings > kWholeGpu ? level_of(sums, percents, 0) : kWholeGpu;
  IdlePercents idle(quota.accounts, sums, percents);
  const bool windowed = is_windowed(config, gpu);
  const auto set = [&](Account& account, int64_t share) {
    if (windowed) return set_share(config, gpu, account, share, context.now);
    account.quota = share;
  };
  const Ranking& ranking = quota.changes.ranking;
  set_ranked_quota(quota, level);
  int64_t demand = std::ssize(ranking.places) * level;
  quota.changes.ranking.open = true;
  each_of(quota.changes.apart, [&](Account& account) {
    account.shared = {account.active, account.limit.ceiling, account.limit.reserved};
    set(account, account.active ? share_at(level, claim_of(account)) : idle.of(account));
    demand += account.active ? account.quota : 0;
  });
  quota.shares_known = true;
  quota.most_of_idle = windowed ? std::nullopt : idle.most();
  if (quota.left.settles) {
    note_most_of_idle(context.config(), gpu);
    each_of(quota.left.looked_at, [&](Account& account) { set(account, idle.of(account)); });
  }
  quota.scaled_as_noted = quota.scale_noted == kWholeGpu;
  if (!quota.scaled_as_noted) note_scale(context, gpu);
  quota.changes.counted.reset();
  const bool over_asked = sums.ceilings > kWholeGpu;
  quota.changes.balances |= windowed || over_asked != quota.over_asked;
  if (over_asked != quota.over_asked) {  // who takes turns may be others
    quota.changes.hold_all = true;
    unrank_all(quota);
  }
  quota.over_asked = over_asked;
  quota.full_demand = demand >= kWholeGpu - kWholeGpu / 1000;
  return true;
}

// Where those of all others are known, and stay. False: more than a ceiling is to be known of one of them.
bool set_shares_of_left(const Config& config, Gpu& gpu) {
  Quota& quota = gpu.quota;
  if (!quota.most_of_idle || is_windowed(config, gpu)) return false;
  const int64_t most = *quota.most_of_idle;
  bool all = true;
  note_most_of_idle(config, gpu);
  each_of(quota.left.looked_at, [&](Account& account) {
    all &= account.limit.reserved == 0;
    account.quota = std::min(account.limit.ceiling_rate(), most);
  });
  return all;
}

}  // namespace

void settle_shares(Context& context, const Gpus& gpus) {
  std::map<GpuId, Sharing> sharings;
  std::map<TenantId, Claims> gangs;
  for (Gpu* const settled : gpus) {
    Gpu& gpu = *settled;
    if ((!gpu.quota.limited && context.state.core_limits.empty()) || gpu.quota.behind != nullptr) continue;
    look_at_tenants(context, gpu);
    const bool known = context.state.gangs.empty() && gpu.quota.shares_known;
    if (known && (!gpu.quota.left.settles || set_shares_of_left(context.config(), gpu))) {  // else all are worked out anew
      if (!gpu.quota.scaled_as_noted && context.config().scheduling_mode.scales) note_scale(context, gpu);
      continue;
    }
    if (context.state.gangs.empty() && set_shares_here(context, gpu)) continue;
    unrank_all(gpu.quota);
    gpu.quota.changes.ranking.open = false;
    Sharing& sharing = sharings[gpu.id];
    for (Account& account : gpu.quota.accounts) {
      if (!account.active) continue;
      sharing.accounts.push_back(&account);
      sharing.claims.push_back(claim_of(account));
    }
    scale_reservations(sharing.claims);
    for (size_t i = 0; gpu.quota.limited && i < sharing.accounts.size(); ++i) {
      if (sharing.accounts[i]->gang) gangs[sharing.accounts[i]->tenant].push_back(&sharing.claims[i]);
    }
  }
  std::erase_if(gangs, [](const auto& gang) { return gang.second.size() < 2; });
  even_out(sharings, std::move(gangs));
  for (const auto& [id, sharing] : sharings) set_shares(context, context.state.gpus.at(id), sharing);
}

}  // namespace nvshare::policy
