#include "cli/status_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "cli/columns.h"
#include "cli/table.h"
#include "cli/units.h"

namespace nvshare::cli {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

std::string bytes_of(int64_t bytes) { return format_bytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))); }
std::string bytes_or(int64_t bytes, const char* nothing) { return bytes > 0 ? bytes_of(bytes) : nothing; }
std::string bandwidth_of(double bytes_per_second) {
  return bytes_per_second > 0 ? format_bytes(static_cast<uint64_t>(bytes_per_second)) + "/s" : "-";
}

// A name may be as long as its program likes; the number beside it says which tenant that is, and --json has all of it.
std::string in_table(const std::string& name) {
  constexpr size_t kColumns = 64;
  return shortened(name, kColumns);
}

// What it is drawn for: so many columns of a terminal (0: as wide as it is), and the titles of what they have no room for.
struct Page {
  size_t columns = 0;
  std::vector<std::string> left_out;

  std::string drawn(const Table& table) { return table.draw_within(columns, left_out); }
};

// Lines, those that are too long for the page in several.
std::string folded(const std::string& lines, const Page& page) {
  constexpr size_t kIndent = 2;
  std::string out;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const bool fits = page.columns <= kIndent || width_of(line) <= page.columns;
    out += (fits ? line : wrapped(line, page.columns - kIndent, kIndent)) + "\n";
  }
  return out;
}

std::string gpu_table(const StatusReport& status, Page& page) {
  Table table({{"GPU"},
               {"NAME", Align::kLeft, 0, true},
               {"MEMORY", Align::kRight},
               {"RESIDENT", Align::kRight, 1},
               {"SWAPPED", Align::kRight, 2},
               {"FOREIGN", Align::kRight, 4},
               {"OVERHEAD", Align::kRight, 6},
               {"SAFE LIMIT", Align::kRight, 5},
               {"CLIENTS", Align::kRight, 3},
               {"SWITCHES", Align::kRight, 7},
               {"SWITCH TIME", Align::kRight, 8},
               {"OUT", Align::kRight, 9},
               {"IN", Align::kRight, 10}});
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    const GpuReport& gpu = status.gpus[i];
    int64_t resident = 0;
    int64_t swapped = 0;
    int64_t clients = 0;
    for (const ClientReport& client : status.clients) {
      if (client.gpu != gpu.uuid) continue;
      resident += client.resident;
      swapped += client.swapped;
      ++clients;
    }
    const bool is_sized = clients > 0 || gpu.safe_limit > 0;  // the policy hears of it with the first client
    table.add({std::to_string(i), gpu.name, bytes_of(gpu.total) + (gpu.told ? " (configured)" : ""), bytes_of(resident), bytes_of(swapped),
               gpu.nvml ? bytes_of(gpu.foreign) : "unknown", bytes_of(gpu.overhead), is_sized ? bytes_of(gpu.safe_limit) : "-",
               std::to_string(clients), std::to_string(gpu.switches), is_sized ? format_duration(gpu.switch_time_ns) : "-",
               bandwidth_of(gpu.bandwidth_out), bandwidth_of(gpu.bandwidth_in)});
  }
  return page.drawn(table);
}

// "0", or "0 1, together" when its turns are on these at the same time.
std::string gpus_of(const StatusReport& status, const TenantReport& tenant) {
  std::string gpus;
  bool together = false;
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    const auto on_it = [&](const ClientReport& client) { return client.tenant == tenant.id && client.gpu == status.gpus[i].uuid; };
    if (std::none_of(status.clients.begin(), status.clients.end(), on_it)) continue;
    gpus += (gpus.empty() ? "" : " ") + std::to_string(i);
  }
  for (const ClientReport& client : status.clients) together |= client.tenant == tenant.id && client.gang_gpus > 0;
  return gpus + (together ? ", together" : "");
}

// Of a tenant that has more than its limit, which was lowered, also how much.
std::string limit_of(const TenantReport& tenant) {
  std::string limit = bytes_or(tenant.gpu_memory_limit, "none");
  for (const auto& memory : tenant.memory) {
    if (memory.over) limit += " (over: " + bytes_of(memory.charged) + ")";
  }
  return limit;
}

// Of a Slurm job also whose it is and where.
std::string name_of(const TenantReport& tenant) {
  if (tenant.user.empty() && tenant.partition.empty()) return tenant.name;
  return fmt::format("{} ({}, {})", tenant.name, tenant.user, tenant.partition);
}

