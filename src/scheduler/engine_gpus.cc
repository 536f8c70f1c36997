// The engine's GPUs: those that NVML found, and those that clients name. A client may name any; where NVML runs only those that it lists
// are believed, elsewhere each user may name a few.
#include <fmt/format.h>

#include <algorithm>

#include "cuda/nvml.h"
#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

using protocol::Register;

constexpr size_t kNamedInRefusal = 4;

int64_t bounded_bytes(uint64_t bytes) { return static_cast<int64_t>(std::min<uint64_t>(bytes, protocol::kMemoryBytesMax)); }

GpuUuid uuid_of(const Register& message) {
  GpuUuid uuid;
  std::copy(std::begin(message.gpu_uuid), std::end(message.gpu_uuid), uuid.begin());
  return uuid;
}

}  // namespace

void Engine::gpu_found(const GpuUuid& uuid, const std::string& name, int64_t total) {
  Gpu gpu;
  gpu.uuid = uuid;
  char text[cuda::kUuidTextBytes];
  cuda::format_uuid(uuid, text);
  gpu.uuid_text = text;
  gpu.name = name;
  gpu.nvml_total = gpu.real_total = total;
  gpu.nvml = true;
  gpus_.push_back(std::move(gpu));
  uses_nvml_ = true;
}

Result<policy::GpuId> Engine::gpu_of(const Register& message, const Peer& peer, policy::Instant now) {
  const GpuUuid uuid = uuid_of(message);
  auto at = std::find_if(gpus_.begin(), gpus_.end(), [&](const Gpu& gpu) { return gpu.uuid == uuid; });
  bool is_new = at == gpus_.end();
  Gpu fresh;
  Gpu& gpu = is_new ? fresh : *at;
  if (is_new) {
    char text[cuda::kUuidTextBytes];
    cuda::format_uuid(uuid, text);
    gpu.uuid = uuid;
    gpu.uuid_text = text;
    gpu.name = printable(message.gpu_name);
    if (auto ok = admit_gpu(uuid, text, peer); !ok) return ok.error();
  }
  if (!gpu.lock) {
    Result<GpuLock> lock = GpuLock::acquire(settings_.lock_dir, gpu.uuid_text, settings_.runtime_dir);
    if (!lock) return lock.error();
    gpu.lock = std::move(*lock);
  }
  if (is_new) {
    if (!uses_nvml_) ++gpus_named_[peer.account];
    gpus_.push_back(std::move(fresh));
    at = gpus_.end() - 1;
  }
  auto id = static_cast<policy::GpuId>(at - gpus_.begin());
  size_gpu(id, bounded_bytes(message.gpu_total_bytes), now);
  return id;
}

// A MIG device may have been made since NVML was last asked: that is asked again before its first client is refused.
bool Engine::awaits_listing(ConnectionId connection, const Register& message) {
  if (!uses_nvml_ || !list_gpus_) return false;
  Connection& at = connections_.at(connection);
  const GpuUuid uuid = uuid_of(message);
  const bool is_known =
      mig_devices_.contains(uuid) || std::any_of(gpus_.begin(), gpus_.end(), [&](const Gpu& gpu) { return gpu.uuid == uuid; });
  if (is_known || at.listed) return false;
  at.awaits_listing = message;
  list_gpus_();
  return true;
}

void Engine::gpus_listed(const std::vector<GpuUuid>& mig_devices, policy::Instant now) {
  mig_devices_ = {mig_devices.begin(), mig_devices.end()};
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

Result<void> Engine::admit_gpu(const GpuUuid& uuid, const char* uuid_text, const Peer& peer) {
  if (gpus_.size() >= static_cast<size_t>(bounds::kGpus)) {
    return error_format("%s is one GPU more than the %lld that the scheduler takes", uuid_text, static_cast<long long>(bounds::kGpus));
  }
  if (uses_nvml_) {
    if (mig_devices_.contains(uuid)) return {};
    std::string known;
    size_t count = 0;
    for (const Gpu& gpu : gpus_) {
      if (gpu.nvml && count++ < kNamedInRefusal) known += (known.empty() ? "" : ", ") + gpu.uuid_text.substr(0, 12);
    }
    if (count > kNamedInRefusal) known += fmt::format(" and {} more", count - kNamedInRefusal);
    return error_format("%s is no GPU of this machine; NVML lists %s and %zu MIG devices", uuid_text, known.c_str(), mig_devices_.size());
  }
  const auto named = gpus_named_.find(peer.account);
  if (peer.account.empty() || named == gpus_named_.end() || named->second < settings_.gpus_per_user) return {};
  return error_format("%s would be GPU %lld that %.60s names; accepted: up to %lld (%s), as NVML does not say which there are", uuid_text,
                      static_cast<long long>(named->second) + 1, peer.account.c_str(), static_cast<long long>(settings_.gpus_per_user),
                      variable_of("gpus_per_user").c_str());
}

}  // namespace nvshare::scheduler
