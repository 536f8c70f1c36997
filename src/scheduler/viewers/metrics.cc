#include "scheduler/viewers/metrics.h"

#include <algorithm>
#include <utility>

namespace nvshare::scheduler {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using protocol::admin::ClientReport;
using protocol::admin::ComputeReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;
using protocol::admin::UsageReport;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kNsPerSecond = 1e9;
constexpr const char* kStates[] = {"idle", "waiting", "loading", "running", "paused", "dropping", "unresponsive"};

double number(int64_t value) { return static_cast<double>(value); }
double number(uint64_t value) { return static_cast<double>(value); }
double seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }

Labels with(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

// Families in the order in which they were first named.
class Families {
 public:
  void gauge(const char* name, const char* help, const Labels& labels, double value) { add(MetricType::Gauge, name, help, labels, value); }
  void counter(const std::string& name, const char* help, const Labels& labels, double value) {
    add(MetricType::Counter, name, help, labels, value);
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  void add(MetricType type, const std::string& name, const char* help, const Labels& labels, double value) {
    auto [at, is_new] = places_.try_emplace(name, families_.size());
    if (is_new) families_.push_back({name, help, type, {}});
    ClientMetric metric;
    metric.label = labels;
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
    families_[at->second].metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> families_;
  std::map<std::string, size_t> places_;
};

void add_to(UsageReport& sum, const UsageReport& usage) {
  sum.grants += usage.grants;
  sum.turns += usage.turns;
  sum.drops += usage.drops;
  sum.unanswered += usage.unanswered;
  sum.failed_drains += usage.failed_drains;
  sum.running_ns += usage.running_ns;
  sum.waiting_ns += usage.waiting_ns;
  sum.swapping_ns += usage.swapping_ns;
  sum.throttled_ns += usage.throttled_ns;
  sum.billed_ns += usage.billed_ns;
  sum.swapped_out += usage.swapped_out;
  sum.swapped_in += usage.swapped_in;
  sum.unmoved += usage.unmoved;
  sum.prefetched += usage.prefetched;
  sum.prefetched_in_vain += usage.prefetched_in_vain;
}

void tell_usage(Families& out, const std::string& who, const Labels& labels, const UsageReport& usage) {
  const auto count = [&](const char* name, const char* help, double value) { out.counter(who + name, help, labels, value); };
  count("_grants_total", "Turns that began.", number(usage.grants));
  count("_turns_total", "Turns that ended.", number(usage.turns));
  count("_drops_total", "Requests to end a turn.", number(usage.drops));
  count("_unanswered_drops_total", "Requests to end a turn that were not answered in time.", number(usage.unanswered));
  count("_failed_drains_total", "Requests to end a turn whose GPU work did not end.", number(usage.failed_drains));
  count("_running_seconds_total", "Time with the right to use the GPU, summed over clients.", seconds(usage.running_ns));
  count("_waiting_seconds_total", "Time in which clients waited for the GPU.", seconds(usage.waiting_ns));
  count("_swapping_seconds_total", "Time in which clients' memory was moved in or out.", seconds(usage.swapping_ns));
  count("_throttled_seconds_total", "Time in which clients wanted the GPU and a compute limit held them back.",
        seconds(usage.throttled_ns));
  count("_billed_seconds_total", "GPU time billed, where a compute limit applies.", seconds(usage.billed_ns));
  const std::string swapped = who + "_swapped_bytes_total";
  const char* help = "Bytes moved over the link for swapping.";
  out.counter(swapped, help, with(labels, "direction", "out"), number(usage.swapped_out));
  out.counter(swapped, help, with(labels, "direction", "in"), number(usage.swapped_in));
  count("_unmoved_bytes_total", "Bytes that left the GPU without a copy, as they had not changed.", number(usage.unmoved));
  count("_prefetched_bytes_total", "Of the bytes moved in, those that came in while another program ran.", number(usage.prefetched));
  count("_prefetched_in_vain_bytes_total", "Of these, bytes that left again before they were used.", number(usage.prefetched_in_vain));
}

void tell_tenant(Families& out, const TenantReport& tenant) {
  out.gauge("nvshare_tenant_info", "The tenant's kind, and of a Slurm job its number, user and partition; always 1.",
            {{"tenant", label_text(tenant.name)},
             {"tenant_id", std::to_string(tenant.id)},
             {"kind", label_text(tenant.kind)},
             {"job", tenant.job != 0 ? std::to_string(tenant.job) : std::string()},
             {"user", label_text(tenant.user)},
             {"partition", label_text(tenant.partition)}},
            1);
  out.gauge("nvshare_tenant_paused", "1 while an administrator has paused it: its programs get no turns.",
            {{"tenant", label_text(tenant.name)}, {"tenant_id", std::to_string(tenant.id)}}, tenant.paused ? 1 : 0);
}

struct TenantMemory {
  uint64_t clients = 0;
  int64_t allocated = 0, resident = 0, swapped = 0, unswappable = 0;
};

void tell_memory(Families& out, const Labels& labels, const TenantMemory& memory) {
  out.gauge("nvshare_tenant_clients", "Processes of the tenant that use the GPU.", labels, number(memory.clients));
  out.gauge("nvshare_tenant_memory_allocated_bytes", "GPU memory allocated, resident or swapped.", labels, number(memory.allocated));
  out.gauge("nvshare_tenant_memory_resident_bytes", "Of it on the GPU.", labels, number(memory.resident));
  out.gauge("nvshare_tenant_memory_swapped_bytes", "Of it not on the GPU.", labels, number(memory.swapped));
  out.gauge("nvshare_tenant_memory_unswappable_bytes", "Of it what cannot leave the GPU.", labels, number(memory.unswappable));
}

void tell_compute(Families& out, const Labels& labels, const ComputeReport& compute, int limit, int reserved) {
  out.gauge("nvshare_tenant_compute_limit_ratio", "The tenant's share of the GPU's time at most; 1 is no limit.", labels, limit / 100.0);
  out.gauge("nvshare_tenant_compute_reserved_ratio", "What of it was granted to the tenant; 0 is nothing.", labels, reserved / 100.0);
  out.gauge("nvshare_tenant_compute_quota_ratio", "The share that it is entitled to among the tenants that are active.", labels,
            compute.quota / 100);
  out.gauge("nvshare_tenant_compute_share_ratio", "The share of the GPU's time that it used in the last complete window.", labels,
            compute.share_window / 100);
  out.gauge("nvshare_tenant_compute_debt_seconds", "GPU time used beyond its limit, to be paid back.", labels, seconds(compute.debt_ns));
  if (compute.nvml_share >= 0) {
    out.gauge("nvshare_tenant_compute_nvml_ratio",
              "The share of the GPU's time that it used lately by NVML's samples: an approximation, nothing is billed by it.", labels,
              compute.nvml_share / 100);
    out.gauge("nvshare_tenant_compute_nvml_billed_ratio", "The share of the same time that was billed.", labels, compute.nvml_billed / 100);
  }
  out.gauge("nvshare_tenant_compute_throttled", "1 while its compute limit holds it back.", labels, compute.throttled ? 1 : 0);
}

void tell_node(Families& out, const StatusReport& report, const ProcessFigures& process) {
  out.gauge("nvshare_build_info", "The scheduler's version; always 1.", {{"version", label_text(report.version)}}, 1);
  // Its epoch is the wall clock at its start.
  out.gauge("process_start_time_seconds", "When the scheduler started, in seconds since 1970.", {}, number(report.epoch) / kNsPerSecond);
  out.counter("process_cpu_seconds_total", "Processor time that the scheduler has used.", {}, process.cpu_seconds);
  out.gauge("process_resident_memory_bytes", "Memory of the scheduler.", {}, process.resident_bytes);
  out.gauge("nvshare_nvml_available", "1 if NVML tells what is on the GPUs beside clients.", {}, report.nvml ? 1 : 0);
  out.gauge("nvshare_host_memory_available_bytes", "Room for more swapped memory.", {}, number(report.host_memory_available));
  out.gauge("nvshare_host_memory_budget_bytes", "Host memory that can be lent for swapping in all.", {}, number(report.host_memory_budget));
  out.gauge("nvshare_host_memory_reserved_bytes", "Of it lent, or kept for a tenant's next use.", {}, number(report.host_memory_reserved));
  out.gauge("nvshare_host_memory_used_bytes", "Of it used by swapped memory.", {}, number(report.host_memory_used));
  out.gauge("nvshare_gpus", "GPUs that the scheduler knows.", {}, number(static_cast<uint64_t>(report.gpus.size())));
  out.gauge("nvshare_bypassing_processes", "Processes of tenants with limits that use a GPU past nvshare.", {},
            number(static_cast<uint64_t>(report.bypasses.size())));
  out.gauge("nvshare_tenants", "Tenants that the scheduler knows.", {}, number(static_cast<uint64_t>(report.tenants.size())));
}

void tell_mps(Families& out, const protocol::admin::MpsReport& mps) {
  const Labels labels = {{"user", std::to_string(mps.user)}, {"group", label_text(mps.group)}};
  out.gauge("nvshare_mps_processes", "Processes attached to the MPS daemon of a user's trust group (group \"\": those that name none).",
            labels, number(mps.programs));
  out.gauge("nvshare_mps_serving", "1 while that daemon serves.", labels, mps.state == "serving" ? 1 : 0);
  out.counter("nvshare_mps_ends_total", "Times that it ended while it served, and its processes' CUDA calls failed.", labels,
              number(mps.restarts));
}

void tell_gpu(Families& out, const StatusReport& report, const GpuReport& gpu) {
  const Labels labels = {{"gpu", label_text(gpu.uuid)}};
  out.gauge("nvshare_gpu_info", "The GPU's name and how tenants share it now; always 1.",
            with(with(labels, "name", label_text(gpu.name)), "compute_mode", gpu.compute_mode), 1);
  out.gauge("nvshare_gpu_memory_size_bytes", "The GPU's memory, or what the scheduler is configured to take it for.", labels,
            number(gpu.total));
  if (gpu.nvml) {
    out.gauge("nvshare_gpu_memory_foreign_bytes", "Used by programs that are no clients.", labels, number(gpu.foreign));
  }
  out.gauge("nvshare_gpu_memory_overhead_bytes", "Clients' CUDA contexts and modules.", labels, number(gpu.overhead));
  out.gauge("nvshare_gpu_memory_departed_bytes", "Of dead clients, not yet seen free.", labels, number(gpu.departed));
  out.gauge("nvshare_gpu_memory_safe_limit_bytes", "How much of clients' memory may be resident.", labels, number(gpu.safe_limit));
  if (gpu.nvml_others >= 0) {
    out.gauge("nvshare_gpu_nvml_others_ratio", "The share of its time that programs which are no clients used lately, by NVML's samples.",
              labels, gpu.nvml_others / 100);
  }
  out.gauge("nvshare_gpu_sharing_in_turns", "1 while programs of tenants with `sharing = auto` share it in turns, 0 while together.",
            labels, gpu.sharing == "turns" ? 1 : 0);
  out.gauge("nvshare_gpu_sharing_gain_ratio", "Work done that way over that the other way, as measured last; 0 until then.", labels,
            static_cast<double>(gpu.sharing_percent) / 100);
  out.counter("nvshare_gpu_sharing_trials_total", "Measurements of which way gets more done.", labels, number(gpu.sharing_trials));
  out.gauge("nvshare_gpu_turn_length_seconds", "How long a turn lasts now while others wait.", labels, seconds(gpu.switch_time_ns));
  const char* bandwidth = "nvshare_gpu_swap_bandwidth_bytes_per_second";
  const char* bandwidth_help = "Speed of swapping as measured; 0 until then.";
  out.gauge(bandwidth, bandwidth_help, with(labels, "direction", "out"), gpu.bandwidth_out);
  out.gauge(bandwidth, bandwidth_help, with(labels, "direction", "in"), gpu.bandwidth_in);
  out.counter("nvshare_gpu_switches_total", "Turns that began by another's end.", labels, number(gpu.switches));
  tell_usage(out, "nvshare_gpu", labels, gpu.usage);
  for (const char* state : kStates) {
    const auto clients = std::count_if(report.clients.begin(), report.clients.end(),
                                       [&](const ClientReport& client) { return client.gpu == gpu.uuid && client.state == state; });
    out.gauge("nvshare_clients", "Processes that use the GPU, by state.", with(labels, "state", state), static_cast<double>(clients));
  }
}

void sum_memory(const StatusReport& report, uint64_t tenant, std::map<std::string, TenantMemory>* by_gpu) {
  for (const ClientReport& client : report.clients) {
    if (client.tenant != tenant) continue;
    TenantMemory& sum = (*by_gpu)[client.gpu];
    ++sum.clients;
    sum.allocated += client.allocated;
    sum.resident += client.resident;
    sum.swapped += client.swapped;
    sum.unswappable += client.unswappable;
  }
}

// Bytes of the UTF-8 sequence that begins here; 0: none does.
size_t sequence_at(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xc2 && first <= 0xdf ? 2 : (first & 0xf0) == 0xe0 ? 3 : first >= 0xf0 && first <= 0xf4 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  uint32_t point = first & (0x7fU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  const bool control = point >= 0x80 && point < 0xa0;
  return point < kLeast[length] || point > 0x10ffff || surrogate || control ? 0 : length;
}

}  // namespace

std::string label_text(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = sequence_at(text);
    const size_t taken = std::max<size_t>(length, 1);
    if (clean.size() + taken > MetricsOfReport::kLabelBytesMax) break;
    clean += length > 0 ? text.substr(0, length) : "?";
    text.remove_prefix(taken);
  }
  return clean;
}

void MetricsOfReport::sort_tenants(const StatusReport& report) {
  const auto is_known = [&](uint64_t id) {
    return std::any_of(report.tenants.begin(), report.tenants.end(), [&](const TenantReport& tenant) { return tenant.id == id; });
  };
  std::erase_if(own_, [&](uint64_t id) { return !is_known(id); });
  std::erase_if(others_, [&](const auto& other) {
    if (is_known(other.first)) return false;
    for (const auto& [gpu, usage] : other.second) add_to(others_gone_[gpu], usage);
    return true;
  });
  for (const TenantReport& tenant : report.tenants) {
    if (own_.contains(tenant.id)) continue;
    if (!others_.contains(tenant.id) && own_.size() < tenants_max_) {
      own_.insert(tenant.id);
      continue;
    }
    Usages& usages = others_[tenant.id];
    for (const UsageReport& usage : tenant.usage) usages[usage.gpu] = usage;
  }
}

std::vector<MetricFamily> MetricsOfReport::families(const StatusReport& full_report, const ProcessFigures& process) {
  StatusReport report = full_report;
  Families out;
  tell_node(out, report, process);
  for (const protocol::admin::MpsReport& mps : report.mps) tell_mps(out, mps);
  if (report.gpus.size() > kGpusMax) report.gpus.resize(kGpusMax);
  for (const GpuReport& gpu : report.gpus) tell_gpu(out, report, gpu);

  sort_tenants(report);
  out.gauge("nvshare_metrics_tenants_in_others", "Tenants without series of their own: summed up as tenant \"(others)\".", {},
            number(static_cast<uint64_t>(others_.size())));
  const auto has_series = [&](const std::string& uuid) {
    return std::any_of(report.gpus.begin(), report.gpus.end(), [&](const GpuReport& gpu) { return gpu.uuid == uuid; });
  };
  const auto labels_of = [](const std::string& gpu, const std::string& name, uint64_t id) {
    return Labels{{"gpu", label_text(gpu)}, {"tenant", label_text(name)}, {"tenant_id", std::to_string(id)}};
  };
  std::map<std::string, TenantMemory> memory_of_others;
  Usages usage_of_others = others_gone_;
  for (const auto& [id, usages] : others_) {
    for (const auto& [gpu, usage] : usages) {
      add_to(usage_of_others[gpu], usage);
      memory_of_others.try_emplace(gpu);
    }
    sum_memory(report, id, &memory_of_others);
  }
  for (const TenantReport& tenant : report.tenants) {
    if (!own_.contains(tenant.id)) continue;
    tell_tenant(out, tenant);
    std::map<std::string, TenantMemory> memory;
    sum_memory(report, tenant.id, &memory);
    for (const UsageReport& usage : tenant.usage) {
      if (!has_series(usage.gpu)) continue;
      const Labels labels = labels_of(usage.gpu, tenant.name, tenant.id);
      tell_memory(out, labels, memory[usage.gpu]);
      tell_usage(out, "nvshare_tenant", labels, usage);
    }
    for (const auto& one : tenant.memory) {
      if (one.limit <= 0 || !has_series(one.gpu)) continue;
      const Labels labels = labels_of(one.gpu, tenant.name, tenant.id);
      out.gauge("nvshare_tenant_memory_limit_bytes", "Its memory limit in force; no series without one.", labels, number(one.limit));
      out.gauge("nvshare_tenant_memory_charged_bytes", "What counts against the limit.", labels, number(one.charged));
    }
    for (const ComputeReport& compute : tenant.compute) {
      if (!has_series(compute.gpu)) continue;
      tell_compute(out, labels_of(compute.gpu, tenant.name, tenant.id), compute, tenant.gpu_core_limit, tenant.gpu_core_reserved);
    }
  }
  for (const auto& [gpu, usage] : usage_of_others) {
    if (!has_series(gpu)) continue;
    const Labels labels = labels_of(gpu, kOthers, 0);
    tell_memory(out, labels, memory_of_others[gpu]);
    tell_usage(out, "nvshare_tenant", labels, usage);
  }
  return out.take();
}

}  // namespace nvshare::scheduler