std::string tenant_table(const StatusReport& status, Page& page) {
  Table table({{"TENANT", Align::kRight},
               {"NAME", Align::kLeft, 0, true},
               {"KIND", Align::kLeft, 2, true},
               {"MEMORY LIMIT", Align::kRight, 1},
               {"PRIORITY", Align::kRight, 4},
               {"CLIENTS", Align::kRight, 5},
               {"GPUS", Align::kLeft, 3}});
  for (const TenantReport& tenant : status.tenants) {
    const auto now =
        std::count_if(status.clients.begin(), status.clients.end(), [&](const ClientReport& c) { return c.tenant == tenant.id; });
    table.add({std::to_string(tenant.id), in_table(name_of(tenant)),
               tenant.kind + (tenant.ends ? ", ends" : "") + (tenant.paused ? ", paused" : "") +
                   (tenant.sharing == "node" ? "" : ", " + tenant.sharing) +
                   (tenant.turn_most_ns == 0 ? "" : fmt::format(", turns of {} s", tenant.turn_most_ns / 1'000'000'000)),
               limit_of(tenant), std::to_string(tenant.priority), std::to_string(now), gpus_of(status, tenant)});
  }
  return page.drawn(table);
}

// Whose memory the client's swapped bytes may lie in.
std::string host_of(const ClientReport& client) {
  if (client.host_memory_scheduler == 0) return bytes_or(client.host_memory_process, "-");
  if (client.host_memory_process == 0) return bytes_of(client.host_memory_scheduler) + " (scheduler's)";
  return bytes_of(client.host_memory_process + client.host_memory_scheduler) + " (" + bytes_of(client.host_memory_scheduler) +
         " scheduler's)";
}

std::string mps_of(const ClientReport& client) {
  if (!client.mps) return "";
  return ", under MPS" + (client.mps_group.empty() ? "" : fmt::format(" ({})", client.mps_group));
}

constexpr const char* kWaitingFor = "WAITING FOR";

// In lines of their own where the table has no column for it.
std::string waiting_lines(const StatusReport& status, Page& page) {
  const auto column = std::find(page.left_out.begin(), page.left_out.end(), kWaitingFor);
  if (column == page.left_out.end()) return "";
  page.left_out.erase(column);
  std::string out;
  for (const ClientReport& client : status.clients) {
    if (!client.waiting_for.empty()) out += fmt::format("{} ({}) waits for {}\n", client.program, client.pid, client.waiting_for);
  }
  return folded(out, page);
}

std::string client_table(const StatusReport& status, Page& page) {
  Table table({{"GPU", Align::kLeft, 4},
               {"PID", Align::kRight},
               {"PROGRAM"},
               {"TENANT", Align::kLeft, 3, true},
               {"STATE", Align::kLeft, 0, true},
               {"SINCE", Align::kRight, 5},
               {"RESIDENT", Align::kRight, 1},
               {"SWAPPED", Align::kRight, 2},
               {"ALLOCATED", Align::kRight, 8},
               {"HOST", Align::kRight, 11},
               {"UNSWAPPABLE", Align::kRight, 12},
               {"OVERHEAD", Align::kRight, 13},
               {"LIMIT", Align::kRight, 6},
               {"TURNS", Align::kRight, 9},
               {"TIME USED", Align::kRight, 10},
               {"WAITED", Align::kRight, 7},
               {kWaitingFor, Align::kLeft, 14}});
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    for (const ClientReport& client : status.clients) {
      if (client.gpu != status.gpus[i].uuid) continue;
      const auto tenant =
          std::find_if(status.tenants.begin(), status.tenants.end(), [&](const TenantReport& t) { return t.id == client.tenant; });
      table.add({std::to_string(i), std::to_string(client.pid), client.program,
                 tenant != status.tenants.end() ? in_table(tenant->name) : std::to_string(client.tenant),
                 client.state + mps_of(client) + (client.drainable ? "" : ", does not drain") +
                     (tenant != status.tenants.end() && tenant->paused ? ", tenant paused" : ""),
                 format_duration(client.since_ns), bytes_of(client.resident), bytes_of(client.swapped), bytes_of(client.allocated),
                 host_of(client), bytes_or(client.unswappable, "-"), bytes_of(client.overhead), bytes_or(client.gpu_memory_limit, "none"),
                 std::to_string(client.turns), format_duration(client.time_running_ns), format_duration(client.time_waiting_ns),
                 client.waiting_for});
    }
  }
  std::string out = page.drawn(table);
  return out + waiting_lines(status, page);
}

std::string keeps_lines(const StatusReport& status) {
  std::string out;
  for (const ClientReport& client : status.clients) {
    if (client.keeps_memory.empty()) continue;
    out += fmt::format("{} ({}) keeps all of its memory on the GPU, because {}\n", client.program, client.pid, client.keeps_memory);
  }
  return out;
}

std::string mps_lines(const StatusReport& status) {
  std::string out;
  for (const protocol::admin::MpsReport& mps : status.mps) {
    out += fmt::format("MPS of user {}{}: {}", mps.user, mps.group.empty() ? "" : ", trust group " + mps.group, mps.state);
    if (mps.pid > 0) out += fmt::format(" (pid {}), {} {} attached", mps.pid, mps.programs, mps.programs == 1 ? "process" : "processes");
    if (mps.restarts > 0) out += fmt::format(", has ended {} {} while it served", mps.restarts, mps.restarts == 1 ? "time" : "times");
    out += mps.trouble.empty() ? "\n" : "; " + mps.trouble + "\n";
  }
  return out;
}

// Programs keep the library that they started with, beyond an upgrade.
std::string library_lines(const StatusReport& status) {
  std::map<std::string, int> others;
  for (const ClientReport& client : status.clients) {
    if (client.library == status.version) continue;
    ++others[client.library.empty() ? "an earlier release" : "release " + client.library];
  }
  std::string out;
  for (const auto& [release, clients] : others) {
    out += fmt::format("{} of {} clients {} the library of {}: a program keeps the one that it started with\n", clients,
                       status.clients.size(), clients == 1 ? "has" : "have", release);
  }
  return out;
}

std::string gpu_named(const StatusReport& status, const std::string& uuid) {
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    if (status.gpus[i].uuid == uuid) return fmt::format("GPU {} ({})", i, uuid);
  }
  return uuid;
}

