#include "kubernetes/dra/claim.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "kubernetes/dra/quantity.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr size_t kNameMax = 253;

// A DNS subdomain, as names of objects are; no "..", so it is a safe part of a path.
bool is_object_name(std::string_view text) {
  const auto is_good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; };
  return !text.empty() && text.size() <= kNameMax && std::all_of(text.begin(), text.end(), is_good) && text.front() != '.' &&
         text.front() != '-' && text.back() != '.' && text.back() != '-' && text.find("..") == std::string_view::npos;
}

bool is_request(std::string_view text) {
  const size_t slash = text.find('/');
  return is_object_name(text.substr(0, slash)) && (slash == std::string_view::npos || is_object_name(text.substr(slash + 1)));
}

// Whether parameters that name these requests are for this one. None named: for all.
bool is_for(const Json& requests, const std::string& request) {
  const std::string base = request.substr(0, request.find('/'));
  return requests.empty() || std::any_of(requests.begin(), requests.end(), [&](const Json& one) { return one == request || one == base; });
}

// A field of consumedCapacity, under its bare name or with the driver's domain.
Result<int64_t> consumed(const Json& result, const char* name) {
  const Json* all = field_of(result, "consumedCapacity");
  if (all == nullptr) {
    return error_format(
        "the allocation says no consumedCapacity: the feature gate DRAConsumableCapacity is off in the cluster's scheduler or API server");
  }
  const Json* amount = field_of(*all, name);
  if (amount == nullptr) amount = field_of(*all, (std::string(kDriverName) + "/" + name).c_str());
  if (amount == nullptr || !amount->is_string()) return error_format("the allocation's consumedCapacity says no %s", name);
  Result<int64_t> value = parse_quantity(amount->get<std::string>());
  if (!value) return error_format("consumedCapacity.%s: %.200s", name, value.error().text);
  return *value;
}

Result<ShareConfig> config_of(const Json& allocation, const std::string& request, int priority_max) {
  const Json* devices = field_of(allocation, "devices");
  ShareConfig config;
  for (const char* source : {"FromClass", "FromClaim"}) {
    for (const Json& one : list_of(*devices, "config")) {
      const Json* opaque = field_of(one, "opaque");
      if (opaque == nullptr || text_of(*opaque, "driver") != kDriverName || text_of(one, "source") != source) continue;
      if (!is_for(list_of(one, "requests"), request)) continue;
      const Json* parameters = field_of(*opaque, "parameters");
      const bool is_class = std::string_view(source) == "FromClass";
      if (parameters == nullptr || parameters->dump(-1, ' ', false, Json::error_handler_t::replace).size() > kConfigBytesMax) {
        return error_format("the parameters of request '%.63s' are missing or longer than 10 KiB", request.c_str());
      }
      Result<ShareConfig> read = parse_share_config(*parameters, {is_class, is_class ? protocol::admin::kPriorityMax : priority_max});
      if (!read) return read.error();
      config = joined_config(config, *read);
    }
  }
  return config;
}

Result<Share> read_share(const Json& result, const Json& allocation, const NodeView& node) {
  Share share;
  share.request = text_of(result, "request");
  share.id = text_of(result, "shareID");
  share.device = text_of(result, "device");
  if (!is_request(share.request)) return error_format("'%.63s' is no name of a request", share.request.c_str());
  const auto wrong = [&](const char* why) {
    return error_format("request '%.63s', device '%.63s': %.160s", share.request.c_str(), share.device.c_str(), why);
  };
  if (text_of(result, "pool") != node.pool)
    return wrong(("it is of another node's pool, '" + text_of(result, "pool").substr(0, 63) + "'").c_str());
  const DeviceModel* device = find_device(node.devices, share.device);
  if (device == nullptr) return wrong("this node has no such device");
  share.gpu = device->uuid;
  share.admin = is_true(result, "adminAccess");  // the API server allows it in namespaces of administrators only
  if (share.admin && (share.id.empty() || protocol::admin::is_pod_uid(share.id))) return share;
  if (!protocol::admin::is_pod_uid(share.id)) return wrong("the allocation says no shareID: the feature gate DRAConsumableCapacity is off");
  const auto memory = consumed(result, "memory");
  if (!memory) return wrong(memory.error().text);
  const auto cores = consumed(result, "cores");
  if (!cores) return wrong(cores.error().text);
  if (*memory < kMemoryStep || *memory > device->memory) {
    return wrong(("it has " + bytes_quantity(*memory) + " of memory; accepted: 1Mi to " + bytes_quantity(device->memory)).c_str());
  }
  if (*cores < 1 || *cores > kCoresOfDevice)
    return wrong(("it has " + std::to_string(*cores) + " cores; accepted: 1 to 100, percent of the GPU's time").c_str());
  share.memory = *memory;
  share.cores = static_cast<int>(*cores);
  Result<ShareConfig> config = config_of(allocation, share.request, node.priority_max);
  if (!config) return config.error();
  share.config = std::move(*config);
  return share;
}

