#include <algorithm>
#include <utility>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/memory/memory.h"
#include "policy/reports/reports.h"
#include "policy/sharing/sharing.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

constexpr AllGpus kAll;

Concerned only(State& state, GpuId id) {
  const auto at = state.gpus.find(id);
  return at == state.gpus.end() ? Concerned(Gpus{}) : Concerned(&at->second);
}

// Mostly there is one.
Concerned concerned(Gpus gpus) { return gpus.size() == 1 ? Concerned(gpus.front()) : Concerned(std::move(gpus)); }

Concerned where(State& state, TenantId tenant) { return concerned(gpus_of(state, tenant)); }

// Takes an event about a client into the state, as `change` says, if the client is known (an event may cross its departure).
template <typename Change>
Concerned take_of(Context& context, ClientId id, Change change) {
  Client* const client = context.state.find(id);
  if (client == nullptr) return kAll;
  Gpu& gpu = *client->indexed.home;
  gpu.ceilings.speaks = id;
  gpu.touched.push_back(id);
  change(gpu, *client);
  return &gpu;
}

Gpu& gpu_at(State& state, GpuId id) {
  Gpu& gpu = state.gpus[id];
  gpu.id = id;
  return gpu;
}

// Each event is taken into the state by one of these. They return the GPUs that it concerns.
Concerned take(Context& context, const GpuAppeared& e) {
  gpu_at(context.state, e.gpu).total = e.total;
  return only(context.state, e.gpu);
}

Concerned take(Context& context, const ForeignMemory& e) {
  gpu_at(context.state, e.gpu).foreign = std::max<Bytes>(e.bytes, 0);
  return only(context.state, e.gpu);
}

Concerned take(Context& context, const HostMemory& e) {
  State& state = context.state;
  const auto at_most = [](Bytes bytes) { return std::min(bytes, kHostMost); };
  HostRoom room{at_most(e.available), at_most(e.free), at_most(e.kept), at_most(e.share), {}};
  if (e.changes && state.host) room.used = std::move(state.host->used);
  for (const auto& [tenant, used] : e.uses) {
    if (used > 0) {
      room.used.insert_or_assign(tenant, at_most(used));
    } else {
      room.used.erase(tenant);
    }
  }
  if (state.host && (room.available > state.host->available || room.share > state.host->share)) {
    for (auto& [id, gpu] : state.gpus) {
      for (const auto& [client_id, client] : gpu.unsettled) {
        client->evictions.backoff.retry_at = context.now;  // what failed may work now
        gpu.host.decided |= client->evictions.backoff.failures > 0;
      }
    }
  }
  state.host = std::move(room);
  Gpus gpus;  // nothing is decided anew elsewhere
  for (auto& [id, gpu] : state.gpus) {
    if (gpu.host.decided || state.limited.contains(id)) gpus.push_back(&gpu);
  }
  return gpus;
}

Concerned take(Context& context, const ClientJoined& e) {
  join(context, e);
  return only(context.state, e.gpu);
}

Concerned take(Context& context, const ClientOverhead& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) {
    client.overhead = std::max<Bytes>(e.bytes, 0);
    recount(gpu, client);
  });
}

Concerned take(Context& context, const ClientLeft& e) {
  const Client* const client = context.state.find(e.client);
  // What it was moving out no longer takes host memory from the movements on other GPUs.
  const bool elsewhere = client == nullptr || client->evictions.current;
  Concerned concerned = kAll;
  if (!elsewhere) concerned = client->indexed.home;
  leave(context, e);
  return concerned;
}

Concerned take(Context& context, const ClientMemoryFreed& e) {
  departed_freed(context.state, e.client);
  return kAll;
}

Concerned take(Context& context, const MemoryHeld& e) {
  hold_memory(context, e);
  return only(context.state, e.gpu);
}

Concerned take(Context& context, const LockRequested& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) { request_lock(context, gpu, client); });
}

Concerned take(Context& context, const LockReleased& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) {
    if (!client.holds_lock() || client.grant != e.grant) return;
    note_memory(client, e.memory);
    end_turn(context, gpu, client, e);
  });
}

Concerned take(Context& context, const LockPaused& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) { pause_turn(context, gpu, client, e); });
}

Concerned take(Context& context, const LockResumed& e) {
  return take_of(context, e.client, [&](Gpu&, Client& client) {
    if (client.grant == e.grant) resume_turn(context, client);
  });
}

Concerned take(Context& context, const Drained& e) {
  return take_of(context, e.client, [&](Gpu&, Client& client) { take_drained(context, client, e); });
}

Concerned take(Context& context, const EndsSoon& e) {
  return take_of(context, e.client, [&](Gpu&, Client& client) { take_ends_soon(client, e); });
}

