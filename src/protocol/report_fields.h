// The fields of reports as JSON has them: how they are written, and where what is read belongs. Private to protocol/.
#pragma once

#include "protocol/admin.h"
#include "protocol/json_text.h"

namespace nvshare::protocol::admin {

NVSHARE_REPORT(UsageReport, gpu, grants, turns, drops, unanswered, failed_drains, running_ns, waiting_ns, swapping_ns, throttled_ns,
               billed_ns, swapped_out, swapped_in, unmoved, prefetched, prefetched_in_vain, memory_peak)
NVSHARE_REPORT(GpuReport, uuid, name, total, real_total, told, foreign, safe_limit, overhead, departed, nvml, switches, switch_time_ns,
               bandwidth_out, bandwidth_in, compute_mode, compute_mode_changes, window_ns, swap_unbilled_ns, nvml_span_ns, nvml_others,
               nvml_unknown, sharing, sharing_percent, sharing_trials, usage)
NVSHARE_REPORT(ComputeReport, gpu, quota, share_window, share, used_ns, throttled_time_ns, debt_ns, active, throttled, nvml_share,
               nvml_billed, nvml_differs)
NVSHARE_REPORT(TenantMemoryReport, gpu, limit, charged, leased, over, asking, silent, asks)
NVSHARE_REPORT(TenantReport, id, name, kind, gpu_memory_limit, priority, clients, clients_ever, memory, gpu_core_limit, gpu_core_reserved,
               compute, usage, ends, job, user, partition, paused, sharing, turn_most_ns, root, has_asked)
NVSHARE_REPORT(ClientReport, id, pid, program, tenant, gpu, backend, state, since_ns, allocated, resident, swapped, unswappable,
               keeps_memory, overhead, budget, gpu_memory_limit, charged, lease, host_memory, host_memory_process, host_memory_scheduler,
               host_memory_missing, host_memory_bound, waiting_for, gang_gpus, turns, drops, unanswered, failed_drains, drainable,
               time_running_ns, time_waiting_ns, time_swapping_ns, swapped_out_total, swapped_in_total, unmoved_total, prefetched_total,
               prefetched_in_vain_total, protocol, library, mps, mps_group)
NVSHARE_REPORT(BypassReport, pid, program, tenant, gpu, used, since_ns, turns_refused)
NVSHARE_REPORT(MpsReport, user, group, state, pid, programs, restarts, trouble)
NVSHARE_REPORT(BoundsReport, values, connections, connections_refused, reads_paused)
#define NVSHARE_STATUS_FIELDS                                                                                                  \
  version, pid, runtime_dir, epoch, changes, uptime_ns, nvml, host_memory_available, host_memory_budget, host_memory_reserved, \
      host_memory_used, host_memory_bound, switch_time_mode, gpus, bounds, bypasses, mps, own
inline void find_field(StatusReport& report, JsonFields& fields) {
  NVSHARE_FOUND_FIELDS(since, there, clients, tenants, NVSHARE_STATUS_FIELDS)
}
// All but its clients and tenants.
inline void each_field(const StatusReport& report, JsonText& text) {
  static const StatusReport unsaid;
  NVSHARE_REPORT_FIELDS(NVSHARE_STATUS_FIELDS)
  if (report.since == 0) return;  // what is for viewers that wait is nobody else's
  NVSHARE_REPORT_FIELDS(since, there)
}
#undef NVSHARE_STATUS_FIELDS

}  // namespace nvshare::protocol::admin