bool is_pod(const ClaimPod& pod) { return protocol::admin::is_pod_uid(pod.uid) && is_object_name(pod.name); }

// Those that it is reserved for now. The one with the least UID is the first, so that two claims of the same pods have the same first one.
Result<void> read_pods(const Json& claim, Claim* into) {
  const Json& reserved = list_of(*field_of(claim, "status"), "reservedFor");
  if (reserved.empty() || reserved.size() > kPodsOfClaimMax) {
    return error_format("it is reserved for %zu pods; accepted: 1 to %zu", reserved.size(), kPodsOfClaimMax);
  }
  std::map<std::string, std::string> pods;
  for (const Json& one : reserved) {
    const ClaimPod pod{text_of(one, "uid"), text_of(one, "name")};
    if (text_of(one, "resource") != "pods" || !is_pod(pod)) return error_format("status.reservedFor names something that is no pod");
    pods.emplace(pod.uid, pod.name);
  }
  into->pod_uid = pods.begin()->first;
  into->pod = pods.begin()->second;
  for (auto pod = std::next(pods.begin()); pod != pods.end(); ++pod) into->members.push_back({pod->first, pod->second});
  return {};
}

Result<void> check_shares(const Claim& claim) {
  if (claim.shares.empty() || claim.shares.size() > kSharesOfClaimMax) {
    return error_format("it has %zu devices of %s; accepted: 1 to %zu", claim.shares.size(), kDriverName, kSharesOfClaimMax);
  }
  for (const Share& share : claim.shares) {
    const auto same = std::count_if(claim.shares.begin(), claim.shares.end(), [&](const Share& other) { return other.id == share.id; });
    if (same > 1 && !share.id.empty()) return error_format("two of its devices have the shareID %.64s", share.id.c_str());
  }
  return {};
}

}  // namespace

Result<void> check_name(const ClaimName& name) {
  if (!protocol::admin::is_pod_uid(name.uid)) return error_format("'%.64s' is no UID of a claim", name.uid.c_str());
  if (!is_object_name(name.name_space)) return error_format("'%.63s' is no namespace", name.name_space.c_str());
  if (!is_object_name(name.name)) return error_format("'%.63s' is no name of a claim", name.name.c_str());
  return {};
}

Result<Claim> read_claim(std::string_view object, const ClaimName& wanted, const NodeView& node) {
  const Json json = parse_json(object);
  const Json* metadata = field_of(json, "metadata");
  if (metadata == nullptr) return error_format("the API server's answer is no ResourceClaim");
  if (text_of(*metadata, "uid") != wanted.uid) {
    return error_format("it was made anew: its UID is %.64s, the kubelet asks for %.64s", text_of(*metadata, "uid").c_str(),
                        wanted.uid.c_str());
  }
  const Json* allocation = path_of(json, {"status", "allocation"});
  if (allocation == nullptr || path_of(*allocation, {"devices", "results"}) == nullptr) return error_format("it is not allocated");
  Claim claim;
  claim.uid = wanted.uid;
  claim.name_space = wanted.name_space;
  claim.name = wanted.name;
  if (auto ok = read_pods(json, &claim); !ok) return ok.error();
  for (const Json& result : list_of(*field_of(*allocation, "devices"), "results")) {
    if (text_of(result, "driver") != kDriverName) continue;
    Result<Share> share = read_share(result, *allocation, node);
    if (!share) return share.error();
    claim.shares.push_back(std::move(*share));
  }
  if (auto ok = check_shares(claim); !ok) return ok.error();
  return claim;
}