Concerned take(Context& context, const DrainFailed& e) {
  return take_of(context, e.client, [&](Gpu&, Client& client) {
    if (client.grant == e.grant) drain_failed(context, client);
  });
}

Concerned take(Context& context, const MemoryChanged& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) {
    if (e.memory.allocated > client.memory.allocated) client.budget.slack_declined = false;
    take_memory(gpu, client, e.memory);
    client.turn.idle_since.reset();
    take_growth(context, client, e);
    lower_budget(gpu, client, e);
  });
}

Concerned take(Context& context, const SwapProgressed& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) { take_swap(context, gpu, client, e); });
}

Concerned take(Context& context, const MemoryBelieved& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) { take_memory(gpu, client, e.memory); });
}

Concerned take(Context& context, const ConfigChanged& e) {
  const Config former = std::exchange(context.state.config, e.config);
  for (auto& [id, gpu] : context.state.gpus) gpu.switches.longest.reset();
  if (former.gang_turns != e.config.gang_turns) note_gang_turns_changed(context.state);
  quota_config_changed(context, former);
  return kAll;
}

Concerned take(Context& context, const ComputeLimit& e) {
  set_core_limit(context, e);
  return where(context.state, e.tenant);
}

Concerned take(Context& context, const TenantPriority& e) {
  set_priority(context, e);
  return where(context.state, e.tenant);
}

Concerned take(Context& context, const TenantEnds& e) {
  set_ends(context, e);
  return where(context.state, e.tenant);
}

Concerned take(Context& context, const TenantSuspended& e) {
  set_suspended(context, e);
  return where(context.state, e.tenant);
}

Concerned take(Context& context, const TenantTurns& e) {
  set_turns(context, e);
  return where(context.state, e.tenant);
}

Concerned take(Context& context, const ClientShares& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) { take_shares(gpu, client, e); });
}

Concerned take(Context& context, const ClientProgressed& e) {
  return take_of(context, e.client, [&](Gpu& gpu, Client& client) { take_progress(context, gpu, client, e); });
}

Concerned take(Context& context, const AccountKept& e) {
  take_kept_account(context, e);
  return kAll;
}

Concerned take(Context& context, const Tick&) {
  const auto& wakes = context.state.wakes;
  const auto is_due = [&](const auto& at) { return at != wakes.end() && at->first <= context.now; };
  if (!is_due(wakes.begin())) return kAll;
  if (!is_due(std::next(wakes.begin()))) return only(context.state, wakes.begin()->second);
  Gpus due;
  for (auto at = wakes.begin(); is_due(at); ++at) due.push_back(&context.state.gpus.at(at->second));
  std::sort(due.begin(), due.end(), [](const Gpu* a, const Gpu* b) { return a->id < b->id; });
  return due;
}

Concerned apply(Context& context, const Event& event) {
  return std::visit([&](const auto& e) { return take(context, e); }, event);
}

// What follows is left out where it would find nothing to do, which is nearly everything in most steps: all of it is more code than a
// processor's first cache holds, so that to go through it for nothing was half of what a step cost.

bool any_in_gangs(const State& state) { return !state.gangs.empty() || !state.asked_together.empty(); }

bool has_limits(const Gpu& gpu) { return gpu.quota.limited || gpu.quota.mode != GpuMode::kUnlimited; }

void settle_clients(Context& context, Gpu& gpu) {
  gpu.wake.at.reset();
  gpu.switches.note_due.reset();
  gpu.host.asked = false;
  if (!gpu.departed.empty()) forget_departed(context, gpu);
  if (!gpu.unsettled.empty() || !gpu.queue.late.empty()) watch_answers(context, gpu);
  if (gpu.unsettled.empty()) return;
  watch_evictions(context, gpu);
  start_running(context, gpu);
  raise_budgets(context, gpu);
}

void settle_sharing(Context& context, Gpu& gpu) {
  if (has_limits(gpu)) settle_quota(context, gpu);
  const bool grows = !context.state.gangs.empty() || !gpu.unsettled.empty() || !fits_when_released(context.config(), gpu);
  if (grows) settle_growth(context, gpu);
  settle_share_trials(context, gpu);
  settle_share_turns(context, gpu);
}

void settle_memory(Context& context, Gpu& gpu) {
  if (!gpu.unsettled.empty()) end_pauses(context, gpu);
  if (gpu.quota.limited || !context.state.core_limits.empty()) watch_quota(context, gpu);
  if (!fits_as_it_is(context.config(), gpu)) evict_shortfall(context, gpu);
  if (!context.state.suspended.empty()) evict_suspended(context, gpu);
  if (context.config().prefetch || gpu.prefetch.client != 0) prefetch_next(context, gpu);
  if (!gpu.unsettled.empty()) {
    watch_evictions(context, gpu);
    raise_budgets(context, gpu);
  }
  if (gpu.waiting.empty()) give_slack(context, gpu);
  if (!gpu.unsettled.empty()) send_budgets(context, gpu);
}

