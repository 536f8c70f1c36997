#include "kubernetes/dra/resource_slices.h"

#include <algorithm>
#include <optional>

#include "kubernetes/dra/quantity.h"
#include "kubernetes/dra/share_config.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr char kApiVersion[] = "resource.k8s.io/v1";
constexpr char kTaintKey[] = "gpu.nvshare.com/unhealthy";
constexpr size_t kTaintValueMax = 63;

// A label's value: letters, digits, '-', '_' and '.', with a letter or digit at both ends.
std::string taint_value(const std::string& why) {
  std::string value;
  for (const char c : why) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (good) value += c;
    if (!good && !value.empty() && value.back() != '-') value += '-';
  }
  value.resize(std::min(value.size(), kTaintValueMax));
  while (!value.empty() && value.back() == '-') value.pop_back();
  return value;
}

// What a claim that asks for nothing gets is all of it.
Json capacity_json(const std::string& whole, const char* step) {
  return {{"value", whole}, {"requestPolicy", {{"default", whole}, {"validRange", {{"min", "0"}, {"max", whole}, {"step", step}}}}}};
}

Json spec_json(const NodeIdentity& node, const Json& devices, int64_t generation, size_t slices) {
  return {{"driver", kDriverName},
          {"nodeName", node.name},
          {"pool", {{"name", node.name}, {"generation", generation}, {"resourceSliceCount", slices}}},
          {"devices", devices}};
}

Json new_slice(const NodeIdentity& node, Json spec) {
  const Json owner = {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node.name}, {"uid", node.uid}, {"controller", true}};
  return {{"apiVersion", kApiVersion},
          {"kind", "ResourceSlice"},
          {"metadata", {{"generateName", "00000-" + std::string(kDriverName) + "-" + node.name + "-"}, {"ownerReferences", {owner}}}},
          {"spec", std::move(spec)}};
}

// Amounts by what they are worth: the server writes "1024Mi" as "1Gi".
bool same_amount(const Json& a, const Json& b) {
  if (!a.is_string() || !b.is_string()) return a == b;
  const auto left = parse_quantity(a.get<std::string>());
  const auto right = parse_quantity(b.get<std::string>());
  return left && right ? *left == *right : a == b;
}

bool same_capacity(const Json& wanted, const Json& seen) {
  const auto same_at = [&](std::initializer_list<const char*> path) {
    const Json* left = path_of(wanted, path);
    const Json* right = path_of(seen, path);
    return left == nullptr || right == nullptr ? left == right : same_amount(*left, *right);
  };
  return same_at({"value"}) && same_at({"requestPolicy", "default"}) && same_at({"requestPolicy", "validRange", "min"}) &&
         same_at({"requestPolicy", "validRange", "max"}) && same_at({"requestPolicy", "validRange", "step"});
}

bool same_capacities(const Json& wanted, const Json& seen) {
  if (!wanted.is_object() || !seen.is_object() || wanted.size() != seen.size()) return false;
  return std::all_of(wanted.items().begin(), wanted.items().end(), [&](const auto& one) {
    const Json* other = field_of(seen, one.key().c_str());
    return other != nullptr && same_capacity(one.value(), *other);
  });
}

bool is_same_taint(const Json& a, const Json& b) {
  return text_of(a, "key") == text_of(b, "key") && text_of(a, "value") == text_of(b, "value") &&
         text_of(a, "effect") == text_of(b, "effect");
}

bool same_taints(const Json& wanted, const Json& seen) {
  const Json& left = list_of(wanted, "taints");
  const Json& right = list_of(seen, "taints");
  return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin(), is_same_taint);
}

bool same_device(const Json& wanted, const Json& seen) {
  const auto part = [](const Json& device, const char* name) {
    const Json* field = field_of(device, name);
    return field == nullptr ? Json::object() : *field;
  };
  return text_of(wanted, "name") == text_of(seen, "name") &&
         is_true(wanted, "allowMultipleAllocations") == is_true(seen, "allowMultipleAllocations") &&
         part(wanted, "attributes") == part(seen, "attributes") && same_capacities(part(wanted, "capacity"), part(seen, "capacity")) &&
         same_taints(wanted, seen);
}

bool same_devices(const Json& wanted, const Json& slice) {
  const Json* spec = field_of(slice, "spec");
  if (spec == nullptr) return false;
  const Json& seen = list_of(*spec, "devices");
  return wanted.size() == seen.size() && std::equal(wanted.begin(), wanted.end(), seen.begin(), same_device);
}

void keep_taint_times(const Json& seen_devices, Json* devices) {
  for (Json& device : *devices) {
    if (!device.contains("taints")) continue;
    for (const Json& seen : seen_devices) {
      if (text_of(seen, "name") != text_of(device, "name")) continue;
      for (Json& taint : device["taints"]) {
        for (const Json& before : list_of(seen, "taints")) {
          if (is_same_taint(taint, before) && before.contains("timeAdded")) taint["timeAdded"] = before["timeAdded"];
        }
      }
    }
  }
}

struct Pool {
  std::vector<Json> slices;  // of this pool, by name
  int64_t generation = 0;    // the highest
  SlicePlan plan;            // what is not of it goes
};

SlicePlan::Removal removal_of(const Json& slice) {
  const Json* metadata = field_of(slice, "metadata");
  const Json none;
  const Json& of = metadata == nullptr ? none : *metadata;
  return {text_of(of, "name"), text_of(of, "uid"), text_of(of, "resourceVersion")};
}

