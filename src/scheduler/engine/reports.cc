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

// Of one part, some 0.1 ms each. What the tenants of a GPU used is one part, however many they are.
constexpr size_t kClientsAtOnce = 50;
constexpr size_t kTenantsAtOnce = 50;

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

admin::ComputeReport report_of(const EngineParts& engine, const policy::GpuView& gpu, const policy::TenantView& tenant) {
  const auto percent = [](policy::Duration part, policy::Duration whole) {
    return whole > 0 ? static_cast<double>(part) * 100 / static_cast<double>(whole) : 0;
  };
  const std::optional<UtilizationMonitor::Shares> use = engine.gpus[gpu.gpu].use.of_tenant(tenant.tenant);
  admin::ComputeReport out;
  out.gpu = engine.gpus[gpu.gpu].uuid_text;
  out.quota = tenant.quota;
  out.share_window = percent(tenant.last_window, gpu.window);
  out.share = percent(tenant.used, tenant.since_joined);
  out.used_ns = tenant.used;
  out.throttled_time_ns = tenant.throttled_time;
  out.debt_ns = tenant.debt;
  out.active = tenant.active;
  out.throttled = tenant.throttled;
  if (!use || !engine.gpus.nvml_sees_pids()) return out;
  out.nvml_share = use->nvml;
  out.nvml_billed = use->billed;
  out.nvml_differs = use->differ;
  return out;
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

// For another part. Those that are there stay where they are: in `outgrown`, if more came than there was room for.
template <typename Row>
void make_room(std::vector<Row>& rows, size_t more, std::vector<Row>& outgrown) {
  if (rows.size() + more <= rows.capacity()) return;
  std::vector<Row> all;
  all.reserve(2 * (rows.size() + more));
  all = rows;
  outgrown = std::exchange(rows, std::move(all));
}

}  // namespace

void FoundOfTenants::make_room_for(size_t tenants, size_t rows) {
  of_tenants_.reserve(tenants);
  rows_.reserve(rows);
}

void FoundOfTenants::add(policy::TenantId tenant, Row row) {
  const auto index = static_cast<uint32_t>(rows_.size());
  rows_.push_back(row);
  const auto [at, is_first] = of_tenants_.try_emplace(tenant, Chain{index, index});
  if (!is_first) rows_[std::exchange(at->second.last, index)].next = index;
}

void FoundOfTenants::add(policy::TenantId tenant, admin::ComputeReport compute) {
  compute_.push_back(std::move(compute));
  add(tenant, {Kind::kCompute, 0, static_cast<uint32_t>(compute_.size() - 1)});
}

void FoundOfTenants::add(UsageReports of_gpu) {
  const auto list = static_cast<uint32_t>(usage_.size());
  usage_.push_back(std::move(of_gpu));
  for (uint32_t i = 0; i < usage_.back().size(); ++i) add(usage_.back()[i].first, {Kind::kUsage, list, i});
}

void FoundOfTenants::add(std::span<const MemoryLedger::View> some) {
  for (const MemoryLedger::View& view : some) {
    memory_.push_back(view);
    add(view.tenant, {Kind::kMemory, 0, static_cast<uint32_t>(memory_.size() - 1)});
  }
}

const FoundOfTenants::Row* FoundOfTenants::first_of(policy::TenantId tenant) const {
  const auto at = of_tenants_.find(tenant);
  return at == of_tenants_.end() ? nullptr : &rows_[at->second.first];
}

void FoundOfTenants::fetch(policy::TenantId tenant) const {
  for (const Row* row = first_of(tenant); row != nullptr; row = behind(*row)) {
    if (row->kind == Kind::kUsage) fetch_lines_of(usage_[row->list][row->at]);
    if (row->kind == Kind::kMemory) fetch_lines_of(memory_[row->at]);
  }
}