// Moves GPUs to where their state says that they should be. Step by step on all of them, because gangs tie them together.
void settle(Context& context, const Gpus& gpus) {
  for (Gpu* gpu : gpus) settle_clients(context, *gpu);
  if (any_in_gangs(context.state)) {
    settle_gang_drains(context, gpus);
    start_gangs(context, gpus);
  }
  for (Gpu* gpu : gpus) {
    if (!gpu->unsettled.empty()) end_pauses(context, *gpu);
    if (!context.state.suspended.empty()) hold_suspended(context, *gpu);
  }
  settle_shares(context, gpus);
  for (Gpu* gpu : gpus) settle_sharing(context, *gpu);
  admit(context, gpus);
  for (bool again = true; again;) {
    again = false;
    for (Gpu* gpu : gpus) again |= gpu->quota.owner != 0 && gpu->quota.behind == nullptr && pass_over_blocked(context, *gpu);
    if (again) admit(context, gpus);
  }
  for (Gpu* gpu : gpus) {
    if (gpu->holders.empty()) trade_places(context, *gpu);
  }
  if (any_in_gangs(context.state)) {
    start_gangs(context, gpus);
    settle_gang_drains(context, gpus);
  }
  for (Gpu* gpu : gpus) settle_memory(context, *gpu);
  ContentionCounts counts(context.state);
  if (!context.state.on_several.empty()) find_gangs_to_tell(context, gpus, counts);
  for (Gpu* gpu : gpus) {
    report_contention(context, *gpu, counts);
    report_ceilings(context, *gpu);
    if (context.config().explains || !gpu->queue.unnoted.empty()) report_waits(context, *gpu);
  }
}

// The GPUs of a tenant of which a client comes or goes, and those around them: that client may be all that ties them together, or one too
// many for a gang.
Gpus around_before(State& state, const Event& event) {
  if (!state.config.gang_turns) return {};
  std::optional<TenantId> tenant;
  if (const auto* joined = std::get_if<ClientJoined>(&event)) tenant = joined->tenant;
  if (const auto* left = std::get_if<ClientLeft>(&event)) {
    if (const Client* client = state.find(left->client)) tenant = client->tenant;
  }
  const auto spread = tenant ? state.spread.find(*tenant) : state.spread.end();
  if (spread == state.spread.end() || spread->second.on.size() == 1 || spread->second.clients > kGangMost + 1) return {};
  Gpus gpus;
  for (const auto& [gpu, count] : spread->second.on) gpus.push_back(&state.gpus.at(gpu));
  return gpus_around(state, std::move(gpus));
}

void note_wake(State& state, Gpu& gpu) {
  if (gpu.wake.at == gpu.wake.indexed) return;
  if (gpu.wake.indexed) state.wakes.erase({*gpu.wake.indexed, gpu.id});
  if (gpu.wake.at) state.wakes.insert({*gpu.wake.at, gpu.id});
  gpu.wake.indexed = gpu.wake.at;
}

}  // namespace

void StateDeleter::operator()(State* state) const { delete state; }

StatePointer make_state(const Config& config) {
  StatePointer state(new State);
  state->config = config;
  return state;
}

// All that changes with it is what a client has, or says of its memory; what follows from that is told by recount().
bool is_about_memory(const Event& event) {
  return std::holds_alternative<MemoryChanged>(event) || std::holds_alternative<MemoryBelieved>(event) ||
         std::holds_alternative<SwapProgressed>(event) || std::holds_alternative<ClientOverhead>(event);
}

// The GPUs on which the event may change what clients do, or what limits say.
Concerned changed_by(State& state, const Event& event) {
  if (!state.gangs.empty()) return kAll;
  return std::visit(
      [&](const auto& e) -> Concerned {
        if constexpr (std::is_same_v<std::decay_t<decltype(e)>, Tick>) {
          return Gpus{};
        } else if constexpr (requires { e.gpu; }) {
          return only(state, e.gpu);
        } else if constexpr (requires { e.tenant; }) {
          return where(state, e.tenant);
        } else if constexpr (requires { e.client; }) {
          const Client* client = state.find(e.client);
          return client != nullptr ? Concerned(client->indexed.home) : Concerned(Gpus{});
        } else {
          return kAll;
        }
      },
      event);
}