Pool sort_seen(const NodeIdentity& node, const std::vector<Json>& seen) {
  Pool pool;
  for (const Json& slice : seen) {
    const Json* spec = field_of(slice, "spec");
    if (spec == nullptr || text_of(*spec, "driver") != kDriverName || text_of(*spec, "nodeName") != node.name) continue;
    const Json* of = field_of(*spec, "pool");
    if (of != nullptr && text_of(*of, "name") == node.name) {
      pool.generation = std::max(pool.generation, integer_of(*of, "generation", 0));
      pool.slices.push_back(slice);
    } else {
      pool.plan.removals.push_back(removal_of(slice));
    }
  }
  std::sort(pool.slices.begin(), pool.slices.end(), [](const Json& a, const Json& b) { return removal_of(a).name < removal_of(b).name; });
  return pool;
}

std::vector<Json> devices_by_slice(const DeviceModels& devices) {
  std::vector<Json> parts(1, Json::array());
  for (const DeviceModel& device : devices) {
    if (parts.back().size() == kDevicesOfSliceMax) parts.push_back(Json::array());
    parts.back().push_back(device_json(device));
  }
  return parts;
}

std::string first_device(const Json& devices) { return devices.empty() ? "" : text_of(devices[0], "name"); }

// The slices in the order of the parts that they have or are to have; the server's names say nothing of it. Those beyond come last.
void order_by_parts(const std::vector<Json>& parts, std::vector<Json>* slices) {
  for (size_t i = 0; i < std::min(parts.size(), slices->size()); ++i) {
    const auto begins_alike = [&](const Json& slice) { return first_device(list_of(slice["spec"], "devices")) == first_device(parts[i]); };
    const auto found = std::find_if(slices->begin() + static_cast<ptrdiff_t>(i), slices->end(), begins_alike);
    if (found != slices->end()) std::iter_swap(slices->begin() + static_cast<ptrdiff_t>(i), found);
  }
}

bool has_generation(const Json& slice, int64_t generation, size_t slices) {
  const Json* pool = path_of(slice, {"spec", "pool"});
  return pool != nullptr && integer_of(*pool, "generation", -1) == generation &&
         integer_of(*pool, "resourceSliceCount", -1) == static_cast<int64_t>(slices);
}

}  // namespace

Json device_json(const DeviceModel& device) {
  Json attributes = Json::object();
  for (const auto& [name, value] : device.texts) attributes[name] = {{"string", value}};
  for (const auto& [name, value] : device.versions) attributes[name] = {{"version", value}};
  for (const auto& [name, value] : device.integers) attributes[name] = {{"int", value}};
  Json json = {
      {"name", device.name},
      {"allowMultipleAllocations", true},
      {"attributes", std::move(attributes)},
      {"capacity",
       {{"memory", capacity_json(bytes_quantity(device.memory), "1Mi")}, {"cores", capacity_json(std::to_string(kCoresOfDevice), "1")}}}};
  if (!device.ailment.empty()) {
    json["taints"] = Json::array({{{"key", kTaintKey}, {"value", taint_value(device.ailment)}, {"effect", "NoSchedule"}}});
  }
  return json;
}

SlicePlan plan_slices(const NodeIdentity& node, const DeviceModels& devices, const std::vector<Json>& seen) {
  Pool pool = sort_seen(node, seen);
  std::vector<Json> parts = devices_by_slice(devices);
  order_by_parts(parts, &pool.slices);
  SlicePlan plan = std::move(pool.plan);
  for (size_t i = parts.size(); i < pool.slices.size(); ++i) plan.removals.push_back(removal_of(pool.slices[i]));
  pool.slices.resize(std::min(pool.slices.size(), parts.size()));

  size_t changed = 0;
  bool all_agree = true;
  for (size_t i = 0; i < pool.slices.size(); ++i) {
    changed += same_devices(parts[i], pool.slices[i]) ? 0 : 1;
    all_agree = all_agree && has_generation(pool.slices[i], pool.generation, parts.size());
  }
  const bool creates = pool.slices.size() < parts.size();
  const bool renews = creates || changed > 1 || !all_agree;
  const int64_t generation = renews ? pool.generation + 1 : pool.generation;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i >= pool.slices.size()) {
      plan.creations.push_back(new_slice(node, spec_json(node, parts[i], generation, parts.size())));
      continue;
    }
    if (!renews && same_devices(parts[i], pool.slices[i])) continue;
    Json update = pool.slices[i];
    keep_taint_times(list_of(update["spec"], "devices"), &parts[i]);
    update["spec"] = spec_json(node, parts[i], generation, parts.size());
    plan.updates.push_back(std::move(update));
  }
  return plan;
}

Result<void> check_stored(const Json& sent, const Json& returned) {
  const Json none = Json::object();
  const Json* sent_spec = field_of(sent, "spec");
  const Json* stored_spec = field_of(returned, "spec");
  const Json& wanted = list_of(sent_spec == nullptr ? none : *sent_spec, "devices");
  const Json& stored = list_of(stored_spec == nullptr ? none : *stored_spec, "devices");
  if (wanted.size() != stored.size())
    return error_format("the API server keeps %zu of %zu devices of a ResourceSlice", stored.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!is_true(stored[i], "allowMultipleAllocations")) {
      return error_format(
          "the API server drops allowMultipleAllocations: the feature gate DRAConsumableCapacity is off (on by default since "
          "Kubernetes 1.36)");
    }
    const Json* capacity = path_of(stored[i], {"capacity", "memory", "requestPolicy"});
    if (capacity == nullptr) return error_format("the API server drops requestPolicy: the feature gate DRAConsumableCapacity is off");
    if (!same_taints(wanted[i], stored[i])) {
      return error_format(
          "the API server drops taints of devices: the feature gate DRADeviceTaints is off (on by default since Kubernetes 1.36)");
    }
  }
  return {};
}

}  // namespace nvshare::kubernetes::dra
