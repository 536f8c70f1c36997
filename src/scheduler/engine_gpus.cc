// The GPUs that clients name: admitted, locked and sized; and which of them may be forgotten (gpus.h).
#include <algorithm>

#include "cuda/nvml.h"
#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

using protocol::Register;

GpuUuid uuid_of(const Register& message) {
  GpuUuid uuid;
  std::copy(std::begin(message.gpu_uuid), std::end(message.gpu_uuid), uuid.begin());
  return uuid;
}

}  // namespace

Result<policy::GpuId> Engine::gpu_of(const Register& message, const Peer& peer, policy::Instant now) {
  const GpuUuid uuid = uuid_of(message);
  std::optional<policy::GpuId> id = gpus_.find(uuid);
  KnownGpu fresh;
  if (!id) {
    char text[cuda::kUuidTextBytes];
    cuda::format_uuid(uuid, text);
    fresh.uuid = uuid;
    fresh.uuid_text = text;
    fresh.name = printable(message.gpu_name);
    fresh.named_by = peer.account;
    const auto make_room = [&](const std::string* account) { return make_room_for_gpu(account, now); };
    if (auto ok = gpus_.admit(fresh, peer.account, settings_.gpus_per_user, make_room); !ok) return ok.error();
  }
  KnownGpu& gpu = id ? gpus_[*id] : fresh;
  if (!gpu.lock) {
    Result<GpuLock> lock = GpuLock::acquire(settings_.lock_dir, gpu.uuid_text, settings_.runtime_dir);
    if (!lock) return lock.error();
    gpu.lock = std::move(*lock);
  }
  if (!id) id = gpus_.add(std::move(fresh));
  gpus_[*id].named_at = now;
  size_gpu(*id, bounded(message.gpu_total_bytes), now);
  return *id;
}

// A MIG device may have been made since NVML was last asked: that is asked again before its first client is refused.
bool Engine::awaits_listing(ConnectionId connection, const Register& message) {
  if (!gpus_.uses_nvml() || !hooks_.list_gpus) return false;
  Connection& at = connections_.at(connection);
  if (gpus_.lists(uuid_of(message)) || at.listed) return false;
  at.awaits_listing = message;
  hooks_.list_gpus();
  return true;
}

void Engine::gpus_listed(const std::vector<GpuUuid>& mig_devices, policy::Instant now) {
  gpus_.list_mig_devices(mig_devices);
  std::vector<ConnectionId> waiting;
  for (const auto& [id, connection] : connections_) {
    if (connection.awaits_listing) waiting.push_back(id);
  }
  for (const ConnectionId id : waiting) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) continue;  // of a process that came again on another connection
    const Register message = *at->second.awaits_listing;
    at->second.awaits_listing.reset();
    at->second.listed = true;
    register_client(id, message, now);
  }
}

// Those with clients, or of which something is known that must not be forgotten: memory of dead clients, debts, leases of an earlier
// scheduler's clients.
std::set<policy::GpuId> Engine::gpus_that_count(policy::Instant now) const {
  std::set<policy::GpuId> count;
  for (const policy::GpuView& view : policy::view(steps_.state(), now)) {
    if (!view.clients.empty() || !view.tenants.empty() || view.departed > 0) count.insert(view.gpu);
  }
  count.merge(departures_.gpus());
  count.merge(host_.gpus_of_holders());
  for (const MemoryLedger::View& view : limits_.ledger().view()) count.insert(view.gpu);
  for (const auto& [id, missing] : known_.missing()) {
    if (const auto gpu = gpus_.find(missing.gpu)) count.insert(*gpu);
  }
  return count;
}

// Forgets a GPU that nothing counts of: Gpus::to_forget. False: there is none.
bool Engine::make_room_for_gpu(const std::string* account, policy::Instant now) {
  departures_.forget_old(settings_.policy, now);
  apply(policy::Tick{}, now);  // accounts of tenants that have left are closed once nothing is owed
  const std::optional<policy::GpuId> id = gpus_.to_forget(account, gpus_that_count(now));
  if (!id) return false;
  spdlog::debug("{} is forgotten: nobody uses it, and its place is needed", gpus_[*id].uuid_text);
  if (gpus_[*id].lock) gpus_[*id].lock->remove();
  usage_totals_.forget_gpu(*id);
  limits_.forget_gpu(*id);
  gpus_.forget(*id);
  return true;
}

}  // namespace nvshare::scheduler
