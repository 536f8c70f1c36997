#include "cli/top/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace nvshare::cli::top {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;
using protocol::admin::UsageReport;

constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr char kNoLetterLeft = '?';
// Below such a part of a cell nobody is said to have run in it, and nothing to have been swapped.
constexpr double kMentioned = 0.1;
// More than this beyond the cell's time: several ran at once.
constexpr double kOverlap = 1.25;

// A report's tenants by their ids; the report outlives it. They are gone over when the first one is looked for.
class TenantsById {
 public:
  explicit TenantsById(const StatusReport& report) : report_(report) {}
  const TenantReport* find(uint64_t id) const {
    if (by_id_.empty()) {
      for (const TenantReport& tenant : report_.tenants) by_id_[tenant.id] = &tenant;
    }
    const auto at = by_id_.find(id);
    return at != by_id_.end() ? at->second : nullptr;
  }
  std::string name(uint64_t id) const {
    const TenantReport* tenant = find(id);
    return tenant != nullptr ? tenant->name : fmt::format("tenant {}", id);
  }

 private:
  const StatusReport& report_;
  mutable std::unordered_map<uint64_t, const TenantReport*> by_id_;
};

using ClientsOfGpu = std::vector<const ClientReport*>;

// In the order of the report's GPUs.
std::vector<ClientsOfGpu> clients_by_gpu(const StatusReport& report) {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < report.gpus.size(); ++i) index[report.gpus[i].uuid] = i;
  std::vector<ClientsOfGpu> clients(report.gpus.size());
  const ClientReport* before = nullptr;  // mostly on the same GPU
  auto at = index.end();
  for (const ClientReport& client : report.clients) {
    if (before == nullptr || before->gpu != client.gpu) at = index.find(client.gpu);
    before = &client;
    if (at != index.end()) clients[at->second].push_back(&client);
  }
  return clients;
}

const UsageReport* usage_of(const TenantReport& tenant, const std::string& gpu) {
  for (const UsageReport& usage : tenant.usage) {
    if (usage.gpu == gpu) return &usage;
  }
  return nullptr;
}

bool runs(const ClientReport& client) { return client.state == "running" || client.state == "paused" || client.state == "dropping"; }

Row row_of(const GpuReport& of, const TenantsById& tenants, const ClientReport& client, size_t gpu, char letter) {
  Row row;
  row.client = client;
  row.gpu = gpu;
  row.letter = letter;
  row.tenant = tenants.name(client.tenant);
  row.memory_limit = client.gpu_memory_limit;
  const TenantReport* tenant = tenants.find(client.tenant);
  if (tenant == nullptr) return row;
  row.core_limit = tenant->gpu_core_limit;
  row.core_reserved = tenant->gpu_core_reserved;
  row.priority = tenant->priority;
  row.suspended = tenant->paused;
  for (const auto& compute : tenant->compute) {
    if (compute.gpu != client.gpu || of.compute_mode == "unlimited") continue;
    row.share = compute.share_window;
    row.throttled = compute.throttled;
  }
  return row;
}

GpuPanel panel_of(const GpuReport& gpu, size_t index, const ClientsOfGpu& clients, const TenantsById& of,
                  const std::map<uint64_t, char>& letters) {
  GpuPanel panel;
  panel.index = index;
  panel.report = gpu;
  std::map<char, TenantBytes> tenants;
  for (const ClientReport* client : clients) {
    const char letter = letters.at(client->tenant);
    TenantBytes& bytes = tenants[letter];
    bytes.tenant = client->tenant;
    bytes.letter = letter;
    bytes.resident += client->resident;
    bytes.swapped += client->swapped;
    panel.resident += client->resident;
    panel.swapped += client->swapped;
    ++panel.clients;
    if (client->state == "waiting") ++panel.waiting;
    if (!runs(*client)) continue;
    if (!panel.running.empty()) panel.running += ", ";
    panel.running += fmt::format("{} ({} {})", of.name(client->tenant), client->program, client->pid);
    panel.running_since_ns = std::max(panel.running_since_ns, client->since_ns);
  }
  for (const auto& [letter, bytes] : tenants) panel.tenants.push_back(bytes);
  return panel;
}

// Whether there is a row of that client from `at` on. Then it is at `at`, as those before it, which have left, are taken out.
bool find_row(std::vector<Row>& rows, size_t at, uint64_t client) {
  const auto from = rows.begin() + static_cast<std::ptrdiff_t>(at);
  const auto found = std::find_if(from, rows.end(), [client](const Row& row) { return row.client.id == client; });
  if (found == rows.end()) return false;
  rows.erase(from, found);
  return true;
}

}  // namespace