void FoundOfTenants::put_into(admin::TenantReport& tenant, const Gpus& gpus) {
  size_t usage = 0, memory = 0;
  for (const Row* row = first_of(tenant.id); row != nullptr; row = behind(*row)) {
    usage += row->kind == Kind::kUsage;
    memory += row->kind == Kind::kMemory;
  }
  tenant.usage.reserve(usage);
  tenant.memory.reserve(memory);
  for (const Row* row = first_of(tenant.id); row != nullptr; row = behind(*row)) {
    switch (row->kind) {
      case Kind::kCompute:
        tenant.compute.push_back(std::move(compute_[row->at]));
        break;
      case Kind::kUsage:
        tenant.usage.push_back(std::move(usage_[row->list][row->at].second));
        break;
      case Kind::kMemory: {
        const MemoryLedger::View& view = memory_[row->at];
        const std::string& gpu = gpus[view.gpu].uuid_text;
        // Its first client left, so that it came with the next one, too, or with one that is absent.
        std::erase_if(tenant.memory, [&](const admin::TenantMemoryReport& report) { return report.gpu == gpu; });
        tenant.memory.push_back(
            {gpu, view.limit, view.charged, view.limit > 0 ? view.leased : 0, view.over(), view.asking, view.silent, view.asks});
        break;
      }
    }
  }
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
  report_.tenants.reserve(engine.tenants.all().size() + kTenantsAtOnce);
  of_tenants_.make_room_for(engine.tenants.all().size(), 2 * engine.clients.all().size() + kClientsAtOnce);
  for (policy::GpuId id = 0; id < engine.gpus.size(); ++id) {
    if (!engine.gpus[id].is_there()) continue;
    std::optional<policy::GpuView> view = policy::view_of_gpu(engine.steps.state(), id);
    report_.gpus.push_back(report_of(engine.gpus[id], view ? &*view : nullptr));
    if (view) gpus_.push_back({report_.gpus.size() - 1, std::move(*view), OfGpu::Use::kOfGpu, engine.clients.left()});
  }
}

bool ReportInParts::go_on(policy::Instant now) {
  if (at_ == gpus_.size() && next_ == Next::kClients) {
    next_ = Next::kNewcomers;
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
    case Next::kUse:
      at_ < gpus_.size() ? add_use(now) : add_limits_of_absent();
      return false;
    case Next::kTenants:
      add_tenants();
      return false;
    case Next::kRest:
      add_bypasses(engine_, &report_, now);
      return true;
  }
  return true;
}

bool ReportInParts::is_still_there(const OfGpu& gpu) const { return engine_.gpus[gpu.view.gpu].uuid_text == report_.gpus[gpu.index].uuid; }

void ReportInParts::add_clients(policy::Instant now) {
  make_room(report_.clients, kClientsAtOnce, outgrown_);
  policy::GpuView& view = gpus_[at_].view;
  const std::string& gpu = report_.gpus[gpus_[at_].index].uuid;
  const size_t before = view.clients.size();
  if (is_still_there(gpus_[at_])) policy::view_clients(engine_.steps.state(), view.gpu, kClientsAtOnce, now, view.clients);
  const std::span<const policy::ClientView> clients = std::span(view.clients).subspan(before);
  gpus_[at_].in_order = view.clients.size();
  add_reports(clients, gpu, now);
  if (clients.size() < kClientsAtOnce) ++at_;
}

// At most kClientsAtOnce, for which there is room.
void ReportInParts::add_reports(std::span<const policy::ClientView> clients, const std::string& gpu, policy::Instant now) {
  limits_.clear();
  const KnownOfPart known = known_of(engine_, clients, limits_);
  of_tenants_.add(limits_);
  for (size_t i = 0; i < clients.size(); ++i) {
    admin::ClientReport& report = report_.clients.emplace_back();
    report_of(clients[i], known[i], gpu, now, report);
    report.waiting_for = waiting_sentence(engine_, clients[i], now);
  }
}

