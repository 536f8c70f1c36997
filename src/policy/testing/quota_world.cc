#include "policy/testing/quota_world.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "policy/overloaded.h"

namespace nvshare::policy::testing {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

ClientId client_of(const Action& action) {
  return std::visit([](const auto& a) { return a.client; }, action);
}

}  // namespace

QuotaWorld::QuotaWorld(const Config& config, uint64_t seed) : config_(config), state_(make_state(config)), ledger_(config), random_(seed) {
  feed(GpuAppeared{0, 16LL << 30});
}

Duration QuotaWorld::between(Duration low, Duration high) {
  return low + static_cast<Duration>(random_() % static_cast<uint64_t>(high - low + 1));
}

Job& QuotaWorld::add(TenantId tenant, Duration kernel, Bytes memory) {
  const ClientId id = next_id_++;
  Job& job = jobs_[id];
  job.id = id;
  job.tenant = tenant;
  job.kernel = kernel;
  job.memory = memory;
  job.burst_end = kNever;
  at(now_, [this, id] {
    Job& joiner = jobs_.at(id);
    const auto limit = limits_.find(joiner.tenant);
    feed(limit == limits_.end() ? ComputeLimit{joiner.tenant, 100} : limit->second);
    feed(ClientJoined{id, 0, joiner.tenant, 0, {joiner.memory, 0, 0}, true, false, false});
    if (joiner.on > 0) joiner.burst_end = static_cast<double>(joiner.on);
    want(joiner);
  });
  return job;
}

Job& QuotaWorld::add_bursty(TenantId tenant, Duration on, Duration off, Duration kernel) {
  Job& job = add(tenant, kernel);
  job.on = on;
  job.off = off;
  return job;
}

void QuotaWorld::remove(ClientId id) {
  Job& job = jobs_.at(id);
  if (!job.alive) return;
  job.alive = false;
  job.state = Job::State::kAway;
  ++job.activity;
  feed(ClientLeft{id, true});
}

void QuotaWorld::limit(TenantId tenant, int percent) { set({tenant, percent, percent < 100 ? percent : 0}); }

void QuotaWorld::ceiling(TenantId tenant, int percent) { set({tenant, percent}); }

void QuotaWorld::set(const ComputeLimit& limit) {
  limits_[limit.tenant] = limit;
  feed(limit);
}

void QuotaWorld::set_config(const Config& config) {
  config_ = config;
  feed(ConfigChanged{config});
}

void QuotaWorld::restart(bool keeps_accounts) {
  ++epoch_;
  const std::vector<TenantView> former = gpu().tenants;
  state_ = make_state(config_);
  ledger_ = Ledger(config_);
  feed(GpuAppeared{0, 16LL << 30});
  for (const auto& [tenant, limit] : limits_) feed(limit);
  for (auto& [id, job] : jobs_) {
    if (!job.alive) continue;
    ++job.activity;
    job.grant = 0;
    job.state = Job::State::kAway;  // a simplification: all have let go of the lock
    job.idle_release = job.pause_after = 0;
    job.moving = false;
    feed(ClientJoined{id, 0, job.tenant, 0, {job.memory, job.resident, 0}, true, false, false});
  }
  for (const TenantView& tenant : former) {
    if (keeps_accounts) feed(AccountKept{tenant.tenant, 0, now_ - tenant.since_joined, tenant.debt, tenant.used, tenant.throttled_time});
  }
  for (auto& [id, job] : jobs_) {
    if (job.alive) want(job);
  }
}

void QuotaWorld::at(Instant when, std::function<void()> what) { queue_[{std::max(when, now_), order_++}] = std::move(what); }

void QuotaWorld::talk_of_memory(Duration every) {
  at(now_ + every, [this, every] {
    auto next = jobs_.upper_bound(talked_);
    if (next == jobs_.end()) next = jobs_.begin();
    if (next != jobs_.end()) {
      const Job& job = next->second;
      talked_ = job.id;
      if (job.alive) feed(MemoryChanged{job.id, {job.memory, job.resident, 0}, 0, 0, 0, 0});
    }
    talk_of_memory(every);
  });
}

double QuotaWorld::speed(const Job& of) const {
  int working = 0, first = 0;
  for (const auto& [id, job] : jobs_) {
    working += works(job);
    first += works(job) && job.first;
  }
  if (now_ < of.switched) return 0;
  if (first > 0) {
    if (!of.first) return 0;
    working = first;
  }
  return working <= 1 ? 1.0 : efficiency_together / working;
}

Duration QuotaWorld::pause_of(Job& job) {
  const bool was_late = std::exchange(job.late, late_each > 0 && !job.late && job.bursts % static_cast<uint64_t>(late_each) == 0);
  return job.off + (job.late ? late_by : 0) - (was_late ? late_by : 0);
}