char History::letter_of(uint64_t tenant) {
  if (const auto known = letters_.find(tenant); known != letters_.end()) return known->second;
  for (const char* letter = kLetters; *letter != 0; ++letter) {
    const bool taken = std::any_of(letters_.begin(), letters_.end(), [&](const auto& entry) { return entry.second == *letter; });
    if (!taken) return letters_[tenant] = *letter;
  }
  return letters_[tenant] = kNoLetterLeft;
}

// A letter is free again once its tenant has left and no strip shows it.
void History::forget_letters(const StatusReport& report) {
  const TenantsById tenants(report);
  for (auto entry = letters_.begin(); entry != letters_.end();) {
    const bool shown = std::any_of(past_.begin(), past_.end(), [&](const auto& gpu) {
      return std::find(gpu.second.strip.begin(), gpu.second.strip.end(), entry->second) != gpu.second.strip.end();
    });
    if (tenants.find(entry->first) == nullptr && !shown) {
      entry = letters_.erase(entry);
    } else {
      ++entry;
    }
  }
}

// What each tenant ran since the last report goes into the cell that is being filled; full cells become marks.
void History::fill_strips(const StatusReport& report, double now_s) {
  for (const GpuReport& gpu : report.gpus) {
    GpuPast& past = past_[gpu.uuid];
    if (!last_) past.cell_began_s = now_s;
  }
  if (!last_) return;
  const TenantsById tenants_before(*last_);
  for (const TenantReport& tenant : report.tenants) {
    const TenantReport* tenant_before = tenants_before.find(tenant.id);
    for (const UsageReport& usage : tenant.usage) {
      const auto past = past_.find(usage.gpu);
      if (past == past_.end()) continue;
      const UsageReport* before = tenant_before != nullptr ? usage_of(*tenant_before, usage.gpu) : nullptr;
      const int64_t ran = usage.running_ns - (before != nullptr ? before->running_ns : 0);
      const int64_t swapped = usage.swapping_ns - (before != nullptr ? before->swapping_ns : 0);
      if (ran > 0) past->second.cell.ran_s[tenant.id] += static_cast<double>(ran) / 1e9;
      if (swapped > 0) past->second.cell.swapping_s += static_cast<double>(swapped) / 1e9;
    }
  }
  for (const GpuReport& gpu : report.gpus) fill_cell(past_[gpu.uuid], now_s);
}

void History::fill_cell(GpuPast& past, double now_s) {
  const double length_s = now_s - past.cell_began_s;
  if (length_s < cell_s_ * 0.999) return;
  // A look that came late covers several cells; what happened within is not known better.
  add_marks(past, std::exchange(past.cell, {}), length_s, std::max<size_t>(static_cast<size_t>(std::lround(length_s / cell_s_)), 1));
  past.cell_began_s = now_s;
}

void History::add_marks(GpuPast& past, const Cell& cell, double length_s, size_t marks) {
  double sum_s = 0;
  uint64_t most = 0;
  double most_s = 0;
  std::vector<uint64_t> mentioned;
  for (const auto& [tenant, ran_s] : cell.ran_s) {
    sum_s += std::min(ran_s, length_s);
    if (ran_s > most_s) most = tenant, most_s = ran_s;
    if (ran_s > length_s * kMentioned) mentioned.push_back(tenant);
  }
  char mark = kNobody;
  if (sum_s > length_s * kOverlap && mentioned.size() > 1) {
    mark = letter_of(mentioned[past.cells % mentioned.size()]);
  } else if (most_s > length_s * kMentioned) {
    mark = letter_of(most);
  } else if (cell.swapping_s > length_s * kMentioned) {
    mark = kSwapping;
  }
  ++past.cells;
  past.strip.insert(past.strip.end(), std::min(marks, cells_), mark);
  while (past.strip.size() > cells_) past.strip.pop_front();
}

void History::begin_with(const Past& past, const StatusReport& report) {
  for (const ClientReport& client : report.clients) letter_of(client.tenant);  // before those that have left
  for (const GpuReport& gpu : report.gpus) {
    for (const Cell& cell : past.cells_of(gpu.uuid, cell_s_)) add_marks(past_[gpu.uuid], cell, cell_s_, 1);
  }
}