// Before the event changes what the time since the last step is billed by. Accounts may rest in a step about memory.
void bill_before(Context& context, const Event& event) {
  if (context.state.limited.empty() && context.state.core_limits.empty()) return;
  const auto bill = [&](Gpu& gpu) {
    if (is_about_memory(event) && limits_rest(context, gpu)) {
      gpu.quota.behind = &context;
    } else {
      bring_accounts_up_to(context, gpu);
    }
  };
  const Concerned concerned = changed_by(context.state, event);
  if (Gpu* const* gpu = std::get_if<Gpu*>(&concerned)) return bill(**gpu);
  if (const Gpus* gpus = std::get_if<Gpus>(&concerned)) {
    for (Gpu* gpu : *gpus) bill(*gpu);
    return;
  }
  for (auto& [id, limited] : context.state.limited) bring_accounts_up_to(context, *limited);
}

// Of those that the event is not about, nothing has changed yet.
void bill_settled(Context& context) {
  for (Gpu* gpu : context.state.settled) {
    if (gpu->quota.behind == nullptr || !limits_rest(context, *gpu)) bring_accounts_up_to(context, *gpu);
  }
}

// What a client without the lock says of its memory mostly changes nothing for anybody: as much as before is on the GPU, and the client
// waits behind others for more than is free, or does not wait. Then a step ends there, as if it had not been: what time brings has a wake.
class MemoryNews {
 public:
  MemoryNews(State& state, const Event& event) {
    const auto* const news = std::get_if<MemoryChanged>(&event);
    if (news == nullptr || !state.early_ends.allowed || !state.on_several.empty() || any_in_gangs(state) || state.config.explains ||
        state.config.prefetch)
      return;
    Client* const client = state.find(news->client);
    if (client == nullptr || client->holds_lock() || !client->indexed.home->unsettled.empty()) return;
    if (has_limits(*client->indexed.home) || !state.core_limits.empty()) return;
    client_ = client;
    sums_ = client->indexed.counted;
    roles_ = client->indexed.roles;
  }

  // After it was taken into the state.
  bool changes_nothing(const Context& context) const {
    if (client_ == nullptr || client_->indexed.roles != roles_) return false;
    const Gpu& gpu = *client_->indexed.home;
    Sums but_for_needs = client_->indexed.counted;
    but_for_needs.needed = sums_.needed;
    but_for_needs.charged = sums_.charged;
    return but_for_needs == sums_ && is_at_rest(context, gpu) && waits_on(context, gpu);
  }

 private:
  // Time alone changes nothing yet, nor does anything that came to pass elsewhere.
  static bool is_at_rest(const Context& context, const Gpu& gpu) {
    const Queue& queue = gpu.queue;
    const auto is_due = [&](std::optional<Instant> at) { return at && *at <= context.now; };
    const bool notes_due = (!queue.unnoted.empty() && queue.unnoted.begin()->first <= context.now) || is_due(gpu.switches.note_due);
    const bool promotes = !queue.low.empty() && context.now - queue.low.begin()->first >= queue.terms.promote_after;
    const bool host_may_differ = gpu.host.decided && context.state.host && context.state.gpus.size() > 1;  // by what others move
    return !is_due(gpu.wake.at) && !notes_due && !promotes && !host_may_differ && sharing_rests(gpu, context.now) && gpu.departed.empty() &&
           gpu.prefetch.client == 0 && context.state.suspended.empty() && (!gpu.holders.empty() || gpu.waiting.empty()) &&
           fits_as_it_is(context.config(), gpu) && fits_when_released(context.config(), gpu);
  }

  bool waits_on(const Context& context, const Gpu& gpu) const {
    if (!client_->waits()) return true;
    const Bytes limit = safe_limit(context.config(), gpu), most = limit - gpu.sums.immovable;
    const bool all_may_fit = most >= 0 && gpu.recounted.needs_most <= most;
    return all_may_fit && is_put_off(*client_) && room_asked(*client_) > limit - gpu.sums.fixed;
  }

  Client* client_ = nullptr;  // null: it is other news
  Sums sums_;
  Roles roles_;
};

Actions step(State& state, const Event& event, Instant now) {
  Actions actions;
  Context context{state, now, actions};
  for (Gpu* gpu : state.settled) gpu->touched.clear();
  const MemoryNews news(state, event);
  bill_before(context, event);
  Gpus before = around_before(state, event);
  settle_with(state, apply(context, event), std::move(before));
  if (news.changes_nothing(context)) {
    Gpu& gpu = *state.settled.front();
    ++state.early_ends.count;
    report_ceilings(context, gpu);
    note_wake(state, gpu);
    return actions;
  }
  form_gangs(context, state.settled);
  bill_settled(context);
  settle(context, state.settled);
  for (Gpu* gpu : state.settled) {
    gpu->quota.behind = nullptr;
    gpu->host.decided = gpu->host.asked;
    note_wake(state, *gpu);
  }
  return actions;
}

std::optional<Instant> next_deadline(const State& state) {
  return state.wakes.empty() ? std::nullopt : std::optional(state.wakes.begin()->first);
}

}  // namespace nvshare::policy
