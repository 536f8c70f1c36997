// The report of all that there is, for people and programs: status, metrics, the page.
#include <algorithm>
#include <cmath>

#include "policy/parts.h"
#include "scheduler/engine.h"
#include "scheduler/report_in_parts.h"

namespace nvshare::scheduler {

namespace admin = protocol::admin;

namespace {

constexpr size_t kClientsAtOnce = 100;  // some 0.2 ms
constexpr size_t kTenantsAtOnce = 500;

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

}  // namespace

ReportInParts::ReportInParts(const Engine& engine, policy::Instant now) : engine_(engine) {
  report_.runtime_dir = engine.settings_.runtime_dir;
  report_.epoch = engine.epoch_;
  report_.changes = engine.changes_;
  report_.uptime_ns = now - engine.started_;
  report_.nvml = engine.uses_nvml_;
  engine.host_.report(&report_);
  report_.switch_time_mode = engine.settings_.policy.switch_time_mode == policy::SwitchTimeMode::kAuto ? "auto" : "fixed";
  report_.clients.reserve(engine.clients_.size());
  report_.tenants.reserve(engine.tenants_.all().size());
  for (policy::GpuId id = 0; id < engine.gpus_.size(); ++id) {
    if (!engine.gpus_[id].is_there()) continue;
    std::optional<policy::GpuView> view = policy::view_of_gpu(*engine.state_, id);
    report_.gpus.push_back(Engine::report_of(engine.gpus_[id], view ? &*view : nullptr));
    if (view) gpus_.push_back({report_.gpus.size() - 1, std::move(*view)});
  }
}

bool ReportInParts::go_on(policy::Instant now) {
  if (at_ == gpus_.size() && (next_ == Next::kClients || next_ == Next::kUse)) {
    next_ = next_ == Next::kClients ? Next::kTenants : Next::kRest;
    at_ = 0;
  }
  switch (next_) {
    case Next::kClients:
      add_clients(now);
      return false;
    case Next::kTenants:
      add_tenants();
      return false;
    case Next::kUse:
      add_use(now);
      return false;
    case Next::kRest:
      engine_.report_limits(of_tenants_);
      engine_.report_bypasses(&report_, now);
      return true;
  }
  return true;
}

bool ReportInParts::is_still_there(const OfGpu& gpu) const { return engine_.gpus_[gpu.view.gpu].uuid_text == report_.gpus[gpu.index].uuid; }

void ReportInParts::add_clients(policy::Instant now) {
  policy::GpuView& view = gpus_[at_].view;
  admin::GpuReport& gpu = report_.gpus[gpus_[at_].index];
  const std::optional after = view.clients.empty() ? std::nullopt : std::optional(view.clients.back().client);
  std::vector<policy::ClientView> clients;
  if (is_still_there(gpus_[at_])) clients = policy::view_of_clients(*engine_.state_, view.gpu, after, kClientsAtOnce, now);
  for (policy::ClientView& client : clients) {
    admin::ClientReport& report = report_.clients.emplace_back(engine_.report_of(client, gpu.uuid, now));
    report.waiting_for = engine_.waiting_sentence(client, now);
    view.clients.push_back(std::move(client));
  }
  if (clients.size() < kClientsAtOnce) ++at_;
}

void ReportInParts::add_tenants() {
  const std::map<std::string, Tenant>& all = engine_.tenants_.all();
  auto at = any_tenant_ ? all.upper_bound(tenant_) : all.begin();
  for (size_t count = 0; at != all.end() && count < kTenantsAtOnce; ++at, ++count) {
    report_.tenants.push_back(Engine::report_of(at->second));
    tenant_ = at->first;
    any_tenant_ = true;
  }
  if (at != all.end()) return;
  of_tenants_ = Engine::by_tenant(&report_);
  next_ = Next::kUse;
}

// Of the tenants by now, and of the clients in the report: what those did that have left since is in the totals already.
void ReportInParts::add_use(policy::Instant now) {
  OfGpu& gpu = gpus_[at_++];
  std::optional<policy::GpuView> view;
  if (is_still_there(gpu)) view = policy::view_of_tenants(*engine_.state_, gpu.view.gpu, now);
  if (!view) return;
  view->clients = std::move(gpu.view.clients);
  std::erase_if(view->clients, [&](const policy::ClientView& client) { return !engine_.clients_.contains(client.client); });
  admin::GpuReport& report = report_.gpus[gpu.index];
  report.usage = engine_.usage_totals_.of_gpu(*view, report.uuid);
  engine_.report_compute(*view, of_tenants_);
  engine_.report_usage(*view, of_tenants_);
}

admin::StatusReport Engine::status(policy::Instant now) const {
  ReportInParts report(*this, now);
  while (!report.go_on(now)) {
  }
  return report.take();
}

admin::GpuReport Engine::report_of(const Gpu& gpu, const policy::GpuView* view) {
  admin::GpuReport out;
  out.uuid = gpu.uuid_text;
  out.name = gpu.name;
  out.real_total = gpu.real_total;
  out.total = gpu.total > 0 ? gpu.total : gpu.real_total;
  out.told = gpu.total > 0 && gpu.told();
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

admin::TenantReport Engine::report_of(const Tenant& tenant) {
  const Job job = tenant.job.value_or(Job());
  admin::TenantReport out;
  out.id = tenant.id;
  out.name = tenant.name;
  out.kind = tenant.kind;
  out.job = job.id;
  out.user = job.user;
  out.partition = job.partition;
  out.gpu_memory_limit = tenant.memory_limit_in_force();
  out.priority = tenant.priority_in_force();
  out.ends = tenant.pod.ends;
  out.clients = tenant.clients;
  out.clients_ever = tenant.clients_ever;
  out.gpu_core_limit = tenant.core_limit_in_force();
  out.gpu_core_reserved = tenant.core_reserved_in_force();
  out.paused = tenant.paused_in_force();
  out.sharing = tenant.sharing_in_force();
  out.turn_most_ns = tenant.turns_in_force().most;
  out.root = tenant.root != 0 && start_time_of(tenant.root) == tenant.root_start_time ? tenant.root : 0;
  return out;
}

Engine::ReportsOfTenants Engine::by_tenant(protocol::admin::StatusReport* report) {
  ReportsOfTenants reports;
  for (protocol::admin::TenantReport& tenant : report->tenants) reports[tenant.id] = &tenant;
  return reports;
}

void Engine::report_compute(const policy::GpuView& gpu, const ReportsOfTenants& reports) const {
  const auto percent = [](policy::Duration part, policy::Duration whole) {
    return whole > 0 ? static_cast<double>(part) * 100 / static_cast<double>(whole) : 0;
  };
  for (const policy::TenantView& tenant : gpu.tenants) {
    const auto report = reports.find(tenant.tenant);
    if (report == reports.end()) continue;
    const std::optional<UtilizationMonitor::Shares> use = gpus_[gpu.gpu].use.of_tenant(tenant.tenant);
    protocol::admin::ComputeReport& out = report->second->compute.emplace_back();
    out.gpu = gpus_[gpu.gpu].uuid_text;
    out.quota = tenant.quota;
    out.share_window = percent(tenant.last_window, gpu.window);
    out.share = percent(tenant.used, tenant.since_joined);
    out.used_ns = tenant.used;
    out.throttled_time_ns = tenant.throttled_time;
    out.debt_ns = tenant.debt;
    out.active = tenant.active;
    out.throttled = tenant.throttled;
    if (!use || !nvml_sees_pids_) continue;
    out.nvml_share = use->nvml;
    out.nvml_billed = use->billed;
    out.nvml_differs = use->differ;
  }
}

protocol::admin::ClientReport Engine::report_of(const policy::ClientView& view, const std::string& gpu, policy::Instant now) const {
  const Client& client = clients_.at(view.client);
  protocol::admin::ClientReport out;
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
  out.mps = client.mps;
  out.keeps_memory = client.keeps_memory;
  out.overhead = view.overhead;
  out.budget = view.budget;
  out.gpu_memory_limit = ledger_.limit_of(view.client);
  out.charged = ledger_.charged_by(view.client);
  out.lease = std::min(ledger_.lease_of(view.client), MemoryLedger::kUnlimited);
  out.host_memory = static_cast<int64_t>(client.memory.swappable_host);
  out.drainable = view.drainable;
  out.gang_gpus = view.gang_gpus;
  host_.report(view.client, &out);
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
  return out;
}

}  // namespace nvshare::scheduler
