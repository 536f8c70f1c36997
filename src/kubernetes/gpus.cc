#include "kubernetes/gpus.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "base/parse.h"
#include "cuda/nvml.h"

namespace nvshare::kubernetes {
namespace {

Result<std::vector<Gpu>> gpus_by_nvml(const cuda::Nvml& nvml) {
  Result<uint32_t> count = nvml.device_count();
  if (!count) return count.error();
  std::vector<Gpu> gpus;
  for (uint32_t i = 0; i < *count; ++i) {
    std::array<uint8_t, 16> uuid{};
    Result<cuda::NvmlDevice> device = nvml.device_by_index(i);
    if (!device) return device.error();
    if (auto ok = nvml.uuid_of(*device, uuid); !ok) return ok.error();
    Result<cuda::NvmlMemory> memory = nvml.memory_of(*device);
    if (!memory) return memory.error();
    char text[cuda::kUuidTextBytes];
    cuda::format_uuid(uuid, text);
    gpus.push_back({text, static_cast<int64_t>(memory->total - memory->reserved), true});
  }
  return gpus;
}

// Any figure of a GPU does: a lost one gives none.
bool answers(const cuda::Nvml& nvml, const std::string& uuid_text) {
  std::array<uint8_t, 16> uuid{};
  if (!cuda::parse_uuid(uuid_text.c_str(), uuid)) return false;
  Result<cuda::NvmlDevice> device = nvml.device_by_uuid(uuid);
  return device && nvml.memory_of(*device);
}

}  // namespace

Result<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& all, const std::string& visible) {
  if (visible == "all") return all;
  std::vector<Gpu> chosen;
  std::istringstream stream(visible == "none" || visible == "void" ? "" : visible);
  for (std::string name; std::getline(stream, name, ',');) {
    auto found = std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) { return gpu.uuid == name; });
    if (auto index = parse_integer(name, 0, std::ssize(all) - 1); found == all.end() && index) found = all.begin() + *index;
    if (found == all.end()) return error_format("'%.100s' is no GPU of this machine, which has %zu", name.c_str(), all.size());
    bool again = std::any_of(chosen.begin(), chosen.end(), [&](const Gpu& gpu) { return gpu.uuid == found->uuid; });
    if (!again) chosen.push_back(*found);
  }
  return chosen;
}

Result<std::vector<Gpu>> find_gpus(const std::string& visible, const Division& division) {
  Result<cuda::Nvml> nvml = cuda::Nvml::load();
  std::vector<Gpu> all;
  if (nvml) {
    Result<std::vector<Gpu>> found = gpus_by_nvml(*nvml);
    if (!found) return found.error();
    all = std::move(*found);
  } else {
    if (!division.physical_memory || visible.compare(0, 4, "GPU-") != 0) {
      return error_format("%.160s; to go on without, name the GPUs by UUID and tell their memory", nvml.error().text);
    }
    std::istringstream stream(visible);
    for (std::string name; std::getline(stream, name, ',');) {
      std::array<uint8_t, 16> uuid{};
      if (auto ok = cuda::parse_uuid(name.c_str(), uuid); !ok) return ok.error();
      all.push_back({name, *division.physical_memory, true});
    }
  }
  Result<std::vector<Gpu>> chosen = visible_gpus(all, visible);
  if (chosen && chosen->empty())
    return error_format("no GPU to offer: the machine has %zu, of which '%.100s' are wanted", all.size(), visible.c_str());
  return chosen;
}

bool Ailments::saw(const std::string& uuid, bool answered) {
  auto known = std::find_if(silent_.begin(), silent_.end(), [&](const auto& one) { return one.first == uuid; });
  if (known == silent_.end()) known = silent_.insert(silent_.end(), {uuid, 0});
  bool before = known->second < kSilentMax;
  known->second = answered ? 0 : std::min(known->second + 1, kSilentMax);
  return before != (known->second < kSilentMax);
}

bool Ailments::healthy(const std::string& uuid) const {
  return std::none_of(silent_.begin(), silent_.end(), [&](const auto& one) { return one.first == uuid && one.second >= kSilentMax; });
}

HealthWatch::HealthWatch(std::vector<std::string> uuids, std::chrono::nanoseconds interval, Changed changed)
    : uuids_(std::move(uuids)), interval_(interval), changed_(std::move(changed)), thread_([this] { run(); }) {}

HealthWatch::~HealthWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void HealthWatch::run() {
  Ailments ailments;
  std::optional<cuda::Nvml> nvml;
  bool had_nvml = false;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    // A GPU that was lost may answer only who initialises NVML anew.
    bool all_well = std::all_of(uuids_.begin(), uuids_.end(), [&](const std::string& uuid) { return ailments.healthy(uuid); });
    if (!all_well) nvml.reset();
    if (!nvml) {
      Result<cuda::Nvml> loaded = cuda::Nvml::load();
      if (loaded) nvml.emplace(std::move(*loaded));
      had_nvml = had_nvml || loaded;
    }
    for (const std::string& uuid : uuids_) {
      if (had_nvml && ailments.saw(uuid, nvml && answers(*nvml, uuid))) changed_(uuid, ailments.healthy(uuid));
    }
    lock.lock();
    stopped_.wait_for(lock, interval_, [this] { return stop_; });
  }
}

}  // namespace nvshare::kubernetes
