#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <span>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/parts.h"
#include "policy/reports/reports.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {

const char* name_of(ClientState state) {
  switch (state) {
    case ClientState::kIdle:
      return "idle";
    case ClientState::kWaiting:
      return "waiting";
    case ClientState::kLoading:
      return "loading";
    case ClientState::kRunning:
      return "running";
    case ClientState::kPaused:
      return "paused";
    case ClientState::kDropping:
      return "dropping";
    case ClientState::kUnresponsive:
      return "unresponsive";
  }
  return "?";
}

static std::vector<ClientId> held_up_by(const Gpu& gpu, const Client& client) {
  std::vector<ClientId> holders, movers;
  for (const auto& [grant, other] : gpu.holders) {
    if (other->id != client.id) holders.push_back(other->id);
  }
  std::sort(holders.begin(), holders.end());
  for (const auto& [id, other] : gpu.unsettled) {
    if (id != client.id && other->evictions.current) movers.push_back(id);
  }
  return holders.empty() || client.state == ClientState::kLoading ? movers : holders;
}

static ClientView view_of(const State& state, const Gpu& gpu, const Client& client, Instant now) {
  const StateTimes times = times_until(client, now);
  ClientView view{};
  view.client = client.id;
  view.gpu = client.gpu;
  view.tenant = client.tenant;
  view.priority = client.priority;
  view.state = client.state;
  view.memory = client.memory;
  view.budget = client.holds_lock() ? client.budget.bytes : held(client);
  view.overhead = overhead_of(state.config, client);
  view.since = client.since;
  view.waiting_for = waiting_sentence(state, gpu, client);
  view.held = client.wait.while_suspended;
  if (!view.waiting_for.empty() && !client.wait.while_suspended) view.held_up_by = held_up_by(gpu, client);
  view.turns = client.totals.turns;
  view.drops = client.totals.drops;
  view.unanswered_drops = client.totals.unanswered_drops;
  view.failed_drains = client.totals.failed_drains;
  view.time_running = times.running;
  view.time_waiting = times.waiting;
  view.time_swapping = times.swapping;
  view.swapped_out_total = client.totals.swapped_out;
  view.swapped_in_total = client.totals.swapped_in;
  view.unmoved_total = client.totals.unmoved;
  view.prefetched_total = client.totals.prefetched;
  view.prefetched_in_vain_total = client.totals.prefetched_in_vain;
  view.evicting = client.evictions.current.has_value();
  view.in_turn = client.holds_lock() && !client.turn.pause.since;
  view.failed_drains_in_row = client.drain.backoff.failures;
  view.drainable = client.drain.backoff.failures < kUndrainable;
  if (const Gang* gang = gang_of(state, client)) view.gang_gpus = static_cast<uint32_t>(gpus_of(*gang).size());
  return view;
}

static TenantView view_of(const Account& account, Instant now) {
  const Duration owed = account.limit.has_ceiling() ? -account.ceiling_balance : -account.balance;
  return {account.tenant,
          account.limit.ceiling,
          account.limit.reserved,
          static_cast<double>(account.quota) * 100 / static_cast<double>(kWholeGpu),
          account.consumed.last_window,
          now - account.joined_at,
          account.consumed.billed,
          account.active,
          account.throttled || account.yields,
          account.throttling.waiting,
          std::max({owed, account.lifted.owed, Duration{0}}),
          account.slice.gappy};
}

// Without clients and tenants.
static GpuView view_of(const State& state, const Gpu& gpu) {
  GpuView view{};
  view.gpu = gpu.id;
  view.total = gpu.total;
  view.foreign = gpu.foreign;
  view.overhead = gpu.sums.overhead_told + gpu.sums.overhead_untold * state.config.overhead_default;
  view.safe_limit = safe_limit(state.config, gpu);
  view.mode = name_of(gpu.quota.mode);
  view.departed = departed_bytes(gpu);
  view.bandwidth_out = static_cast<double>(gpu.link.median.out);
  view.bandwidth_in = static_cast<double>(gpu.link.median.in);
  view.switches = gpu.switches.count;
  view.switch_time = switch_time(state.config, gpu.switches.cost);
  view.mode_changes = gpu.quota.mode_changes;
  view.window = gpu.quota.last_window_length;
  view.swap_time = gpu.quota.swap_time;
  view.sharing = gpu.share_trial.chosen;
  view.sharing_tried = gpu.share_trial.way != gpu.share_trial.chosen;
  view.sharing_gain = gpu.share_trial.gain;
  view.sharing_trials = gpu.share_trial.trials;
  return view;
}