Json claim_json(const Claim& claim) {
  Json shares = Json::array();
  for (const Share& share : claim.shares) {
    Json one = {{"request", share.request}, {"id", share.id},         {"device", share.device},
                {"gpu", share.gpu},         {"memory", share.memory}, {"cores", share.cores}};
    if (share.admin) one["admin"] = true;
    if (share.config.priority) one["priority"] = *share.config.priority;
    if (!share.config.memory_backend.empty()) one["memory_backend"] = share.config.memory_backend;
    if (!share.config.sharing.empty()) one["sharing"] = share.config.sharing;
    if (share.config.turn_seconds > 0) one["turn_seconds"] = share.config.turn_seconds;
    shares.push_back(std::move(one));
  }
  Json json = {{"uid", claim.uid}, {"namespace", claim.name_space}, {"name", claim.name}, {"pod_uid", claim.pod_uid},
               {"pod", claim.pod}, {"shares", std::move(shares)}};
  for (const ClaimPod& member : claim.members) json["members"].push_back({{"uid", member.uid}, {"name", member.name}});
  return json;
}

Result<Claim> claim_from_json(const Json& json) {
  Claim claim{
      text_of(json, "uid"), text_of(json, "namespace"), text_of(json, "name"), text_of(json, "pod_uid"), text_of(json, "pod"), {}, {}};
  if (auto ok = check_name({claim.name_space, claim.name, claim.uid}); !ok) return ok.error();
  if (!is_pod({claim.pod_uid, claim.pod})) return error_format("it names no pod");
  for (const Json& one : list_of(json, "members")) {
    claim.members.push_back({text_of(one, "uid"), text_of(one, "name")});
    if (!is_pod(claim.members.back()) || claim.members.back().uid == claim.pod_uid || claim.members.size() >= kPodsOfClaimMax) {
      return error_format("it names a member that is no other pod");
    }
  }
  for (const Json& one : list_of(json, "shares")) {
    Share share{
        text_of(one, "request"), text_of(one, "id"), text_of(one, "device"), text_of(one, "gpu"), integer_of(one, "memory", 0), 0, {},
        is_true(one, "admin")};
    const int64_t cores = integer_of(one, "cores", 0);
    const bool has_amounts =
        share.memory >= kMemoryStep && share.memory <= protocol::admin::kMemoryMost && cores >= 1 && cores <= kCoresOfDevice;
    const bool has_id = protocol::admin::is_pod_uid(share.id);
    const bool is_one = share.admin ? share.memory == 0 && cores == 0 && (has_id || share.id.empty()) : has_amounts && has_id;
    if (!is_one || !is_request(share.request) || share.device.empty() || device_name(share.gpu) != share.device) {
      return error_format("a share of it cannot be");
    }
    share.cores = static_cast<int>(cores);
    Json config = {{"apiVersion", kConfigVersion}, {"kind", kConfigKind}};
    if (const Json* priority = field_of(one, "priority")) config["priority"] = *priority;
    if (const Json* backend = field_of(one, "memory_backend")) config["memoryBackend"] = *backend;
    if (const Json* sharing = field_of(one, "sharing")) config["sharing"] = *sharing;
    if (const Json* seconds = field_of(one, "turn_seconds")) config["turnSeconds"] = *seconds;
    Result<ShareConfig> read = parse_share_config(config, {true, protocol::admin::kPriorityMax});
    if (!read) return read.error();
    share.config = std::move(*read);
    claim.shares.push_back(std::move(share));
  }
  if (auto ok = check_shares(claim); !ok) return ok.error();
  return claim;
}

}  // namespace nvshare::kubernetes::dra
