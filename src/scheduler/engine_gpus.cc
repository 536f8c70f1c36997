// The engine's GPUs: those that NVML found, and those that clients name. A client may name any; where NVML runs only those that it lists
// are believed, elsewhere each user may name a few. A GPU that a client named stays known, with its counts and accounts, until its place is
// needed for another and nothing of it counts any more.
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
  auto at = find_gpu(uuid);
  bool is_new = at == gpus_.end();
  Gpu fresh;
  Gpu& gpu = is_new ? fresh : *at;
  if (is_new) {
    char text[cuda::kUuidTextBytes];
    cuda::format_uuid(uuid, text);
    gpu.uuid = uuid;
    gpu.uuid_text = text;
    gpu.name = printable(message.gpu_name);
    gpu.named_by = peer.account;
    if (auto ok = admit_gpu(uuid, text, peer, now); !ok) return ok.error();
  }
  if (!gpu.lock) {
    Result<GpuLock> lock = GpuLock::acquire(settings_.lock_dir, gpu.uuid_text, settings_.runtime_dir);
    if (!lock) return lock.error();
    gpu.lock = std::move(*lock);
  }
  if (is_new) {
    at = std::find_if(gpus_.begin(), gpus_.end(), [](const Gpu& place) { return !place.is_there(); });
    if (at == gpus_.end()) at = gpus_.emplace(at);
    *at = std::move(fresh);
  }
  at->named_at = now;
  auto id = static_cast<policy::GpuId>(at - gpus_.begin());
  size_gpu(id, bounded_bytes(message.gpu_total_bytes), now);
  return id;
}

// A MIG device may have been made since NVML was last asked: that is asked again before its first client is refused.
bool Engine::awaits_listing(ConnectionId connection, const Register& message) {
  if (!uses_nvml_ || !list_gpus_) return false;
  Connection& at = connections_.at(connection);
  const GpuUuid uuid = uuid_of(message);
  const bool is_known = mig_devices_.contains(uuid) || find_gpu(uuid) != gpus_.end();
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

std::vector<Engine::Gpu>::iterator Engine::find_gpu(const GpuUuid& uuid) {
  return std::find_if(gpus_.begin(), gpus_.end(), [&](const Gpu& gpu) { return gpu.is_there() && gpu.uuid == uuid; });
}

int64_t Engine::gpus_named_by(const std::string& account) const {
  return std::count_if(gpus_.begin(), gpus_.end(), [&](const Gpu& gpu) { return gpu.is_there() && !gpu.nvml && gpu.named_by == account; });
}

// Those with clients, or of which something is known that must not be forgotten: memory of dead clients, debts, leases of an earlier
// scheduler's clients.
std::set<policy::GpuId> Engine::gpus_that_count(policy::Instant now) const {
  std::set<policy::GpuId> count;
  for (const policy::GpuView& view : policy::view(*state_, now)) {
    if (!view.clients.empty() || !view.tenants.empty() || view.departed > 0) count.insert(view.gpu);
  }
  for (const auto& [id, departed] : departed_) count.insert(departed.gpu);
  for (const auto& [id, left] : left_.all()) count.insert(left.gpu);
  count.merge(host_.gpus_of_holders());
  for (const MemoryLedger::View& view : ledger_.view()) count.insert(view.gpu);
  for (const auto& [id, missing] : known_.missing()) {
    const auto at = std::find_if(gpus_.begin(), gpus_.end(), [&uuid = missing.gpu](const Gpu& gpu) { return gpu.uuid_text == uuid; });
    if (at != gpus_.end()) count.insert(static_cast<policy::GpuId>(at - gpus_.begin()));
  }
  return count;
}

// Forgets a GPU that nothing counts of: of those that this account named, or, without one, of whoever named most. False: there is none.
bool Engine::make_room_for_gpu(const std::string* account, policy::Instant now) {
  forget_left(now);
  apply(policy::Tick{}, now);  // accounts of tenants that have left are closed once nothing is owed
  const std::set<policy::GpuId> count = gpus_that_count(now);
  std::map<std::string, int64_t> named;
  for (const Gpu& gpu : gpus_) named[gpu.named_by] += gpu.is_there() && !gpu.nvml ? 1 : 0;
  const auto goes_before = [&](const Gpu& a, const Gpu& b) {
    const int64_t of_a = named[a.named_by];
    const int64_t of_b = named[b.named_by];
    return of_a != of_b ? of_a > of_b : a.named_at < b.named_at;
  };
  auto chosen = gpus_.end();
  for (auto at = gpus_.begin(); at != gpus_.end(); ++at) {
    const bool may_go = at->is_there() && !at->nvml && !count.contains(static_cast<policy::GpuId>(at - gpus_.begin())) &&
                        (account == nullptr || at->named_by == *account);
    if (may_go && (chosen == gpus_.end() || goes_before(*at, *chosen))) chosen = at;
  }
  if (chosen == gpus_.end()) return false;
  const auto id = static_cast<policy::GpuId>(chosen - gpus_.begin());
  spdlog::debug("{} is forgotten: nobody uses it, and its place is needed", chosen->uuid_text);
  if (chosen->lock) chosen->lock->remove();
  usage_totals_.forget_gpu(id);
  std::erase_if(over_limit_, [&](const auto& key) { return key.second == id; });
  *chosen = Gpu();
  return true;
}

Result<void> Engine::admit_gpu(const GpuUuid& uuid, const char* uuid_text, const Peer& peer, policy::Instant now) {
  if (uses_nvml_) {
    if (mig_devices_.contains(uuid)) return admit_one_more(uuid_text, now);
    std::string known;
    size_t count = 0;
    for (const Gpu& gpu : gpus_) {
      if (gpu.nvml && count++ < kNamedInRefusal) known += (known.empty() ? "" : ", ") + gpu.uuid_text.substr(0, 12);
    }
    if (count > kNamedInRefusal) known += fmt::format(" and {} more", count - kNamedInRefusal);
    return error_format("%s is no GPU of this machine; NVML lists %s and %zu MIG devices", uuid_text, known.c_str(), mig_devices_.size());
  }
  const int64_t named = peer.account.empty() ? 0 : gpus_named_by(peer.account);
  if (named >= settings_.gpus_per_user && !make_room_for_gpu(&peer.account, now)) {
    return error_format("%s would be GPU %lld that %.60s names; accepted: up to %lld (%s), as NVML does not say which there are", uuid_text,
                        static_cast<long long>(named) + 1, peer.account.c_str(), static_cast<long long>(settings_.gpus_per_user),
                        variable_of("gpus_per_user").c_str());
  }
  return admit_one_more(uuid_text, now);
}

Result<void> Engine::admit_one_more(const char* uuid_text, policy::Instant now) {
  const auto there = std::count_if(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.is_there(); });
  if (there < gpus_most_ || make_room_for_gpu(nullptr, now)) return {};
  return error_format("%s is one GPU more than the %lld that the scheduler takes", uuid_text, static_cast<long long>(gpus_most_));
}

}  // namespace nvshare::scheduler