static GpuView with_tenants(const State& state, const Gpu& gpu, Instant now) {
  GpuView view = view_of(state, gpu);
  AccountsAt at(state.config, gpu, now);
  for (const Account& account : gpu.quota.accounts) view.tenants.push_back(view_of(at.of(account), now));
  if (gpu.quota.left.accounts.empty()) return view;
  for (const Account& account : gpu.quota.left.accounts) view.tenants.push_back(view_of(at.of(account), now));
  std::sort(view.tenants.begin(), view.tenants.end(), [](const TenantView& a, const TenantView& b) { return a.tenant < b.tenant; });
  return view;
}

bool shares_by_limits(const State& state, GpuId gpu) {
  const auto at = state.gpus.find(gpu);
  return at != state.gpus.end() && at->second.quota.limited;
}

std::vector<GpuView> view(const State& state, Instant now) {
  std::vector<GpuView> views = view_of_tenants(state, now);
  for (GpuView& view : views) {
    view_clients(state, view.gpu, std::numeric_limits<size_t>::max(), now, view.clients);
  }
  return views;
}

std::optional<GpuView> view_of_tenants(const State& state, GpuId id, Instant now) {
  const auto gpu = state.gpus.find(id);
  return gpu == state.gpus.end() ? std::nullopt : std::optional(with_tenants(state, gpu->second, now));
}

std::optional<GpuView> view_of_gpu(const State& state, GpuId id) {
  const auto gpu = state.gpus.find(id);
  return gpu == state.gpus.end() ? std::nullopt : std::optional(view_of(state, gpu->second));
}

// A client on its way from memory, while the ones behind it are looked for: thousands do not fit the processor's caches.
static void fetch_ahead(const Client& client) {
  constexpr size_t kCacheLine = 64;
  for (size_t at = 0; at < sizeof client; at += kCacheLine) __builtin_prefetch(reinterpret_cast<const char*>(&client) + at);
}

// A tree's nodes come from memory one after the other, those of several trees together. Of this GPU's clients and those of the GPUs behind
// it, which are looked at next; not of so many GPUs that the first are gone from the processor's caches again by then.
static void fetch_nodes_ahead(const std::map<GpuId, Gpu>& gpus, std::map<GpuId, Gpu>::const_iterator from) {
  constexpr std::ptrdiff_t kTrees = 4;
  constexpr int kNodesMost = 500;  // of each
  if (std::distance(gpus.begin(), from) % kTrees != 0) return;
  struct Walk {
    std::map<ClientId, Client>::const_iterator at, end;
  };
  std::array<Walk, kTrees> walks;
  size_t count = 0;
  for (; from != gpus.end() && count < walks.size(); ++from) walks[count++] = {from->second.clients.begin(), from->second.clients.end()};
  bool more = true;
  for (int i = 0; i < kNodesMost && more; ++i) {
    more = false;
    for (Walk& walk : std::span(walks).first(count)) {
      if (walk.at == walk.end) continue;
      __builtin_prefetch(&*walk.at);  // what is not used is not walked along
      ++walk.at;
      more = true;
    }
  }
}

void view_clients(const State& state, GpuId id, size_t most, Instant now, std::vector<ClientView>& clients) {
  const auto gpu = state.gpus.find(id);
  if (gpu == state.gpus.end()) return;
  const std::map<ClientId, Client>& all = gpu->second.clients;
  if (clients.empty()) {
    clients.reserve(all.size());
    fetch_nodes_ahead(state.gpus, gpu);
  }
  std::vector<const Client*> some;
  some.reserve(std::min(most, all.size()));
  for (auto at = clients.empty() ? all.begin() : all.upper_bound(clients.back().client); at != all.end() && some.size() < most; ++at) {
    fetch_ahead(at->second);
    some.push_back(&at->second);
  }
  for (const Client* client : some) clients.push_back(view_of(state, gpu->second, *client, now));
}

std::optional<GpuView> view_of_client(const State& state, ClientId client, Instant now) {
  const Client* const known = state.find(client);
  if (known == nullptr) return std::nullopt;
  GpuView view = view_of_tenant(state, known->gpu, known->tenant, now);
  view.clients.push_back(view_of(state, *known->indexed.home, *known, now));
  return view;
}

GpuView view_of_tenant(const State& state, GpuId id, TenantId tenant, Instant now) {
  const auto gpu = state.gpus.find(id);
  if (gpu == state.gpus.end()) return {};
  GpuView view = view_of(state, gpu->second);
  const Quota& quota = gpu->second.quota;
  AccountsAt at(state.config, gpu->second, now);
  if (const Account* account = quota.accounts.find(tenant)) view.tenants.push_back(view_of(at.of(*account), now));
  if (const Account* left = quota.left.accounts.find(tenant)) view.tenants.push_back(view_of(at.of(*left), now));
  return view;
}

