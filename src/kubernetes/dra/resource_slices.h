// The node's devices as ResourceSlices (resource.k8s.io/v1): one pool a node, as many slices as its devices need. Pure functions: what is
// there and what should be there give the writes that lead from one to the other; the sender looks again until there are none.
//
// Rules of the API that this keeps: driver, pool and node of a slice never change; each slice of a pool has the same generation and
// number of slices; one slice that changes by itself keeps its generation, else all get a new one. timeAdded of a taint is the server's.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/device_model.h"
#include "kubernetes/dra/json_fields.h"

namespace nvshare::kubernetes::dra {

inline constexpr size_t kDevicesOfSliceMax = 64;  // 128, but half of it as soon as one has a taint

struct NodeIdentity {
  std::string name;  // also the pool's
  std::string uid;   // of the Node object, which owns the slices
};

// An element of spec.devices.
Json device_json(const DeviceModel& device);

struct SlicePlan {
  struct Removal {
    std::string name, uid, resource_version;  // preconditions of the removal
  };
  std::vector<Removal> removals;  // to be sent first
  std::vector<Json> updates;      // whole objects, with the resourceVersion that was seen
  std::vector<Json> creations;
  bool empty() const { return removals.empty() && updates.empty() && creations.empty(); }
};

// `seen`: all ResourceSlices of this driver on this node. Others among them are left alone. No devices: one empty slice.
SlicePlan plan_slices(const NodeIdentity& node, const DeviceModels& devices, const std::vector<Json>& seen);

// The API server drops fields whose feature gate is off, and says nothing. An error names the field and the gate.
Result<void> check_stored(const Json& sent, const Json& returned);

}  // namespace nvshare::kubernetes::dra
