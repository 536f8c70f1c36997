#include <algorithm>
#include <utility>

#include "policy/concerns.h"
#include "policy/overloaded.h"

namespace nvshare::policy {
namespace {

// Takes an event into the state. Returns the GPU that it concerns; nullopt: all.
std::optional<GpuId> apply(Context& context, const Event& event) {
  State& state = context.state;
  // Calls the handler if the client is known (an event may cross its departure).
  const auto with = [&](ClientId id, auto handler) -> std::optional<GpuId> {
    Gpu* gpu = state.gpu_with(id);
    if (gpu) gpu->speaks = id;
    if (gpu) gpu->touched.push_back(id);
    if (gpu) handler(*gpu, gpu->clients.at(id));
    return gpu ? std::optional(gpu->id) : std::nullopt;
  };
  return std::visit(
      Overloaded{
          [&](const GpuAppeared& e) -> std::optional<GpuId> {
            state.gpus[e.gpu].id = e.gpu;
            state.gpus[e.gpu].total = e.total;
            return e.gpu;
          },
          [&](const ForeignMemory& e) -> std::optional<GpuId> {
            state.gpus[e.gpu].id = e.gpu;
            state.gpus[e.gpu].foreign = std::max<Bytes>(e.bytes, 0);
            return e.gpu;
          },
          [&](const HostMemory& e) -> std::optional<GpuId> {
            if (state.host_available && e.available > *state.host_available) {
              for (auto& [id, gpu] : state.gpus) {
                for (auto& [client_id, client] : gpu.clients) client.evict.retry_at = context.now;  // what failed may work now
              }
            }
            state.host_available = std::min(e.available, kHostMost);
            return std::nullopt;
          },
          [&](const ClientJoined& e) -> std::optional<GpuId> {
            join(context, e);
            return e.gpu;
          },
          [&](const ClientOverhead& e) {
            return with(e.client, [&](Gpu& gpu, Client& client) {
              client.overhead = std::max<Bytes>(e.bytes, 0);
              recount(gpu, client);
            });
          },
          [&](const ClientLeft& e) -> std::optional<GpuId> {
            const Gpu* gpu = state.gpu_with(e.client);
            // What it was moving out no longer takes host memory from the movements on other GPUs.
            const bool elsewhere = gpu == nullptr || !state.gangs.empty() || gpu->clients.at(e.client).eviction;
            const std::optional<GpuId> only = elsewhere ? std::nullopt : std::optional(gpu->id);
            leave(context, e);
            return only;
          },
          [&](const ClientMemoryFreed& e) -> std::optional<GpuId> {
            departed_freed(state, e.client);
            return std::nullopt;
          },
          [&](const MemoryHeld& e) -> std::optional<GpuId> {
            hold_memory(context, e);
            return e.gpu;
          },
          [&](const LockRequested& e) { return with(e.client, [&](Gpu& gpu, Client& client) { request_lock(context, gpu, client); }); },
          [&](const LockReleased& e) {
            return with(e.client, [&](Gpu& gpu, Client& client) {
              if (!client.holds_lock() || client.grant != e.grant) return;
              take_memory(gpu, client, e.memory);
              end_turn(context, gpu, client, e);
            });
          },
          [&](const LockPaused& e) { return with(e.client, [&](Gpu& gpu, Client& client) { pause_turn(context, gpu, client, e); }); },
          [&](const LockResumed& e) {
            return with(e.client, [&](Gpu&, Client& client) {
              if (client.grant == e.grant) resume_turn(context, client);
            });
          },
          [&](const Drained& e) { return with(e.client, [&](Gpu&, Client& client) { take_drained(context, client, e); }); },
          [&](const DrainFailed& e) {
            return with(e.client, [&](Gpu&, Client& client) {
              if (client.grant == e.grant) drain_failed(context, client);
            });
          },
          [&](const MemoryChanged& e) {
            return with(e.client, [&](Gpu& gpu, Client& client) {
              if (e.memory.allocated > client.memory.allocated) client.slack_declined = false;
              take_memory(gpu, client, e.memory);
              client.idle_since.reset();
              take_growth(context, client, e);
              lower_budget(gpu, client, e);
            });
          },
          [&](const SwapProgressed& e) { return with(e.client, [&](Gpu& gpu, Client& client) { take_swap(context, gpu, client, e); }); },
          [&](const MemoryBelieved& e) { return with(e.client, [&](Gpu& gpu, Client& client) { take_memory(gpu, client, e.memory); }); },
          [&](const ClientIdle& e) {
            return with(e.client, [&](Gpu&, Client& client) {
              if (client.holds_lock()) client.idle_since = std::max(context.now - e.idle, client.granted_at);
            });
          },
          [&](const ConfigChanged& e) -> std::optional<GpuId> {
            const Config former = std::exchange(state.config, e.config);
            quota_config_changed(context, former);
            return std::nullopt;
          },
          [&](const ComputeLimit& e) -> std::optional<GpuId> {
            set_core_limit(context, e);
            return std::nullopt;
          },
          [&](const TenantPriority& e) -> std::optional<GpuId> {
            set_priority(context, e);
            return std::nullopt;
          },
          [&](const TenantEnds& e) -> std::optional<GpuId> {
            set_ends(context, e);
            return std::nullopt;
          },
          [&](const TenantPaused& e) -> std::optional<GpuId> {
            set_paused(context, e);
            return std::nullopt;
          },
          [&](const AccountKept& e) -> std::optional<GpuId> {
            take_kept_account(context, e);
            return std::nullopt;
          },
          [&](const Tick&) -> std::optional<GpuId> { return std::nullopt; },
      },
      event);
}

// Moves GPUs to where their state says that they should be. Step by step on all of them, because gangs tie them together.
void settle(Context& context, const std::vector<GpuId>& gpus) {
  const auto on_each = [&](auto... concerns) {
    for (const GpuId id : gpus) (concerns(context, context.state.gpus.at(id)), ...);
  };
  for (const GpuId id : gpus) context.state.gpus.at(id).wake_at.reset();
  on_each(forget_departed, watch_answers, watch_evictions, start_running, raise_budgets);
  settle_gang_drains(context);
  start_gangs(context);
  on_each(end_pauses, hold_paused);
  settle_shares(context, gpus);
  on_each(settle_quota, settle_growth);
  admit(context, gpus);
  for (bool again = true; again;) {
    again = false;
    for (const GpuId id : gpus) again |= pass_over_blocked(context, context.state.gpus.at(id));
    if (again) admit(context, gpus);
  }
  start_gangs(context);
  settle_gang_drains(context);
  on_each(watch_quota, evict_shortfall, evict_paused, watch_evictions, raise_budgets, give_slack, send_budgets);
  on_each(report_contention, report_ceilings, report_waits);
}

}  // namespace

void StateDeleter::operator()(State* state) const { delete state; }

StatePointer make_state(const Config& config) {
  StatePointer state(new State);
  state->config = config;
  return state;
}

Actions step(State& state, const Event& event, Instant now) {
  Actions actions;
  Context context{state, now, actions};
  for (const GpuId id : state.settled) state.gpus.at(id).touched.clear();
  bring_accounts_up_to(context);
  const std::optional<GpuId> only = apply(context, event);
  form_gangs(context);
  state.settled = settled_with(state, only);
  settle(context, state.settled);
  return actions;
}

std::optional<Instant> next_deadline(const State& state) {
  std::optional<Instant> next;
  for (const auto& [id, gpu] : state.gpus) {
    if (gpu.wake_at && (!next || *gpu.wake_at < *next)) next = gpu.wake_at;
  }
  return next;
}

}  // namespace nvshare::policy