std::string host_lines(const StatusReport& status) {
  std::string out = fmt::format("Host memory for swapping: {} in all", bytes_of(status.host_memory_budget));
  if (!status.host_memory_bound.empty()) out += fmt::format(" (by {})", status.host_memory_bound);
  out += fmt::format(", {} lent, {} in use, room for {} more\n", bytes_of(status.host_memory_reserved), bytes_of(status.host_memory_used),
                     bytes_of(status.host_memory_available));
  for (const ClientReport& client : status.clients) {
    if (client.host_memory_missing <= 0) continue;
    out += fmt::format("  {} ({}) could not have {} more to swap out to, because of {}: its memory stays on the GPU\n", client.program,
                       client.pid, bytes_of(client.host_memory_missing), client.host_memory_bound);
  }
  for (const protocol::admin::BypassReport& bypass : status.bypasses) {
    out += fmt::format("{} ({}) of tenant {} uses {} past nvshare, with {} of its memory and without limits{}\n", bypass.program,
                       bypass.pid, bypass.tenant, gpu_named(status, bypass.gpu), bytes_of(bypass.used),
                       bypass.turns_refused ? ": its tenant gets no turns" : "");
  }
  return out;
}

}  // namespace

// NVML's figure beside ours over the same time, an approximation.
static std::string nvml_share_of(const protocol::admin::ComputeReport& compute) {
  if (compute.nvml_share < 0) return "-";
  return fmt::format("{:.1f} % (billed {:.1f} %{})", compute.nvml_share, compute.nvml_billed, compute.nvml_differs ? ", far apart" : "");
}

// What programs use of a GPU's time: only where a compute limit applies.
static std::string compute_table(const StatusReport& status, Page& page) {
  Table table({{"GPU", Align::kLeft, 2},
               {"TIME SHARED", Align::kLeft, 7},
               {"TENANT", Align::kLeft, 0, true},
               {"CORE LIMIT", Align::kRight, 1},
               {"RESERVED", Align::kRight, 4},
               {"IN FORCE", Align::kRight, 5},
               {"LAST WINDOW", Align::kRight, 6},
               {"SHARE", Align::kRight},
               {"BY NVML", Align::kRight, 9},
               {"THROTTLED", Align::kRight, 8},
               {"DEBT", Align::kRight, 10},
               {"NOW", Align::kLeft, 3}});
  bool any = false;
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    for (const TenantReport& tenant : status.tenants) {
      for (const auto& compute : tenant.compute) {
        if (compute.gpu != status.gpus[i].uuid || status.gpus[i].compute_mode == "unlimited") continue;
        any = true;
        table.add({std::to_string(i), status.gpus[i].compute_mode, in_table(tenant.name),
                   tenant.gpu_core_limit < 100 ? std::to_string(tenant.gpu_core_limit) + " %" : "none",
                   tenant.gpu_core_reserved > 0 ? std::to_string(tenant.gpu_core_reserved) + " %" : "-",
                   fmt::format("{:.1f} %", compute.quota), fmt::format("{:.1f} %", compute.share_window),
                   fmt::format("{:.1f} %", compute.share), nvml_share_of(compute), format_duration(compute.throttled_time_ns),
                   format_duration(compute.debt_ns),
                   compute.throttled ? "throttled"
                   : compute.active  ? "active"
                                     : "idle"});
      }
    }
  }
  return any ? page.drawn(table) : std::string();
}