void QuotaWorld::advance_to(Instant when) {
  const auto time = static_cast<double>(when - now_);
  bool any = false, moving = false;
  for (auto& [id, job] : jobs_) {
    moving |= job.moving;
    if (!works(job)) continue;
    any = true;
    job.done += speed(job) * time;
  }
  if (!any) idle_ += time;
  if (!any && moving) swapping_ += time;
  now_ = when;
}

void QuotaWorld::run_for(Duration time) {
  const Instant end = now_ + time;
  while (!broken_ && now_ < end) {
    Instant next = end;
    if (!queue_.empty()) next = std::min(next, queue_.begin()->first.first);
    const std::optional<Instant> deadline = next_deadline(*state_);
    if (deadline && *deadline < now_) {
      broken_ = "a deadline in the past";
      return;
    }
    if (deadline) next = std::min(next, *deadline);
    ClientId first = 0;
    for (const auto& [id, job] : jobs_) {
      if (works(job) && now_ < job.switched) next = std::min(next, job.switched);
      const double per_ns = works(job) && job.target != kNever ? speed(job) : 0;
      if (per_ns == 0) continue;
      const auto reached = now_ + static_cast<Instant>(std::ceil(std::max(job.target - job.done, 0.0) / per_ns));
      if (reached <= next) {
        next = reached;
        first = id;
      }
    }
    advance_to(next);
    if (first != 0 && jobs_.at(first).done >= jobs_.at(first).target - 1) {
      reached_target(jobs_.at(first));
    } else if (deadline && *deadline <= now_) {
      feed(Tick{});
      const std::optional<Instant> then = next_deadline(*state_);
      if (then && *then <= now_) broken_ = "a deadline in the past after its tick";
    } else if (!queue_.empty() && queue_.begin()->first.first <= now_) {
      const auto what = std::move(queue_.begin()->second);
      queue_.erase(queue_.begin());
      what();
    }
  }
}

void QuotaWorld::feed(const Event& event) {
  if (broken_) return;
  ++steps_;
  ledger_.saw(event);
  Actions actions = step(*state_, event, now_);
  if (tamper_) tamper_(actions);
  if (const auto wrong = ledger_.returned(actions)) broken_ = *wrong;
  if (const auto wrong = check_invariants(*state_)) broken_ = *wrong;
  for (const Action& action : actions) deliver(action);
}

void QuotaWorld::deliver(const Action& action) {
  history_.emplace_back(now_, action);
  if (history_.size() > 40) history_.pop_front();
  const auto found = jobs_.find(client_of(action));
  if (found == jobs_.end() || !found->second.alive) return;
  Instant& last = last_told_[found->first];
  last = std::max(last + 1, now_ + between(20 * kUs, 50 * kUs));
  at(last, [this, id = found->first, action, epoch = epoch_] {
    Job& job = jobs_.at(id);
    if (!job.alive || epoch != epoch_) return;
    std::visit(Overloaded{
                   [&](const SendLock& a) {
                     job.budget = a.budget;
                     if (job.state == Job::State::kWaiting && a.grant != job.grant) {
                       job.grant = a.grant;
                       job.first_use = job.last_use = 0;
                       job.state = Job::State::kLoading;
                     }
                     if (job.state == Job::State::kLoading) move_in(job);
                   },
                   [&](const SendDrop& a) { drop(job, a.grant); },
                   [](const SendKeep&) {},  // nobody here has several GPUs
                   [&](const SendEvict& a) {
                     job.moving = true;
                     const Duration takes = a.bytes / kMsec * kSeconds / (bandwidth / kMsec) + 1;
                     at(now_ + takes, [this, id, a, takes, epoch] {
                       Job& mover = jobs_.at(id);
                       if (!mover.alive || epoch != epoch_) return;
                       mover.moving = false;
                       mover.resident -= a.bytes;
                       feed(SwapProgressed{id, true, true, false, a.eviction, a.bytes, takes, {mover.memory, mover.resident, 0}});
                     });
                   },
                   [](const SendWait&) {},
                   [](const SendMemory&) {},
                   [&](const SendContention& a) {
                     job.idle_release = a.limited ? a.idle_release : 0;
                     job.pause_after = a.limited ? a.pause : 0;
                   },
                   [](const SendAskProgress&) {},
                   [](const SendCeiling&) {},
                   [](const SendPrefetch&) {},
                   [](const Note&) {},
               },
               action);
  });
}

Instant QuotaWorld::arrival(const Job& job) {
  Instant& last = last_heard_[job.id];
  return last = std::max(last + 1, now_ + between(20 * kUs, 50 * kUs));
}

void QuotaWorld::tell(Job& job, Event event) {
  at(arrival(job), [this, id = job.id, event = std::move(event), epoch = epoch_] {
    if (jobs_.at(id).alive && epoch == epoch_) feed(event);
  });
}

