#include "policy/concerns.h"

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

const char* name_of(SchedulingMode mode) {
  switch (mode) {
    case SchedulingMode::kAuto:
      return "auto";
    case SchedulingMode::kWeighted:
      return "weighted";
    case SchedulingMode::kSerial:
      return "serial";
    case SchedulingMode::kDynamic:
      return "dynamic";
    case SchedulingMode::kRoundRobin:
      return "round-robin";
    case SchedulingMode::kConcurrent:
      return "concurrent";
  }
  return "?";
}

const char* name_of(GpuMode mode) {
  switch (mode) {
    case GpuMode::kUnlimited:
      return "unlimited";
    case GpuMode::kTogether:
      return "together";
    case GpuMode::kTurns:
      return "turns";
    case GpuMode::kRotation:
      return "rotation";
  }
  return "?";
}

static std::vector<ClientId> held_up_by(const Gpu& gpu, const Client& client) {
  std::vector<ClientId> holders, movers;
  for (const auto& [id, other] : gpu.clients) {
    if (id == client.id) continue;
    if (other.holds_lock()) holders.push_back(id);
    if (other.eviction) movers.push_back(id);
  }
  return holders.empty() || client.state == ClientState::kLoading ? movers : holders;
}

static ClientView view_of(const State& state, const Gpu& gpu, Client client, Instant now) {
  const Instant since = client.since;
  set_state(client, client.state, now);  // in this copy, so that the times run up to now
  ClientView view{};
  view.client = client.id;
  view.gpu = client.gpu;
  view.tenant = client.tenant;
  view.priority = client.priority;
  view.state = client.state;
  view.memory = client.memory;
  view.budget = client.holds_lock() ? client.budget : client.memory.resident;
  view.overhead = overhead_of(state.config, client);
  view.since = since;
  view.waiting_for = waiting_sentence(state, gpu, client);
  if (!view.waiting_for.empty()) view.held_up_by = held_up_by(gpu, client);
  view.turns = client.turns;
  view.drops = client.drops;
  view.unanswered_drops = client.unanswered_drops;
  view.failed_drains = client.failed_drains;
  view.time_running = client.time_running;
  view.time_waiting = client.time_waiting;
  view.time_swapping = client.time_swapping;
  view.swapped_out_total = client.swapped_out;
  view.swapped_in_total = client.swapped_in;
  view.evicting = client.eviction.has_value();
  view.in_turn = client.holds_lock() && !client.paused_since;
  view.failed_drains_in_row = client.drain.failures;
  view.drainable = client.drain.failures < kUndrainable;
  if (const Gang* gang = gang_of(state, gpu.clients.at(client.id))) view.gang_gpus = static_cast<uint32_t>(gpus_of(*gang).size());
  return view;
}

static void view_quota(const Gpu& gpu, Instant now, GpuView& view) {
  view.mode_changes = gpu.quota.mode_changes;
  view.window = gpu.quota.last_window_length;
  view.swap_time = gpu.quota.swap_time;
  for (const auto& [tenant, account] : gpu.quota.accounts) {
    const Duration owed = account.has_ceiling() ? -account.headroom : -account.balance;
    view.tenants.push_back({tenant, account.ceiling, account.reserved,
                            static_cast<double>(account.quota) * 100 / static_cast<double>(kWholeGpu), account.last_window,
                            now - account.joined_at, account.billed, account.active, account.throttled || account.yields,
                            account.throttled_waiting, std::max({owed, account.owed, Duration{0}}), account.gappy});
  }
}

bool shares_by_limits(const State& state, GpuId gpu) {
  const auto at = state.gpus.find(gpu);
  return at != state.gpus.end() && at->second.quota.limited;
}

std::vector<GpuView> view(const State& state, Instant now) {
  std::vector<GpuView> views;
  for (const auto& [id, gpu] : state.gpus) {
    GpuView view{};
    view.gpu = id;
    view.total = gpu.total;
    view.foreign = gpu.foreign;
    view.safe_limit = safe_limit(state.config, gpu);
    view.mode = name_of(gpu.quota.mode);
    view.departed = departed_bytes(gpu);
    view.bandwidth_out = static_cast<double>(gpu.bandwidth_out);
    view.bandwidth_in = static_cast<double>(gpu.bandwidth_in);
    view.switches = gpu.switches;
    view.switch_time = switch_time(state.config, gpu.switch_cost);
    view_quota(gpu, now, view);
    for (const auto& [client_id, client] : gpu.clients) {
      view.overhead += overhead_of(state.config, client);
      view.clients.push_back(view_of(state, gpu, client, now));
    }
    views.push_back(std::move(view));
  }
  return views;
}

void glimpse(const State& state, std::vector<ClientGlimpse>& clients) {
  clients.clear();
  for (const auto& [gpu_id, gpu] : state.gpus) {
    for (const auto& [id, client] : gpu.clients) {
      clients.push_back({id, gpu_id, client.tenant, client.state, client.holds_lock() && !client.paused_since, client.turns, client.memory,
                         client.swapped_out, client.swapped_in});
    }
  }
}

std::string waiting_for(const State& state, ClientId client) {
  const auto gpu_id = state.gpu_of.find(client);
  if (gpu_id == state.gpu_of.end()) return {};
  const Gpu& gpu = state.gpus.at(gpu_id->second);
  return waiting_sentence(state, gpu, gpu.clients.at(client));
}

std::vector<SwapDemand> swap_demands(const State& state) {
  std::vector<SwapDemand> demands;
  for (const auto& [id, gpu] : state.gpus) {
    Bytes excess = -safe_limit(state.config, gpu);
    for (const auto& [client_id, client] : gpu.clients) excess += need(client);
    for (const auto& [client_id, client] : gpu.clients) {
      const bool has_some = client.holds_lock() || client.memory.resident > 0;
      const Bytes can_move = client.swappable ? client.memory.allocated - client.memory.unswappable : 0;
      demands.push_back({client_id, has_some ? std::max<Bytes>(std::min(can_move, excess), 0) : 0});
    }
  }
  return demands;
}

}  // namespace nvshare::policy
