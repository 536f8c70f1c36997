#include "scheduler/gpus/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cuda/nvml.h"
#include "scheduler/settings.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kNamedInRefusal = 4;

bool is_named_by_client(const KnownGpu& gpu) { return gpu.is_there() && !gpu.nvml; }

}  // namespace

Gpus::Gpus(const std::vector<FoundGpu>& found, int64_t most) : uses_nvml_(!found.empty()), most_(most) {
  for (const FoundGpu& each : found) {
    KnownGpu gpu;
    gpu.uuid = each.uuid;
    char text[cuda::kUuidTextBytes];
    cuda::format_uuid(each.uuid, text);
    gpu.uuid_text = text;
    gpu.name = each.name;
    gpu.nvml_total = gpu.real_total = each.total;
    gpu.nvml = true;
    all_.push_back(std::move(gpu));
  }
}

std::string Gpus::name_of(policy::GpuId id) const {
  const auto before = std::count_if(all_.begin(), all_.begin() + id, [](const KnownGpu& gpu) { return gpu.is_there(); });
  return fmt::format("GPU {} ({})", before, all_[id].uuid_text);
}

std::optional<policy::GpuId> Gpus::find(const GpuUuid& uuid) const {
  const auto at = std::find_if(all_.begin(), all_.end(), [&](const KnownGpu& gpu) { return gpu.is_there() && gpu.uuid == uuid; });
  return at != all_.end() ? std::optional(static_cast<policy::GpuId>(at - all_.begin())) : std::nullopt;
}

std::optional<policy::GpuId> Gpus::find(const std::string& uuid_text) const {
  const auto at = std::find_if(all_.begin(), all_.end(), [&](const KnownGpu& gpu) { return gpu.uuid_text == uuid_text; });
  return at != all_.end() ? std::optional(static_cast<policy::GpuId>(at - all_.begin())) : std::nullopt;
}

Result<void> Gpus::admit(const KnownGpu& gpu, const std::string& account, int64_t per_user, const MakeRoom& make_room) const {
  const char* uuid = gpu.uuid_text.c_str();
  if (uses_nvml_) {
    if (mig_devices_.contains(gpu.uuid)) return admit_one_more(gpu.uuid_text, make_room);
    std::string known;
    size_t count = 0;
    for (const KnownGpu& each : all_) {
      if (each.nvml && count++ < kNamedInRefusal)
        known += fmt::format("{}GPU {} ({})", known.empty() ? "" : ", ", count - 1, each.uuid_text.substr(0, 12));
    }
    if (count > kNamedInRefusal) known += fmt::format(" and {} more", count - kNamedInRefusal);
    return error_format("%s is no GPU of this machine; NVML lists %s and %zu MIG devices", uuid, known.c_str(), mig_devices_.size());
  }
  const int64_t named = account.empty() ? 0 : std::count_if(all_.begin(), all_.end(), [&](const KnownGpu& each) {
    return is_named_by_client(each) && each.named_by == account;
  });
  if (named >= per_user && !make_room(&account)) {
    return error_format("%s would be GPU %lld that %.60s names; accepted: up to %lld (%s), as NVML does not say which there are", uuid,
                        static_cast<long long>(named) + 1, account.c_str(), static_cast<long long>(per_user),
                        variable_of("gpus_per_user").c_str());
  }
  return admit_one_more(gpu.uuid_text, make_room);
}

Result<void> Gpus::admit_one_more(const std::string& uuid_text, const MakeRoom& make_room) const {
  const auto there = std::count_if(all_.begin(), all_.end(), [](const KnownGpu& gpu) { return gpu.is_there(); });
  if (there < most_ || make_room(nullptr)) return {};
  return error_format("%s is one GPU more than the %lld that the scheduler takes", uuid_text.c_str(), static_cast<long long>(most_));
}

policy::GpuId Gpus::add(KnownGpu gpu) {
  auto at = std::find_if(all_.begin(), all_.end(), [](const KnownGpu& place) { return !place.is_there(); });
  if (at == all_.end()) at = all_.emplace(at);
  *at = std::move(gpu);
  return static_cast<policy::GpuId>(at - all_.begin());
}

std::optional<policy::GpuId> Gpus::to_forget(const std::string* account, const std::set<policy::GpuId>& that_count) const {
  std::map<std::string, int64_t> named;
  for (const KnownGpu& gpu : all_) named[gpu.named_by] += is_named_by_client(gpu) ? 1 : 0;
  const auto goes_before = [&](const KnownGpu& a, const KnownGpu& b) {
    const int64_t of_a = named[a.named_by];
    const int64_t of_b = named[b.named_by];
    return of_a != of_b ? of_a > of_b : a.named_at < b.named_at;
  };
  std::optional<policy::GpuId> chosen;
  for (policy::GpuId id = 0; id < size(); ++id) {
    const KnownGpu& gpu = all_[id];
    const bool may_go = is_named_by_client(gpu) && !that_count.contains(id) && (account == nullptr || gpu.named_by == *account);
    if (may_go && (!chosen || goes_before(gpu, all_[*chosen]))) chosen = id;
  }
  return chosen;
}

}  // namespace nvshare::scheduler