Model History::head_of(const StatusReport& report) const {
  Model model;
  model.known = true;
  model.version = report.version;
  model.runtime_dir = report.runtime_dir;
  model.own = report.own;
  model.uptime_ns = report.uptime_ns;
  model.host_used = report.host_memory_used;
  model.host_budget = report.host_memory_budget;
  model.strip_cell_s = cell_s_;
  return model;
}

void History::put_strip(GpuPanel& panel) const {
  if (const auto past = past_.find(panel.report.uuid); past != past_.end())
    panel.strip.assign(past->second.strip.begin(), past->second.strip.end());
}

Model History::model_of(const StatusReport& report) {
  Model model = head_of(report);
  model.rows.reserve(report.clients.size());
  const TenantsById tenants(report);
  const std::vector<ClientsOfGpu> clients = clients_by_gpu(report);
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    put_strip(model.gpus.emplace_back(panel_of(report.gpus[i], i, clients[i], tenants, letters_)));
    for (const ClientReport* client : clients[i]) {
      model.rows.push_back(row_of(report.gpus[i], tenants, *client, i, letters_.at(client->tenant)));
      model.rows.back().made = ++rows_made_;
    }
  }
  return model;
}

void History::add(const StatusReport& report, double now_s) {
  // Another scheduler: its counters begin anew.
  if (last_ && (last_->epoch != report.epoch || last_->pid != report.pid)) last_.reset();
  for (const ClientReport& client : report.clients) letter_of(client.tenant);
  fill_strips(report, now_s);
  forget_letters(report);

  model_ = model_of(report);
  shown_changes_ = report.changes;
  for (GpuPanel& shown : model_.gpus) {
    for (const GpuReport& before : last_ ? last_->gpus : std::vector<GpuReport>()) {
      if (before.uuid != shown.report.uuid || now_s <= last_s_) continue;
      const auto rate = [&](int64_t after, int64_t earlier) {
        return static_cast<double>(std::max<int64_t>(after - earlier, 0)) / (now_s - last_s_);
      };
      shown.out_rate = rate(shown.report.usage.swapped_out, before.usage.swapped_out);
      shown.in_rate = rate(shown.report.usage.swapped_in, before.usage.swapped_in);
    }
  }
  last_ = report;
  last_s_ = now_s;
}

// Rows stay where they are, as most are as they were: those of clients that came are put in, those of others taken out.
void History::refresh(const StatusReport& report) {
  const uint64_t shown = std::exchange(shown_changes_, report.changes);
  Model before = std::exchange(model_, head_of(report));
  const int64_t passed_ns = report.uptime_ns - before.uptime_ns;
  model_.rows = std::move(before.rows);
  const TenantsById tenants(report);
  std::unordered_set<uint64_t> new_tenants;
  for (const TenantReport& tenant : report.tenants) {
    if (tenant.changed > shown) new_tenants.insert(tenant.id);
  }
  const std::vector<ClientsOfGpu> clients = clients_by_gpu(report);
  size_t at = 0;
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const GpuReport& gpu = report.gpus[i];
    bool is_as_before = true;
    for (const ClientReport* client : clients[i]) {
      const bool was_there = find_row(model_.rows, at, client->id) && model_.rows[at].gpu == i;
      if (was_there && client->changed <= shown && !new_tenants.contains(client->tenant)) {
        model_.rows[at++].client.since_ns = client->since_ns;
        continue;
      }
      is_as_before = false;
      if (!was_there) model_.rows.emplace(model_.rows.begin() + static_cast<std::ptrdiff_t>(at));
      model_.rows[at] = row_of(gpu, tenants, *client, i, letter_of(client->tenant));
      model_.rows[at++].made = ++rows_made_;
    }
    const auto same =
        std::find_if(before.gpus.begin(), before.gpus.end(), [&](const GpuPanel& each) { return each.report.uuid == gpu.uuid; });
    if (same != before.gpus.end() && is_as_before && same->clients == clients[i].size()) {
      same->index = i;
      same->report = gpu;
      if (!same->running.empty()) same->running_since_ns += passed_ns;
      model_.gpus.push_back(std::move(*same));
      continue;
    }
    put_strip(model_.gpus.emplace_back(panel_of(gpu, i, clients[i], tenants, letters_)));
    if (same == before.gpus.end()) continue;
    model_.gpus.back().out_rate = same->out_rate;
    model_.gpus.back().in_rate = same->in_rate;
  }
  model_.rows.resize(at);
}

}  // namespace nvshare::cli::top
