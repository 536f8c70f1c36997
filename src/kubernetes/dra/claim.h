// A claim as it was allocated, and what this node prepares for it. Pure functions.
//
// The allocation is the scheduler's work, its parameters are the tenant's: nothing of either is taken over that was not checked against
// what this node has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/device_model.h"
#include "kubernetes/dra/share_config.h"

namespace nvshare::kubernetes::dra {

inline constexpr size_t kSharesOfClaimMax = 32;  // Kubernetes allocates no more

// One part of one GPU. A claim may have two of the same GPU: they are told apart by `id`.
struct Share {
  std::string request;  // as allocated: "main", or "main/sub" of a list of alternatives
  std::string id;       // Kubernetes' shareID; with admin access possibly empty
  std::string device;   // its name in the pool
  std::string gpu;      // UUID
  int64_t memory = 0;   // bytes
  int cores = 0;        // percent of the GPU's time
  ShareConfig config;
  // Admin access: to look at the GPU. It takes nothing from other claims, so it has no memory and no cores.
  bool admin = false;
  // As a container asks for it: "main".
  std::string base_request() const { return request.substr(0, request.find('/')); }
  bool operator==(const Share&) const = default;
};

inline constexpr size_t kPodsOfClaimMax = 256;  // Kubernetes reserves it for no more

struct ClaimPod {
  std::string uid, name;  // without the namespace
  bool operator==(const ClaimPod&) const = default;
};

struct Claim {
  std::string uid, name_space, name;
  std::string pod_uid, pod;       // of the pods that it is reserved for the one whose tenant has its shares; the name without the namespace
  std::vector<ClaimPod> members;  // the others
  std::vector<Share> shares;
  bool operator==(const Claim&) const = default;
};

// Which claim is meant: what the kubelet says.
struct ClaimName {
  std::string name_space, name, uid;
};
// Errors name the part. All three become parts of paths and URLs.
Result<void> check_name(const ClaimName& name);

struct NodeView {
  std::string pool;
  const DeviceModels& devices;
  int priority_max = 0;  // that a claim's own parameters may give; a DeviceClass's may give any
};

// `object`: the ResourceClaim as the API server has it. Other drivers' devices in it are left out.
Result<Claim> read_claim(std::string_view object, const ClaimName& wanted, const NodeView& node);

// For the record over a restart. The reading side believes nothing either.
Json claim_json(const Claim& claim);
Result<Claim> claim_from_json(const Json& json);

}  // namespace nvshare::kubernetes::dra