// Those that joined since the report was begun, where the clients behind them were in it already: who comes back may have its former id,
// and its GPU may be one of the first.
void ReportInParts::add_newcomers(policy::Instant now) {
  make_room(report_.clients, kClientsAtOnce, outgrown_);
  for (size_t count = 0; count < kClientsAtOnce; ++count) {
    const RegisteredClient* client = engine_.clients.next_joined(joined_, newcomers_);
    if (client == nullptr) {
      next_ = Next::kUse;
      return;
    }
    joined_ = client->joined_as;
    const auto gpu = std::ranges::find(gpus_, client->gpu, [](const OfGpu& each) { return each.view.gpu; });
    if (gpu == gpus_.end() || !is_still_there(*gpu)) continue;
    const std::span<const policy::ClientView> there = std::span(gpu->view.clients).first(gpu->in_order);
    if (std::ranges::binary_search(there, client->id, {}, &policy::ClientView::client)) continue;
    const auto view = policy::view_of_client(engine_.steps.state(), client->id, now);
    if (!view) continue;
    gpu->view.clients.push_back(view->clients.front());
    add_reports(std::span(gpu->view.clients).last(1), report_.gpus[gpu->index].uuid, now);
  }
}

// Of the tenants by now, and of the clients in the report that are still there: what those did that have left since is in the totals
// already. In parts for each GPU.
void ReportInParts::add_use(policy::Instant now) {
  OfGpu& gpu = gpus_[at_];
  admin::GpuReport& report = report_.gpus[gpu.index];
  if (!is_still_there(gpu)) {
    ++at_;
  } else if (gpu.use == OfGpu::Use::kOfGpu) {
    std::optional<policy::GpuView> view = policy::view_of_tenants(engine_.steps.state(), gpu.view.gpu, now);
    if (!view) {
      ++at_;
      return;
    }
    view->clients = std::move(gpu.view.clients);
    gpu.view = std::move(*view);
    forget_those_that_left(gpu);
    report.usage = engine_.usage_totals.of_gpu(gpu.view, report.uuid);
    gpu.use = gpu.view.tenants.empty() ? OfGpu::Use::kOfTenants : OfGpu::Use::kCompute;
  } else if (gpu.use == OfGpu::Use::kCompute) {
    const size_t until = std::min(gpu.view.tenants.size(), gpu.accounts + kTenantsAtOnce);
    for (; gpu.accounts < until; ++gpu.accounts) {
      const policy::TenantView& tenant = gpu.view.tenants[gpu.accounts];
      of_tenants_.add(tenant.tenant, report_of(engine_, gpu.view, tenant));
    }
    if (until == gpu.view.tenants.size()) gpu.use = OfGpu::Use::kOfTenants;
  } else {
    forget_those_that_left(gpu);
    of_tenants_.add(engine_.usage_totals.of_tenants(gpu.view, report.uuid));
    ++at_;
  }
}

void ReportInParts::add_limits_of_absent() {
  limits_.clear();
  engine_.ledger.add_views_of_absent(limits_);
  of_tenants_.add(limits_);
  next_ = Next::kTenants;
}

// With all that was found of them, so that others may read them.
void ReportInParts::add_tenants() {
  make_room(report_.tenants, kTenantsAtOnce, outgrown_tenants_);
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
  for (const Tenant* tenant : some) of_tenants_.fetch(tenant->id);
  for (const Tenant* tenant : some) {
    admin::TenantReport& report = report_.tenants.emplace_back();
    report_of(*tenant, report);
    of_tenants_.put_into(report, engine_.gpus);
  }
  if (at == all.end()) next_ = Next::kRest;
}

void ReportInParts::forget_those_that_left(OfGpu& gpu) const {
  if (std::exchange(gpu.left, engine_.clients.left()) == engine_.clients.left()) return;
  std::erase_if(gpu.view.clients, [&](const policy::ClientView& client) { return engine_.clients.find(client.client) == nullptr; });
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
  FoundOfTenants found;
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
    FoundOfTenants::UsageReports usage = engine.usage_totals.of_tenants(view, out.uuid);
    std::erase_if(usage, [&](const auto& entry) { return !own.contains(entry.first); });
    found.add(std::move(usage));
  }
  std::vector<MemoryLedger::View> limits = engine.ledger.view();
  std::erase_if(limits, [&](const MemoryLedger::View& view) { return !own.contains(view.tenant); });
  found.add(limits);
  for (admin::TenantReport& tenant : report.tenants) found.put_into(tenant, engine.gpus);
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