// `any`: there is a table above.
static std::string compute_lines(const StatusReport& status, bool any) {
  std::string out;
  for (size_t i = 0; i < status.gpus.size(); ++i) {
    const GpuReport& gpu = status.gpus[i];
    if (gpu.sharing_percent == 0) continue;  // not measured
    const bool turns = gpu.sharing == "turns";
    out += fmt::format("GPU {}: programs share it {}, as measured: {} % of the work that they get done {}\n", i,
                       turns ? "in turns" : "together", gpu.sharing_percent, turns ? "together" : "in turns");
  }
  for (size_t i = 0; any && i < status.gpus.size(); ++i) {
    const GpuReport& gpu = status.gpus[i];
    if (gpu.nvml_others > 0) {
      out += fmt::format("GPU {}: {:.1f} % of its time went to programs that are no clients, by NVML over the last {}\n", i,
                         gpu.nvml_others, format_duration(gpu.nvml_span_ns));
    }
    if (!gpu.nvml_unknown.empty()) out += fmt::format("GPU {}: {}\n", i, gpu.nvml_unknown);
    if (gpu.compute_mode_changes == 0) continue;
    out += fmt::format("GPU {}: {} change{} of how its time is shared, {} of swapping billed to nobody\n", i, gpu.compute_mode_changes,
                       gpu.compute_mode_changes == 1 ? "" : "s", format_duration(gpu.swap_unbilled_ns));
  }
  return out;
}

// What the scheduler tells those that are neither root nor its user.
static std::string draw_own(const StatusReport& status, Page& page) {
  std::string out = folded(fmt::format("nvshare-scheduler {} in {}, up {}: what is yours; all of it is for root and the scheduler's user\n",
                                       status.version, status.runtime_dir, format_duration(status.uptime_ns)),
                           page);
  if (status.clients.empty()) out += "\nNone of your programs uses a GPU.\n";
  if (!status.gpus.empty()) {
    Table table({{"GPU"},
                 {"NAME", Align::kLeft, 0, true},
                 {"MEMORY", Align::kRight},
                 {"YOURS RESIDENT", Align::kRight, 1},
                 {"YOURS SWAPPED", Align::kRight, 2}});
    for (size_t i = 0; i < status.gpus.size(); ++i) {
      int64_t resident = 0;
      int64_t swapped = 0;
      for (const ClientReport& client : status.clients) {
        if (client.gpu != status.gpus[i].uuid) continue;
        resident += client.resident;
        swapped += client.swapped;
      }
      table.add({std::to_string(i), status.gpus[i].name, bytes_of(status.gpus[i].total), bytes_of(resident), bytes_of(swapped)});
    }
    out += "\n" + page.drawn(table);
  }
  if (!status.tenants.empty()) out += "\n" + tenant_table(status, page);
  if (!status.clients.empty()) out += "\n" + client_table(status, page);
  return out + folded(keeps_lines(status) + library_lines(status), page);
}

static std::string draw_all(const StatusReport& status, Page& page) {
  std::string out =
      folded(fmt::format("nvshare-scheduler {} in {}, pid {}, up {}, switch time {}{}\n", status.version, status.runtime_dir, status.pid,
                         format_duration(status.uptime_ns), status.switch_time_mode, status.nvml ? "" : ", without NVML") +
                 host_lines(status),
             page);
  out += status.gpus.empty() ? "\nNo GPU is known yet: none was reported by NVML or a client.\n" : "\n" + gpu_table(status, page);
  if (!status.tenants.empty()) out += "\n" + tenant_table(status, page);
  std::string compute = compute_table(status, page);
  compute += folded(compute_lines(status, !compute.empty()), page);
  if (!compute.empty()) out += "\n" + compute;
  out += status.clients.empty() ? "\nNo clients.\n" : "\n" + client_table(status, page);
  return out + folded(keeps_lines(status) + mps_lines(status) + library_lines(status), page);
}

std::string draw_status(const StatusReport& status, size_t columns) {
  Page page{columns, {}};
  std::string out = status.own ? draw_own(status, page) : draw_all(status, page);
  if (page.left_out.empty()) return out;
  std::string titles;
  std::set<std::string> told;
  for (const std::string& title : page.left_out) {
    if (told.insert(title).second) titles += (titles.empty() ? "" : ", ") + title;
  }
  return out + "\n" + folded(fmt::format("Not shown in {} columns: {}. All of it: nvsharectl status --wide\n", columns, titles), page);
}

}  // namespace nvshare::cli
