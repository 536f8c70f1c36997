#include "scheduler/engine/gpu_admission.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "cuda/nvml.h"

namespace nvshare::scheduler {
namespace {

using protocol::Register;

constexpr int64_t kGpuBytesMost = int64_t{1} << 42;

}  // namespace

GpuUuid uuid_of(const Register& message) {
  GpuUuid uuid;
  std::copy(std::begin(message.gpu_uuid), std::end(message.gpu_uuid), uuid.begin());
  return uuid;
}

Result<policy::GpuId> GpuAdmission::gpu_of(const Register& message, const Peer& peer, policy::Instant now) {
  const GpuUuid uuid = uuid_of(message);
  std::optional<policy::GpuId> id = at_.gpus.find(uuid);
  KnownGpu fresh;
  if (!id) {
    char text[cuda::kUuidTextBytes];
    cuda::format_uuid(uuid, text);
    fresh.uuid = uuid;
    fresh.uuid_text = text;
    fresh.name = printable(message.gpu_name);
    fresh.named_by = peer.account;
    const auto for_it = [&](const std::string* account) { return make_room(account, now); };
    if (auto ok = at_.gpus.admit(fresh, peer.account, at_.settings.gpus_per_user, for_it); !ok) return ok.error();
  }
  KnownGpu& gpu = id ? at_.gpus[*id] : fresh;
  if (!gpu.lock) {
    Result<GpuLock> lock = GpuLock::acquire(at_.settings.lock_dir, gpu.uuid_text, at_.settings.runtime_dir);
    if (!lock) return lock.error();
    gpu.lock = std::move(*lock);
  }
  if (!id) id = at_.gpus.add(std::move(fresh));
  at_.gpus[*id].named_at = now;
  size(*id, bounded(message.gpu_total_bytes), now);
  return *id;
}

// CUDA's figure is what programs can have, and NVML's a little more: where there is one, only figures close to it are believed. Clients
// of one GPU say the same, but for those that lie, so a larger one is taken: a smaller one would take memory from everybody.
void GpuAdmission::size(policy::GpuId id, int64_t claimed, policy::Instant now) {
  KnownGpu& gpu = at_.gpus[id];
  const std::optional<int64_t> told = at_.settings.gpu_physical_memory;
  const bool credible = gpu.nvml_total == 0 || (claimed <= gpu.nvml_total && claimed > gpu.nvml_total / 10 * 9);
  const int64_t before = gpu.total;
  const int64_t figure = std::min(claimed, kGpuBytesMost);
  if (before == 0) {
    gpu.real_total = credible ? figure : gpu.nvml_total;
    if (gpu.nvml_total == 0 && told) gpu.real_total = std::max(gpu.real_total, *told);
  } else if (credible && figure > gpu.real_total + gpu.real_total / 100) {
    gpu.real_total = figure;
  }
  gpu.total = told ? std::min(*told, gpu.real_total) : gpu.real_total;
  if (gpu.total == before) return;
  spdlog::info("{}, {}: {} MiB{}", at_.gpus.name_of(id), gpu.name, gpu.total >> 20,
               gpu.configured() ? fmt::format(", as configured, of {} MiB", gpu.real_total >> 20) : "");
  at_.policy.apply(policy::GpuAppeared{id, gpu.total}, now);
}

// Those with clients, or of which something is known that must not be forgotten: memory of dead clients, debts, leases of an earlier
// scheduler's clients.
std::set<policy::GpuId> GpuAdmission::that_count(policy::Instant now) const {
  std::set<policy::GpuId> count;
  for (const policy::GpuView& view : policy::view(at_.policy.state(), now)) {
    if (!view.clients.empty() || !view.tenants.empty() || view.departed > 0) count.insert(view.gpu);
  }
  count.merge(at_.departures.gpus());
  count.merge(at_.host.gpus_of_holders());
  for (const MemoryLedger::View& view : at_.limits.ledger().view()) count.insert(view.gpu);
  for (const auto& [id, missing] : at_.known.missing()) {
    if (const auto gpu = at_.gpus.find(missing.gpu)) count.insert(*gpu);
  }
  return count;
}

// Forgets a GPU that nothing counts of: Gpus::to_forget. False: there is none.
bool GpuAdmission::make_room(const std::string* account, policy::Instant now) {
  at_.departures.forget_old(at_.settings.policy, now);
  at_.policy.apply(policy::Tick{}, now);  // accounts of tenants that have left are closed once nothing is owed
  const std::optional<policy::GpuId> id = at_.gpus.to_forget(account, that_count(now));
  if (!id) return false;
  KnownGpu& gpu = at_.gpus[*id];
  spdlog::debug("{} is forgotten: nobody uses it, and its place is needed", at_.gpus.name_of(*id));
  if (gpu.lock) gpu.lock->remove();
  at_.usage_totals.forget_gpu(*id);
  at_.limits.forget_gpu(*id);
  at_.gpus.forget(*id);
  return true;
}

}  // namespace nvshare::scheduler