void QuotaWorld::later(Job& job, Duration delay, std::function<void(Job&)> what) {
  at(now_ + delay, [this, id = job.id, activity = job.activity, what = std::move(what)] {
    Job& then = jobs_.at(id);
    if (then.alive && then.activity == activity) what(then);
  });
}

void QuotaWorld::want(Job& job) {
  if (job.state != Job::State::kAway) return;
  job.state = Job::State::kWaiting;
  tell(job, LockRequested{job.id});
}

void QuotaWorld::move_in(Job& job) {
  if (job.moving) return;
  const Bytes bytes = std::min(job.budget, job.memory) - job.resident;
  if (bytes <= 0 && job.resident >= job.memory) {
    job.state = Job::State::kGranted;
    return later(job, between(start_delay * 2 / 3, start_delay * 4 / 3), [this](Job& then) { begin(then); });
  }
  if (bytes <= 0) return;
  job.moving = true;
  const Duration takes = bytes / kMsec * kSeconds / (bandwidth / kMsec) + 1;
  at(now_ + takes, [this, id = job.id, bytes, takes, epoch = epoch_, grant = job.grant] {
    Job& mover = jobs_.at(id);
    if (!mover.alive || epoch != epoch_) return;
    mover.moving = false;
    if (mover.grant != grant || mover.state != Job::State::kLoading) return;
    mover.resident += bytes;
    feed(SwapProgressed{id, false, mover.resident >= mover.memory, false, grant, bytes, takes, {mover.memory, mover.resident, 0}});
    if (mover.state == Job::State::kLoading) move_in(mover);
  });
}

void QuotaWorld::begin(Job& job) {
  if (job.first_use == 0) job.first_use = now_, job.done_before = job.done;
  if (launch_takes == 0) return work(job);
  job.state = Job::State::kGranted;
  later(job, launch_takes, [this](Job& then) { work(then); });
}

void QuotaWorld::work(Job& job) {
  if (std::exchange(worked_, job.id) != job.id) job.switched = now_ + switch_takes;
  job.state = Job::State::kBusy;
  job.target = job.burst_end;
}

void QuotaWorld::drop(Job& job, GrantId grant) {
  if (job.grant != grant || job.state == Job::State::kAway || job.state == Job::State::kWaiting) return;
  if (!works(job)) {
    ++job.activity;
    return release(job, false);
  }
  ++job.drops;
  job.first = drains_go_first &&
              std::none_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) { return entry.first != job.id && works(entry.second); });
  job.state = Job::State::kDraining;
  const auto kernel = static_cast<double>(job.kernel);
  const double rest = kernel - std::fmod(job.done, kernel);
  const double ahead = std::floor(static_cast<double>(between(job.in_flight_least, job.in_flight)) / kernel) * kernel;
  job.target = std::min(job.done + rest + ahead, job.burst_end);
  later(job, job.patience, [this](Job& then) {
    if (then.state != Job::State::kDraining) return;
    ++then.failed_drains;
    then.first = false;
    then.state = Job::State::kBusy;
    then.target = then.burst_end;
    tell(then, DrainFailed{then.id, then.grant});
  });
}

std::optional<Duration> QuotaWorld::used(const Job& job) const {
  if (!says_what_it_used) return std::nullopt;
  return job.lies || job.first_use == 0 ? 0 : std::max<Duration>(job.last_use - job.first_use, 0);
}

uint64_t QuotaWorld::submitted(const Job& job) const {
  if (!says_what_it_did) return 0;
  const auto kernels = [&job](double work) { return std::floor(work / static_cast<double>(job.kernel) + 0.01); };
  const bool alone =
      std::none_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) { return entry.first != job.id && works(entry.second); });
  return static_cast<uint64_t>(kernels(job.done) - kernels(job.done_before)) * (job.boasts && alone ? 10 : 1);
}

void QuotaWorld::begin_work(ClientId id) {
  Job& job = jobs_.at(id);
  job.burst_end = kNever;
  go_on(job);
}

void QuotaWorld::end_work(ClientId id) {
  Job& job = jobs_.at(id);
  job.burst_end = job.done;
  if (works(job)) job.target = job.done;
}

void QuotaWorld::pause(Job& job) {
  ++job.pauses;
  job.state = Job::State::kPaused;
  std::optional<Duration> says = used(job);
  if (says) *says = std::max<Duration>(*says - launch_known, 0);
  last_heard_[job.id] = std::max(last_heard_[job.id], now_ + pause_delay);
  tell(job, LockPaused{job.id, job.grant, says, submitted(job)});
  job.first_use = job.last_use = 0;
}

