#include "kubernetes/devices/device_allocations.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_nesting.h"
#include "protocol/json_record.h"

namespace nvshare::kubernetes {
namespace {

using nlohmann::json;

constexpr int64_t kCorePercents = 100;
constexpr size_t kDepartedMax = 1000;
constexpr size_t kDevicesMost = size_t{1} << 20;  // of one container; more than a kubelet's message holds
// Of the record: that of the oldest plugin that may read it. Fields are added without a new one, each with a value for when it is missing.
constexpr int kAllocationsFormat = 1;

std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes % (1 << 30) == 0 ? "%.0f GiB" : "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

bool contains_any(const std::set<std::string>& all, const std::set<std::string>& some) {
  return std::any_of(some.begin(), some.end(), [&](const std::string& id) { return all.count(id) != 0; });
}

}  // namespace

const std::set<std::string>& HeldDevices::of(Resource resource) const {
  switch (resource) {
    case Resource::kGpu:
      return gpus;
    case Resource::kMemory:
      return memory;
    case Resource::kCore:
      break;
  }
  return cores;
}

DeviceAllocations::DeviceAllocations(Division division, std::vector<Gpu> gpus) : division_(division), gpus_(std::move(gpus)) {}

void DeviceAllocations::set_gpus(std::vector<Gpu> gpus) { gpus_ = std::move(gpus); }

DeviceAllocations::Key DeviceAllocations::key_of(const HeldDevices& held) {
  Key key = held.name_space + "/" + held.pod + "/" + held.container;
  for (const auto* ids : {&held.gpus, &held.memory, &held.cores}) {
    key += "|";
    for (const std::string& id : *ids) key += id + ",";
  }
  return key;
}

// ---- what survives a restart ----

std::string DeviceAllocations::record() const {
  json all = json::array();
  for (const auto* entries : {&granted_, &departed_}) {
    for (const auto& [key, entry] : *entries) {
      const HeldDevices& held = entry.held;
      all.push_back({{"namespace", held.name_space},
                     {"pod", held.pod},
                     {"container", held.container},
                     {"gpus", held.gpus},
                     {"memory", held.memory},
                     {"cores", held.cores},
                     {"memory_unit", entry.memory_unit},
                     {"init", held.init},
                     {"granted", entries == &granted_ && entry.grant == Grant::kGranted}});
    }
  }
  return json{{"format", kAllocationsFormat}, {"containers", all}}.dump(1) + "\n";
}

Result<void> DeviceAllocations::restore(const std::string& record) {
  std::map<Key, Entry> granted;
  if (nests_too_deep(record)) return error_format("the record of granted containers nests deeper than %d", kJsonNestingMax);
  try {
    const json parsed = protocol::parse_record(record);
    const int format =
        parsed.is_array() ? kAllocationsFormat : parsed.at("format").get<int>();  // before it said its format it was the list alone
    if (format > kAllocationsFormat) {
      return error_format("it has format %d, of a later release; known is %d. Each container that holds devices counts", format,
                          kAllocationsFormat);
    }
    for (const json& one : parsed.is_array() ? parsed : parsed.at("containers")) {
      Entry entry;
      one.at("namespace").get_to(entry.held.name_space);
      one.at("pod").get_to(entry.held.pod);
      one.at("container").get_to(entry.held.container);
      one.at("gpus").get_to(entry.held.gpus);
      one.at("memory").get_to(entry.held.memory);
      one.at("cores").get_to(entry.held.cores);
      entry.memory_unit = one.value("memory_unit", division_.memory_unit);
      entry.held.init = one.value("init", false);
      has_init_ = has_init_ || entry.held.init;
      if (!is_possible_unit(entry.memory_unit)) return error_format("the record of granted containers has an impossible unit of memory");
      entry.grant = one.at("granted").get<bool>() ? Grant::kGranted : Grant::kAssumed;
      Key key = key_of(entry.held);
      granted.emplace(std::move(key), std::move(entry));
    }
  } catch (const json::exception& problem) {
    return error_format("the record of granted containers cannot be read: %.160s", problem.what());
  }
  granted_ = std::move(granted);
  knows_past_ = true;
  return {};
}

bool DeviceAllocations::update(std::vector<HeldDevices> listed) {
  listed_ = std::move(listed);
  has_init_ = has_init_ || std::any_of(listed_.begin(), listed_.end(), [](const HeldDevices& held) { return held.init; });
  bool changed = !knows_past_;
  std::map<Key, Entry> still;
  for (const HeldDevices& held : listed_) {
    Key key = key_of(held);
    if (auto known = granted_.extract(key)) {
      still.insert(std::move(known));
    } else if (auto back = departed_.extract(key)) {
      back.mapped().grant = Grant::kAssumed;
      still.insert(std::move(back));
      changed = true;
    } else if (!knows_past_) {
      still.emplace(std::move(key), Entry{held, Grant::kAssumed, division_.memory_unit});
    }
  }
  changed = changed || !granted_.empty();
  departed_.merge(granted_);
  granted_ = std::move(still);
  knows_past_ = true;
  // Whose devices have a new holder is gone for good.
  std::erase_if(departed_, [&](const auto& departed) {
    return std::any_of(listed_.begin(), listed_.end(), [&](const HeldDevices& held) {
      return contains_any(held.gpus, departed.second.held.gpus) || contains_any(held.memory, departed.second.held.memory);
    });
  });
  if (departed_.size() > kDepartedMax) departed_.clear();
  return changed;
}

void DeviceAllocations::add_init(HeldDevices held) {
  held.init = has_init_ = true;
  listed_.push_back(std::move(held));
}

std::vector<HeldDevices> DeviceAllocations::init_containers() const {
  std::vector<HeldDevices> all;
  for (const auto& [key, entry] : granted_) {
    if (entry.held.init) all.push_back(entry.held);
  }
  return all;
}

bool DeviceAllocations::lists_exactly(Resource resource, const std::vector<std::string>& ids) const {
  const std::set<std::string> wanted(ids.begin(), ids.end());
  return std::any_of(listed_.begin(), listed_.end(), [&](const HeldDevices& held) { return held.of(resource) == wanted; });
}

// ---- how full the GPUs are ----

Division DeviceAllocations::division_of(const HeldDevices& held) const {
  const Key key = key_of(held);
  for (const auto* entries : {&granted_, &departed_}) {
    if (const auto known = entries->find(key); known != entries->end()) return with_unit(division_, known->second.memory_unit);
  }
  return division_;
}

std::vector<std::string> DeviceAllocations::gpus_of(const HeldDevices& held) const {
  std::set<std::string> uuids;
  for (const std::string& id : held.gpus) {
    if (auto uuid = gpu_of(id)) uuids.emplace(*uuid);
  }
  return {uuids.begin(), uuids.end()};
}

// What it has that does not count already. Its GPUs are all of its own as long as there is anything: they say where its units are.
HeldDevices DeviceAllocations::beyond(const HeldDevices& held, const Counted& counted) const {
  HeldDevices rest = held;
  if (counted.empty()) return rest;
  const auto is_counted = [&](const std::string& id) { return counted.contains(id); };
  std::erase_if(rest.memory, is_counted);
  std::erase_if(rest.cores, is_counted);
  if (rest.memory.empty() && rest.cores.empty()) std::erase_if(rest.gpus, is_counted);
  return rest;
}

void DeviceAllocations::charge(const HeldDevices& whole, bool granted, std::vector<GpuLoad>* loads, Counted* counted) const {
  const HeldDevices held = beyond(whole, *counted);
  const std::vector<std::string> uuids = gpus_of(held);
  if (uuids.empty()) return;
  const int64_t bytes = part_of(memory_of_container(std::ssize(held.memory), true, division_of(whole)), uuids.size());
  const int64_t core = part_of(std::ssize(held.cores), uuids.size());
  for (GpuLoad& load : *loads) {
    if (std::find(uuids.begin(), uuids.end(), load.uuid) == uuids.end()) continue;
    if (granted) {
      load.bytes_granted += bytes;
      load.core_granted += core;
      continue;
    }
    load.bytes_listed += bytes;
    load.core_listed += core;
    load.devices_listed += std::count_if(held.gpus.begin(), held.gpus.end(),
                                         [&](const std::string& id) { return gpu_of(id) == load.uuid && !counted->contains(id); });
  }
  if (!has_init_) return;
  for (const auto* ids : {&held.gpus, &held.memory, &held.cores}) counted->insert(ids->begin(), ids->end());
}

DeviceAllocations::Loads DeviceAllocations::loads_without(const Key* left_out) const {
  Loads loads;
  loads.gpus.reserve(gpus_.size());
  for (const Gpu& gpu : gpus_) {
    GpuLoad load;
    load.uuid = gpu.uuid;
    load.healthy = gpu.healthy;
    load.bytes = units_of(Resource::kMemory, gpu, division_) * division_.memory_unit;
    loads.gpus.push_back(load);
  }
  Counted listed;
  for (const HeldDevices& held : listed_) charge(held, false, &loads.gpus, &listed);
  for (const auto& [key, entry] : granted_) {
    if (left_out == nullptr || key != *left_out) charge(entry.held, true, &loads.gpus, &loads.granted);
  }
  return loads;
}

std::vector<GpuLoad> DeviceAllocations::loads() const { return loads_without(nullptr).gpus; }

std::set<std::string> DeviceAllocations::in_use(Resource resource) const {
  std::set<std::string> ids;
  for (const HeldDevices& held : listed_) ids.insert(held.of(resource).begin(), held.of(resource).end());
  return ids;
}

// ---- admitting ----

// The container that holds all of these and nothing else, else the one that holds most of them: where the checkpoint cannot be read init
// containers are not known, and the containers that follow them have their devices. Of several, one that was not granted: the other is a
// leftover in the list.
const HeldDevices* DeviceAllocations::find(Resource resource, const std::vector<std::string>& ids) const {
  const HeldDevices* best = nullptr;
  std::pair<int64_t, size_t> best_rank;
  for (const HeldDevices& held : listed_) {
    const std::set<std::string>& owned = held.of(resource);
    int64_t rank = 2 * std::count_if(ids.begin(), ids.end(), [&](const std::string& id) { return owned.count(id) != 0; });
    if (rank == 0) continue;
    const bool is_all = !has_init_ || owned.size() == ids.size();
    if (is_all && granted_.count(key_of(held)) == 0) ++rank;
    const std::pair<int64_t, size_t> whole{rank, kDevicesMost - std::min(owned.size(), kDevicesMost)};
    if (best != nullptr && whole <= best_rank) continue;
    best = &held;
    best_rank = whole;
  }
  return best;
}

std::optional<std::string> DeviceAllocations::unfit(const HeldDevices& held, const Loads& loads) const {
  const std::vector<GpuLoad>& others = loads.gpus;
  const std::string pod = held.name_space.empty() ? "pod " + held.pod : held.name_space + "/" + held.pod;
  const std::string name = pod + (held.init ? ", init container " : ", container ") + held.container;
  std::vector<std::string> uuids = gpus_of(held);
  if (uuids.empty()) return name + ": asks for GPU memory or compute, but for no GPU; ask for one as well";
  // An init container, or one after it, may have only what the pod has already.
  const HeldDevices more = beyond(held, loads.granted);
  const std::vector<std::string> more_on = gpus_of(more);
  const int64_t bytes = part_of(memory_of_container(std::ssize(more.memory), !more_on.empty(), division_of(held)), more_on.size());
  const int64_t core = part_of(std::ssize(more.cores), more_on.size());
  for (const std::string& uuid : uuids) {
    auto load = std::find_if(others.begin(), others.end(), [&](const GpuLoad& one) { return one.uuid == uuid; });
    if (load == others.end()) return name + ": its GPU " + uuid + " is not there any more; delete the pod, so that it gets another one";
    if (!load->healthy) return name + ": its GPU " + uuid + " is unhealthy";
    if (std::find(more_on.begin(), more_on.end(), uuid) == more_on.end()) continue;
    bool memory_fits = bytes == 0 || load->bytes_granted + bytes <= load->bytes;
    bool core_fits = core == 0 || load->core_granted + core <= kCorePercents;
    if (memory_fits && core_fits) continue;
    std::string text =
        name + ": " + uuid + " has no room for " + (memory_fits ? std::to_string(core) + " % of compute" : gib(bytes)) + ". Free now:";
    for (const GpuLoad& one : others) {
      text += " " + one.uuid + " ";
      text += memory_fits ? std::to_string(std::max<int64_t>(kCorePercents - one.core_granted, 0)) + " %"
                          : gib(std::max<int64_t>(one.bytes - one.bytes_granted, 0)) + " of " + gib(one.bytes);
      text += one.healthy ? ";" : " (unhealthy);";
    }
    return text + " it starts once there is room on its GPU; deleted and made anew, the pod may get another GPU";
  }
  return std::nullopt;
}

Admission DeviceAllocations::admit(Resource resource, const std::vector<std::string>& ids) {
  const HeldDevices* held = find(resource, ids);
  if (held == nullptr) return {Admission::Kind::kNotListed, "the kubelet lists no container that holds these devices", false};
  Key key = key_of(*held);
  auto known = granted_.find(key);
  bool was_granted = known != granted_.end() && known->second.grant == Grant::kGranted;
  if (was_granted) {
    // It started before; only what its GPUs are now can stop it.
    Loads empty = loads_without(nullptr);
    empty.granted.clear();
    for (GpuLoad& load : empty.gpus) load.bytes_granted = load.core_granted = 0;
    if (auto reason = unfit(*held, empty)) return {Admission::Kind::kRefused, *reason, false};
    return {};
  }
  if (auto reason = unfit(*held, loads_without(&key))) {
    bool changed = known != granted_.end();
    if (changed) granted_.erase(known);
    return {Admission::Kind::kRefused, *reason, changed};
  }
  granted_.insert_or_assign(key, Entry{*held, Grant::kGranted, division_of(*held).memory_unit});
  return {Admission::Kind::kGranted, "", true};
}

}  // namespace nvshare::kubernetes
