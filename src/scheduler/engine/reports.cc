#include "scheduler/engine/reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <span>

#include "base/fetch_ahead.h"
#include "policy/parts.h"

namespace nvshare::scheduler {

namespace admin = protocol::admin;

namespace {

// Of one part, some 0.1 ms each.
constexpr size_t kClientsAtOnce = 50;
constexpr size_t kTenantsAtOnce = 100;
constexpr size_t kLimitsAtOnce = 100;

const char* name_of(protocol::Backend backend) {
  switch (backend) {
    case protocol::Backend::kVmm:
      return "vmm";
    case protocol::Backend::kManaged:
      return "managed";
    case protocol::Backend::kNone:
      return "none";
  }
  return "unknown";
}

constexpr char kBypassed[] = "another process of its tenant uses a GPU past nvshare, and the node gives such tenants no turns";

admin::GpuReport report_of(const KnownGpu& gpu, const policy::GpuView* view) {
  admin::GpuReport out;
  out.uuid = gpu.uuid_text;
  out.name = gpu.name;
  out.real_total = gpu.real_total;
  out.total = gpu.total > 0 ? gpu.total : gpu.real_total;
  out.told = gpu.total > 0 && gpu.configured();
  out.nvml = gpu.nvml;
  out.nvml_span_ns = gpu.use.span();
  out.nvml_unknown = gpu.use.unknown();
  if (gpu.use.span() > 0) out.nvml_others = gpu.use.of_others().nvml;
  if (view == nullptr) return out;
  out.foreign = view->foreign;
  out.safe_limit = view->safe_limit;
  out.overhead = view->overhead;
  out.departed = view->departed;
  out.switches = view->switches;
  out.switch_time_ns = view->switch_time;
  out.bandwidth_out = view->bandwidth_out;
  out.bandwidth_in = view->bandwidth_in;
  out.compute_mode = view->mode;
  out.compute_mode_changes = view->mode_changes;
  out.window_ns = view->window;
  out.swap_unbilled_ns = view->swap_time;
  out.sharing = policy::name_of(view->sharing);
  out.sharing_percent = std::llround(100 * view->sharing_gain);
  out.sharing_trials = view->sharing_trials;
  return out;
}

void report_of(const Tenant& tenant, admin::TenantReport& out) {
  out.id = tenant.id;
  out.name = tenant.name;
  out.kind = tenant.kind;
  if (tenant.job) {
    out.job = tenant.job->id;
    out.user = tenant.job->user;
    out.partition = tenant.job->partition;
  }
  out.gpu_memory_limit = tenant.memory_limit_in_force();
  out.priority = tenant.priority_in_force();
  out.ends = tenant.pod.ends;
  out.clients = tenant.clients;
  out.clients_ever = tenant.clients_ever;
  out.has_asked = tenant.has_asked;
  out.gpu_core_limit = tenant.core_limit_in_force();
  out.gpu_core_reserved = tenant.core_reserved_in_force();
  out.paused = tenant.suspended_in_force();
  out.sharing = tenant.sharing_in_force();
  out.turn_most_ns = tenant.turns_in_force().most;
  out.root = tenant.root != 0 && start_time_of(tenant.root) == tenant.root_start_time ? tenant.root : 0;
}

void add_compute(const EngineParts& engine, const policy::GpuView& gpu, const ReportsOfTenants& reports) {
  const auto percent = [](policy::Duration part, policy::Duration whole) {
    return whole > 0 ? static_cast<double>(part) * 100 / static_cast<double>(whole) : 0;
  };
  for (const policy::TenantView& tenant : gpu.tenants) {
    admin::TenantReport* report = reports.find(tenant.tenant);
    if (report == nullptr) continue;
    const std::optional<UtilizationMonitor::Shares> use = engine.gpus[gpu.gpu].use.of_tenant(tenant.tenant);
    admin::ComputeReport& out = report->compute.emplace_back();
    out.gpu = engine.gpus[gpu.gpu].uuid_text;
    out.quota = tenant.quota;
    out.share_window = percent(tenant.last_window, gpu.window);
    out.share = percent(tenant.used, tenant.since_joined);
    out.used_ns = tenant.used;
    out.throttled_time_ns = tenant.throttled_time;
    out.debt_ns = tenant.debt;
    out.active = tenant.active;
    out.throttled = tenant.throttled;
    if (!use || !engine.gpus.nvml_sees_pids()) continue;
    out.nvml_share = use->nvml;
    out.nvml_billed = use->billed;
    out.nvml_differs = use->differ;
  }
}

// Of these tenants, found together; null: it is not in the report. Each is on its way from memory.
template <typename Some, typename TenantOf>
std::vector<admin::TenantReport*> find_all(const ReportsOfTenants& reports, const Some& some, TenantOf tenant_of) {
  std::vector<admin::TenantReport*> found;
  found.reserve(some.size());
  for (const auto& one : some) {
    found.push_back(reports.find(tenant_of(one)));
    if (found.back() != nullptr) fetch_lines_of(*found.back());
  }
  return found;
}

// For a row of each of its clients' GPUs, so that the list does not move while it grows; of most tenants that is one.
template <typename Row>
std::vector<Row>& with_room(std::vector<Row>& rows, const admin::TenantReport& tenant) {
  constexpr uint64_t kAtOnce = 8;
  if (rows.capacity() == 0) rows.reserve(std::clamp<uint64_t>(tenant.clients, 1, kAtOnce));
  return rows;
}

void add_usage(const EngineParts& engine, const policy::GpuView& gpu, const ReportsOfTenants& reports) {
  auto all = engine.usage_totals.of_tenants(gpu, engine.gpus[gpu.gpu].uuid_text);
  const std::vector<admin::TenantReport*> found = find_all(reports, all, [](const auto& entry) { return entry.first; });
  for (size_t i = 0; i < all.size(); ++i) {
    if (found[i] != nullptr) with_room(found[i]->usage, *found[i]).push_back(std::move(all[i].second));
  }
}

// What the scheduler's own books have of a client.
struct Known {
  const RegisteredClient* client;
  MemoryLedger::ClientView limits;
  HostBudget::ClientView host;
};

Known known_of(const EngineParts& engine, const policy::ClientView& view) {
  return {&engine.clients.at(view.client), engine.ledger.view_of(view.client), engine.host.view(view.client)};
}

// Of the clients of a part, looked up together: each look-up waits for memory, and does not wait for the others'. `accounts` gets those of
// the ledger that come with them.
using KnownOfPart = std::array<Known, kClientsAtOnce>;
KnownOfPart known_of(const EngineParts& engine, std::span<const policy::ClientView> views, std::vector<MemoryLedger::View>& accounts) {
  KnownOfPart all;
  std::array<policy::ClientId, kClientsAtOnce> ids{};
  std::array<MemoryLedger::ClientView, kClientsAtOnce> limits;
  for (size_t i = 0; i < views.size(); ++i) {
    ids[i] = views[i].client;
    all[i].client = &engine.clients.at(ids[i]);
    fetch_lines_of(*all[i].client);
  }
  engine.ledger.views_of(std::span(ids).first(views.size()), limits, accounts);
  for (size_t i = 0; i < views.size(); ++i) all[i].limits = limits[i];
  for (size_t i = 0; i < views.size(); ++i) all[i].host = engine.host.view(views[i].client);
  return all;
}

void report_of(const policy::ClientView& view, const Known& known, const std::string& gpu, policy::Instant now, admin::ClientReport& out) {
  const RegisteredClient& client = *known.client;
  out.id = view.client;
  out.pid = client.pid;
  out.program = client.program;
  out.tenant = client.tenant;
  out.gpu = gpu;
  out.backend = name_of(client.backend);
  out.protocol = client.version;
  out.library = client.release;
  out.state = policy::name_of(view.state);
  out.since_ns = now - view.since;
  out.allocated = view.memory.allocated;
  out.resident = view.memory.resident;
  out.swapped = view.memory.allocated - view.memory.resident;
  out.unswappable = view.memory.unswappable;
  out.mps = client.mps.group != 0;
  out.mps_group = client.mps.name;
  out.keeps_memory = client.keeps_memory;
  out.overhead = view.overhead;
  out.budget = view.budget;
  out.gpu_memory_limit = known.limits.limit;
  out.charged = known.limits.charged;
  out.lease = std::min(known.limits.lease, MemoryLedger::kUnlimited);
  out.host_memory = static_cast<int64_t>(client.memory.swappable_host);
  out.drainable = view.drainable;
  out.gang_gpus = view.gang_gpus;
  report_of(known.host, &out);
  out.turns = view.turns;
  out.drops = view.drops;
  out.unanswered = view.unanswered_drops;
  out.failed_drains = view.failed_drains;
  out.time_running_ns = view.time_running;
  out.time_waiting_ns = view.time_waiting;
  out.time_swapping_ns = view.time_swapping;
  out.swapped_out_total = view.swapped_out_total;
  out.swapped_in_total = view.swapped_in_total;
  out.unmoved_total = view.unmoved_total;
  out.prefetched_total = view.prefetched_total;
  out.prefetched_in_vain_total = view.prefetched_in_vain_total;
}

std::string name_of(const EngineParts& engine, const policy::ClientView& view) {
  const RegisteredClient& client = engine.clients.at(view.client);
  const Tenant* known = engine.tenants.find(client.tenant);
  const std::string tenant = known != nullptr ? known->name : std::to_string(client.tenant);
  const char* fault = !view.drainable                                    ? ", whose GPU work does not end"
                      : view.state == policy::ClientState::kUnresponsive ? ", which does not answer"
                                                                         : "";
  return fmt::format("{} (pid {}, tenant {}{})", client.program, client.pid, tenant, fault);
}

void add_limits(const EngineParts& engine, std::span<const MemoryLedger::View> views, const ReportsOfTenants& reports) {
  const std::vector<admin::TenantReport*> found = find_all(reports, views, [](const MemoryLedger::View& view) { return view.tenant; });
  for (size_t i = 0; i < views.size(); ++i) {
    if (found[i] == nullptr) continue;
    const MemoryLedger::View& view = views[i];
    const std::string& gpu = engine.gpus[view.gpu].uuid_text;
    std::vector<admin::TenantMemoryReport>& memory = with_room(found[i]->memory, *found[i]);
    // Its first client left, so that it came with the next one, too, or with one that is absent.
    std::erase_if(memory, [&](const admin::TenantMemoryReport& report) { return report.gpu == gpu; });
    memory.push_back({gpu, view.limit, view.charged, view.limit > 0 ? view.leased : 0, view.over(), view.asking, view.silent, view.asks});
  }
}

void add_bypasses(const EngineParts& engine, admin::StatusReport* report, policy::Instant now) {
  for (const auto& [gpu, processes] : engine.bypasses.seen()) {
    for (const auto& [key, seen] : processes) {
      if (!seen.told) continue;
      const BypassWatch::Process& process = seen.process;
      report->bypasses.push_back({process.pid, process.program, process.tenant, engine.gpus[gpu].uuid_text, process.used, now - seen.since,
                                  engine.bypasses.refuses(process.id)});
    }
  }
}

}  // namespace

ReportsOfTenants::ReportsOfTenants(std::vector<admin::TenantReport>& tenants) {
  by_id_.reserve(tenants.size());
  for (admin::TenantReport& tenant : tenants) by_id_.push_back({tenant.id, &tenant});
  std::ranges::sort(by_id_, {}, &Place::id);
}

admin::TenantReport* ReportsOfTenants::find(policy::TenantId id) const {
  const auto at = std::ranges::lower_bound(by_id_, id, {}, &Place::id);
  return at == by_id_.end() || at->id != id ? nullptr : at->report;
}

ReportInParts::ReportInParts(const EngineParts& engine, policy::Instant now)
    : engine_(engine), joined_(engine.clients.joined()), newcomers_(joined_) {
  report_.runtime_dir = engine.settings.runtime_dir;
  report_.epoch = engine.epoch;
  report_.changes = engine.steps.changes();
  report_.uptime_ns = now - engine.started;
  report_.nvml = engine.gpus.uses_nvml();
  engine.host.report(&report_);
  report_.switch_time_mode = engine.settings.policy.switch_time_mode == policy::SwitchTimeMode::kAuto ? "auto" : "fixed";
  report_.clients.reserve(engine.clients.all().size() + kClientsAtOnce);
  report_.tenants.reserve(engine.tenants.all().size());
  limits_.reserve(engine.clients.all().size());
  for (policy::GpuId id = 0; id < engine.gpus.size(); ++id) {
    if (!engine.gpus[id].is_there()) continue;
    std::optional<policy::GpuView> view = policy::view_of_gpu(engine.steps.state(), id);
    report_.gpus.push_back(report_of(engine.gpus[id], view ? &*view : nullptr));
    if (view) gpus_.push_back({report_.gpus.size() - 1, std::move(*view), OfGpu::Use::kOfGpu, engine.clients.left()});
  }
}

bool ReportInParts::go_on(policy::Instant now) {
  if (at_ == gpus_.size() && (next_ == Next::kClients || next_ == Next::kUse)) {
    next_ = next_ == Next::kClients ? Next::kNewcomers : Next::kLimits;
    newcomers_ = engine_.clients.joined();
    at_ = 0;
  }
  switch (next_) {
    case Next::kClients:
      add_clients(now);
      return false;
    case Next::kNewcomers:
      add_newcomers(now);
      return false;
    case Next::kTenants:
      add_tenants();
      return false;
    case Next::kUse:
      add_use(now);
      return false;
    case Next::kLimits:
      add_some_limits();
      return false;
    case Next::kRest:
      add_bypasses(engine_, &report_, now);
      return true;
  }
  return true;
}

bool ReportInParts::is_still_there(const OfGpu& gpu) const { return engine_.gpus[gpu.view.gpu].uuid_text == report_.gpus[gpu.index].uuid; }

// For another part.
void ReportInParts::make_room() {
  if (report_.clients.size() + kClientsAtOnce <= report_.clients.capacity()) return;
  Clients more;
  more.reserve(2 * report_.clients.capacity());
  more = report_.clients;
  outgrown_ = std::exchange(report_.clients, std::move(more));
}

void ReportInParts::add_clients(policy::Instant now) {
  make_room();
  policy::GpuView& view = gpus_[at_].view;
  const std::string& gpu = report_.gpus[gpus_[at_].index].uuid;
  const size_t before = view.clients.size();
  if (is_still_there(gpus_[at_])) policy::view_clients(engine_.steps.state(), view.gpu, kClientsAtOnce, now, view.clients);
  const std::span<const policy::ClientView> clients = std::span(view.clients).subspan(before);
  add_reports(clients, gpu, now);
  if (clients.size() < kClientsAtOnce) ++at_;
}

// At most kClientsAtOnce, for which there is room.
void ReportInParts::add_reports(std::span<const policy::ClientView> clients, const std::string& gpu, policy::Instant now) {
  const KnownOfPart known = known_of(engine_, clients, limits_);
  for (size_t i = 0; i < clients.size(); ++i) {
    admin::ClientReport& report = report_.clients.emplace_back();
    report_of(clients[i], known[i], gpu, now, report);
    report.waiting_for = waiting_sentence(engine_, clients[i], now);
  }
}

// Those that joined since the report was begun, where the clients behind them were in it already: who comes back may have its former id,
// and its GPU may be one of the first.
void ReportInParts::add_newcomers(policy::Instant now) {
  make_room();
  for (size_t count = 0; count < kClientsAtOnce; ++count) {
    const RegisteredClient* client = engine_.clients.next_joined(joined_, newcomers_);
    if (client == nullptr) {
      next_ = Next::kTenants;
      return;
    }
    joined_ = client->joined_as;
    const auto gpu = std::ranges::find(gpus_, client->gpu, [](const OfGpu& each) { return each.view.gpu; });
    if (gpu == gpus_.end() || !is_still_there(*gpu)) continue;
    const auto at = std::ranges::lower_bound(gpu->view.clients, client->id, {}, &policy::ClientView::client);
    if (at != gpu->view.clients.end() && at->client == client->id) continue;
    const auto view = policy::view_of_client(engine_.steps.state(), client->id, now);
    if (!view) continue;
    const auto added = gpu->view.clients.insert(at, view->clients.front());
    add_reports(std::span(&*added, 1), report_.gpus[gpu->index].uuid, now);
  }
}

void ReportInParts::add_tenants() {
  const std::map<std::string, Tenant>& all = engine_.tenants.all();
  auto at = any_tenant_ ? all.upper_bound(tenant_) : all.begin();
  std::vector<const Tenant*> some;
  some.reserve(kTenantsAtOnce);
  for (; at != all.end() && some.size() < kTenantsAtOnce; ++at) {
    fetch_lines_of(at->second);
    some.push_back(&at->second);
  }
  if (!some.empty()) {
    tenant_ = std::prev(at)->first;
    any_tenant_ = true;
  }
  for (const Tenant* tenant : some) report_of(*tenant, report_.tenants.emplace_back());
  if (at != all.end()) return;
  of_tenants_ = ReportsOfTenants(report_.tenants);
  next_ = Next::kUse;
}

// Of the tenants by now, and of the clients in the report that are still there: what those did that have left since is in the totals
// already. In three parts for each GPU.
void ReportInParts::add_use(policy::Instant now) {
  OfGpu& gpu = gpus_[at_];
  admin::GpuReport& report = report_.gpus[gpu.index];
  if (gpu.use == OfGpu::Use::kOfGpu) {
    std::optional<policy::GpuView> view;
    if (is_still_there(gpu)) view = policy::view_of_tenants(engine_.steps.state(), gpu.view.gpu, now);
    if (!view) {
      ++at_;
      return;
    }
    view->clients = std::move(gpu.view.clients);
    gpu.view = std::move(*view);
    forget_those_that_left(gpu);
    report.usage = engine_.usage_totals.of_gpu(gpu.view, report.uuid);
    gpu.use = OfGpu::Use::kCompute;
  } else if (!is_still_there(gpu)) {
    ++at_;
  } else if (gpu.use == OfGpu::Use::kCompute) {
    add_compute(engine_, gpu.view, of_tenants_);
    gpu.use = OfGpu::Use::kOfTenants;
  } else {
    forget_those_that_left(gpu);
    add_usage(engine_, gpu.view, of_tenants_);
    ++at_;
  }
}

void ReportInParts::forget_those_that_left(OfGpu& gpu) const {
  if (std::exchange(gpu.left, engine_.clients.left()) == engine_.clients.left()) return;
  std::erase_if(gpu.view.clients, [&](const policy::ClientView& client) { return engine_.clients.find(client.client) == nullptr; });
}

void ReportInParts::add_some_limits() {
  if (limits_told_ == 0) engine_.ledger.add_views_of_absent(limits_);
  const std::span<const MemoryLedger::View> left = std::span(limits_).subspan(limits_told_);
  const std::span<const MemoryLedger::View> some = left.first(std::min(left.size(), kLimitsAtOnce));
  add_limits(engine_, some, of_tenants_);
  limits_told_ += some.size();
  if (limits_told_ == limits_.size()) next_ = Next::kRest;
}

admin::StatusReport status_of(const EngineParts& engine, policy::Instant now) {
  ReportInParts report(engine, now);
  while (!report.go_on(now)) {
  }
  return report.take();
}

admin::StatusReport own_report(const EngineParts& engine, pid_t viewer, const std::set<policy::TenantId>& own, policy::Instant now) {
  admin::StatusReport report;
  report.own = true;
  report.version = NVSHARE_VERSION;
  report.runtime_dir = engine.settings.runtime_dir;
  report.epoch = engine.epoch;
  report.uptime_ns = now - engine.started;
  std::map<policy::GpuId, policy::GpuView> views;  // with their own clients alone
  for (const auto& [id, client] : engine.clients.all()) {
    if (!own.contains(client.tenant)) continue;
    const auto view = policy::view_of_client(engine.steps.state(), id, now);
    if (view) views[client.gpu].clients.push_back(view->clients.front());
  }
  for (const policy::TenantId id : own) {
    const Tenant* tenant = engine.tenants.find(id);
    if (tenant == nullptr || (tenant->clients == 0 && tenant->root == 0)) continue;
    admin::TenantReport& out = report.tenants.emplace_back();
    report_of(*tenant, out);
    out.job = 0;  // a process sees nothing of what the cluster knows of its job
    out.user = out.partition = {};
    out.root = tenant->root != 0 ? pid_as_seen_by(viewer, tenant->root) : 0;
  }
  const ReportsOfTenants reports(report.tenants);
  for (auto& [id, view] : views) {
    view.gpu = id;
    admin::GpuReport& out = report.gpus.emplace_back();
    out.uuid = engine.gpus[id].uuid_text;
    out.name = engine.gpus[id].name;
    out.total = out.real_total = engine.gpus[id].total;
    out.compute_mode = "unlimited";
    for (const policy::ClientView& client : view.clients) {
      admin::ClientReport& said = report.clients.emplace_back();
      report_of(client, known_of(engine, client), out.uuid, now, said);
      said.pid = pid_as_seen_by(viewer, engine.clients.at(client.client).pid);
      // In the policy's words, which know no names.
      said.waiting_for = client.waiting_for;
    }
    add_usage(engine, view, reports);
  }
  add_limits(engine, engine.ledger.view(), reports);
  return report;
}

admin::TurnReport turn_report(const EngineParts& engine, policy::TenantId tenant, policy::Instant now) {
  admin::TurnReport report;
  const std::optional<policy::TurnWait> wait = policy::turn_wait_of(engine.steps.state(), tenant);
  if (!wait) return report;
  report.waits = true;
  report.waited_ns = now - wait->since;
  for (policy::GpuId id = 0; id < wait->gpu; ++id) report.gpu += engine.gpus[id].is_there();
  if (wait->holders == 0) return report;
  const Tenant* holder = engine.tenants.find(wait->holder);
  report.holder = holder != nullptr && !holder->name.empty() ? holder->name : std::to_string(wait->holder);
  report.state = policy::name_of(wait->state);
  report.held_ns = now - wait->held_since;
  report.others = wait->holders - 1;
  if (wait->ends) report.left_ns = std::max<int64_t>(*wait->ends - now, 0);
  return report;
}

std::string waiting_sentence(const EngineParts& engine, const policy::ClientView& view, policy::Instant now) {
  constexpr size_t kNamesMax = 2;
  if (!view.waiting_for.empty() && engine.bypasses.refuses(engine.clients.at(view.client).tenant)) return kBypassed;
  std::string sentence = view.waiting_for;
  const size_t others = view.held_up_by.size();
  for (size_t i = 0; i < std::min(others, kNamesMax); ++i) {
    const auto other = policy::view_of_client(engine.steps.state(), view.held_up_by[i], now);
    if (other) sentence += (i == 0 ? "; on the GPU: " : ", ") + name_of(engine, other->clients.front());
  }
  if (others > kNamesMax) sentence += fmt::format(" and {} more", others - kNamesMax);
  return sentence;
}

std::string waiting_sentence(const EngineParts& engine, policy::ClientId client, policy::Instant now) {
  const auto view = policy::view_of_client(engine.steps.state(), client, now);
  return view ? waiting_sentence(engine, view->clients.front(), now) : std::string();
}

}  // namespace nvshare::scheduler