void QuotaWorld::release(Job& job, bool early) {
  const bool more = job.done < job.burst_end - 1;
  if (works(job)) job.last_use = now_;
  job.state = Job::State::kAway;
  ++job.activity;
  // In this order, whatever the messages take.
  at(arrival(job) + notice_delay,
     [this, id = job.id, grant = job.grant, early, more, used = used(job), work = submitted(job), epoch = epoch_] {
       Job& leaver = jobs_.at(id);
       if (!leaver.alive || epoch != epoch_) return;
       feed(LockReleased{id, grant, {leaver.memory, leaver.resident, 0}, early, idle_claim, used, work});
       if (more) want(leaver);
     });
}

// A pause is over.
void QuotaWorld::go_on(Job& job) {
  if (job.state == Job::State::kPausing) {
    ++job.activity;
    begin(job);
  } else if (job.state == Job::State::kPaused) {
    ++job.activity;
    job.state = Job::State::kGranted;
    tell(job, LockResumed{job.id, job.grant});
    later(job, resume_delay, [this](Job& resumed) { begin(resumed); });
  } else {
    want(job);
  }
}

void QuotaWorld::reached_target(Job& job) {
  const bool drained = job.state == Job::State::kDraining;
  if (std::exchange(job.first, false)) {
    for (auto& [id, other] : jobs_)
      if (id != job.id && works(other)) other.switched = now_ + switch_takes;
  }
  ++job.activity;
  if (job.done < job.burst_end - 1) return release(job, false);
  ++job.bursts;
  const Duration late = seen_within > 0 && !drained ? between(0, seen_within) : 0;
  job.last_use = now_ + late;
  const double next_end = job.burst_end + static_cast<double>(job.on);
  at(now_ + pause_of(job), [this, id = job.id, next_end] {
    Job& then = jobs_.at(id);
    if (!then.alive) return;
    then.burst_end = next_end;
    go_on(then);
  });
  if (drained) return release(job, false);
  job.state = Job::State::kPausing;
  if (job.pause_after > 0 && job.pause_after < job.off) {
    later(job, late + job.pause_after, [this](Job& then) { then.pause_after > 0 ? pause(then) : release(then, true); });
  } else if (job.idle_release > 0 && job.idle_release < job.off) {
    later(job, late + job.idle_release, [this](Job& then) { release(then, true); });
  }
}

double QuotaWorld::work(TenantId tenant) const {
  double sum = 0;
  for (const auto& [id, job] : jobs_) sum += job.tenant == tenant ? job.done : 0;
  return sum;
}

TenantView QuotaWorld::tenant(TenantId id) const {
  for (const TenantView& tenant : gpu().tenants) {
    if (tenant.tenant == id) return tenant;
  }
  return {};
}

std::string QuotaWorld::describe() const {
  std::ostringstream out;
  const GpuView on = gpu();
  out << broken_.value_or("all is well") << "\nat " << (now_ - 1000 * kSeconds) / kUs << " us, step " << steps_ << ", mode " << on.mode
      << ", " << on.mode_changes << " changes, idle " << idle_ / 1e6 << " ms, swapping " << swapping_ / 1e6 << " ms";
  for (const TenantView& tenant : on.tenants) {
    out << "\n  tenant " << tenant.tenant << " ceiling " << tenant.ceiling << " reserved " << tenant.reserved << " quota " << tenant.quota
        << " used " << static_cast<double>(tenant.used) / 1e6 << " ms, work " << work(tenant.tenant) / 1e6 << " ms, debt "
        << static_cast<double>(tenant.debt) / 1e6 << (tenant.throttled ? " throttled" : "") << (tenant.active ? " active" : "")
        << (tenant.beside_others ? " beside others" : "");
  }
  for (const auto& [id, job] : jobs_) {
    if (!job.alive) continue;
    out << "\n  job " << id << " tenant " << job.tenant << " kernel " << static_cast<double>(job.kernel) / 1e3 << " us, state "
        << static_cast<int>(job.state) << " drops " << job.drops << " failed drains " << job.failed_drains << " bursts " << job.bursts;
  }
  for (const ClientView& client : on.clients)
    out << "\n  client " << client.client << " " << name_of(client.state) << " " << client.waiting_for;
  for (const auto& [when, action] : history_) {
    out << "\n    " << (when - 1000 * kSeconds) / kUs << " us: client " << client_of(action) << " ";
    if (const auto* lock = std::get_if<SendLock>(&action)) out << "lock " << lock->grant << " " << (lock->budget >> 20);
    if (const auto* drop = std::get_if<SendDrop>(&action)) out << "drop " << drop->grant;
    if (const auto* evict = std::get_if<SendEvict>(&action)) out << "evict " << (evict->bytes >> 20);
    if (const auto* contention = std::get_if<SendContention>(&action)) out << "contention " << contention->limited;
    if (const auto* note = std::get_if<Note>(&action)) out << note->text;
  }
  return out.str();
}

}  // namespace nvshare::policy::testing