std::vector<GpuView> view_of_tenants(const State& state, Instant now) {
  std::vector<GpuView> views;
  for (const auto& [id, gpu] : state.gpus) views.push_back(with_tenants(state, gpu, now));
  return views;
}

static ClientGlimpse glimpse_of(const Client& client) {
  return {client.id,
          client.gpu,
          client.tenant,
          client.state,
          client.holds_lock() && !client.turn.pause.since,
          client.totals.turns,
          client.memory,
          client.totals.swapped_out,
          client.totals.swapped_in,
          client.wait.while_suspended};
}

void glimpse(const State& state, std::vector<ClientGlimpse>& clients) {
  clients.clear();
  for (const auto& [gpu_id, gpu] : state.gpus) {
    for (const auto& [id, client] : gpu.clients) clients.push_back(glimpse_of(client));
  }
}

void glimpse_touched(const State& state, std::vector<ClientGlimpse>& clients) {
  clients.clear();
  for (const Gpu* gpu : state.settled) {
    std::vector<ClientId> touched = gpu->touched;
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const ClientId client : touched) {
      if (const auto at = gpu->clients.find(client); at != gpu->clients.end()) clients.push_back(glimpse_of(at->second));
    }
  }
}

static const Client* longest_waiting(const State& state, TenantId tenant) {
  const auto home = state.homes.find(tenant);
  if (home == state.homes.end()) return nullptr;
  const Client* longest = nullptr;
  for (const auto& [gpu, count] : home->second) {
    const Tenancy& tenancy = state.gpus.at(gpu).of_tenant.at(tenant);
    if (tenancy.does.holds > 0) return nullptr;
    for (const Client* client : tenancy.waiting) {
      if (longest == nullptr || client->since < longest->since) longest = client;
    }
  }
  return longest;
}

std::optional<TurnWait> turn_wait_of(const State& state, TenantId tenant) {
  const Client* const client = longest_waiting(state, tenant);
  if (client == nullptr) return std::nullopt;
  const Gpu& gpu = *client->indexed.home;
  TurnWait wait{client->id, gpu.id, client->since, gpu.holders.size()};
  if (gpu.holders.empty()) return wait;
  const Client* first = gpu.holders.begin()->second;
  for (const auto& [grant, holder] : gpu.holders) {
    if (holder->since < first->since) first = holder;
  }
  wait.holder = first->tenant;
  wait.state = first->state;
  wait.held_since = first->since;
  const bool in_turns = gpu.quota.mode == GpuMode::kUnlimited || gpu.quota.mode == GpuMode::kRotation;
  if (gpu.holders.size() == 1 && in_turns && !gpu.share_turn.group) wait.ends = end_of_turn(state, gpu, *first);
  return wait;
}

std::string waiting_for(const State& state, ClientId client) {
  const Client* const known = state.find(client);
  return known == nullptr ? std::string() : waiting_sentence(state, *known->indexed.home, *known);
}

static Bytes excess_of(const State& state, const Gpu& gpu) { return gpu.sums.needed - safe_limit(state.config, gpu); }

bool may_swap(const State& state, GpuId gpu) {
  const auto at = state.gpus.find(gpu);
  return at != state.gpus.end() && excess_of(state, at->second) > 0;
}

static void add_demands(const State& state, const Gpu& gpu, std::vector<SwapDemand>& demands) {
  const Bytes excess = excess_of(state, gpu);
  for (const auto& [client_id, client] : gpu.clients) {
    const bool has_some = client.holds_lock() || client.memory.resident > 0;
    const Bytes can_move = client.swappable ? client.memory.allocated - client.memory.unswappable : 0;
    demands.push_back({client_id, has_some ? std::max<Bytes>(std::min(can_move, excess), 0) : 0});
  }
}

std::vector<SwapDemand> swap_demands(const State& state) {
  std::vector<SwapDemand> demands;
  for (const auto& [id, gpu] : state.gpus) add_demands(state, gpu, demands);
  return demands;
}

std::vector<SwapDemand> swap_demands(const State& state, GpuId gpu) {
  std::vector<SwapDemand> demands;
  if (const auto at = state.gpus.find(gpu); at != state.gpus.end()) add_demands(state, at->second, demands);
  return demands;
}

}  // namespace nvshare::policy
