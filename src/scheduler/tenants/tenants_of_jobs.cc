// Tenants that are jobs of Slurm. The plugin in slurmstepd tells of each step of a job, and in the epilog that the job is gone. In between
// a job stays a tenant, also while no step of it runs, so that what `set` changed holds for its next one.
#include <algorithm>

#include "base/printable.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {
namespace {

std::string key_of_job(uint32_t job) { return "job:" + std::to_string(job); }

void drop_ended_steps(Job& job) {
  std::erase_if(job.steps, [](const Job::Step& step) { return start_time_of(step.pid) != step.start_time; });
}

}  // namespace

Tenant* Tenants::find_job(uint32_t job) {
  const auto at = tenants_.find(key_of_job(job));
  return at == tenants_.end() ? nullptr : &at->second;
}

Tenant& Tenants::get_job(uint32_t job) {
  Tenant& tenant = get(key_of_job(job), "job", "job " + std::to_string(job));
  if (!tenant.job) {
    tenant.job.emplace();
    tenant.job->id = job;
  }
  return tenant;
}

Result<Tenant*> Tenants::add_job(const protocol::admin::JobRequest& request) {
  Tenant* known = find_job(request.job);
  if (request.pid == 0) {
    if (known == nullptr || !known->job->told) return static_cast<Tenant*>(nullptr);
    known->job->gone |= request.gone;
    known->job->suspended = request.suspended.value_or(known->job->suspended);
    return known;
  }
  const Job::Step step{request.pid, start_time_of(request.pid)};
  if (step.start_time == 0) return error_format("there is no process %d", request.pid);
  // Requeued, it is another job of the same number; what an earlier run of it left keeps no limits of its own.
  const bool is_new = known == nullptr || !known->job->told || known->job->gone;
  Tenant& tenant = get_job(request.job);
  Job& job = *tenant.job;
  if (is_new) {
    job = {request.job, true, printable(request.user.c_str()), printable(request.partition.c_str()), request.gpu_memory_percent, {},
           false,       false};
    tenant.gpu_memory_limit = request.gpu_memory_limit;
    tenant.core_limit = request.gpu_core_limit;
    tenant.core_ceiling = request.gpu_core_ceiling;
    tenant.priority = request.priority;
    tenant.suspended = false;
    tenant.pod = {};
  }
  drop_ended_steps(job);
  if (std::find(job.steps.begin(), job.steps.end(), step) == job.steps.end()) job.steps.push_back(step);
  forget_idle_jobs();
  return &tenant;
}

void settle_memory(Tenant& tenant, int64_t gpu_total) {
  if (!tenant.job || tenant.job->memory_percent == 0 || gpu_total <= 0) return;
  tenant.gpu_memory_limit = lower_limit(tenant.gpu_memory_limit, gpu_total / 100 * tenant.job->memory_percent);
  tenant.job->memory_percent = 0;
}

// Those of the lowest numbers: they are the oldest, until Slurm begins anew.
void Tenants::forget_idle_jobs() {
  std::vector<std::pair<uint32_t, std::string>> idle;
  for (auto& [key, tenant] : tenants_) {
    if (!tenant.job || !tenant.job->told || tenant.clients > 0 || tenant.awaited > 0) continue;
    drop_ended_steps(*tenant.job);
    if (tenant.job->steps.empty()) idle.emplace_back(tenant.job->id, key);
  }
  if (idle.size() <= kIdleJobsMax) return;
  std::sort(idle.begin(), idle.end());
  for (size_t i = 0; i < idle.size() - kIdleJobsMax; ++i) forget(tenants_.find(idle[i].second));
}

}  // namespace nvshare::scheduler
