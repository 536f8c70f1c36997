// What this node's pods were granted, by UID, and which pod a UID is: the kubelet's checkpoint and its list of containers and their
// devices, put together, with what a restart of the plugin must not forget. Pure bookkeeping: no clock, no I/O; not thread-safe.
//
// The checkpoint names pods by their UID alone, the list by namespace and name alone; both name virtual GPUs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/device_allocations.h"
#include "kubernetes/pods/checkpoint.h"

namespace nvshare::kubernetes {

class PodAllocations {
 public:
  struct Pod {
    PodAllocation allocation;
    bool sure = true;         // false: of its entries some were not understood, and nothing was known of it before
    std::string name;         // "namespace/name"; empty: the kubelet has not listed it yet
    int64_t memory_unit = 0;  // bytes, since it was first seen
    std::string_view name_space() const { return std::string_view(name).substr(0, name.find('/')); }
  };

  explicit PodAllocations(const Division& division) : division_(division) {}

  // A pod of which an entry was not understood keeps what was known of it; so do all, where an entry may be any pod's.
  void read(const Checkpoint& checkpoint);
  // The kubelet's whole list. A pod that is missing from it (a kubelet that has just started knows none) keeps its name.
  void named(const std::vector<HeldDevices>& listed);

  const std::map<std::string, Pod>& pods() const { return pods_; }  // by UID
  const Pod* find(const std::string& uid) const;
  // A checkpoint was read, all of it: there are no other pods. Until then nothing may be concluded from a pod that is missing.
  bool known() const { return known_; }
  bool all_named() const;

  // For the next plugin on this node. restore() takes the place of everything known, and gives what it left out, and why.
  std::string record() const;
  Result<std::vector<std::string>> restore(const std::string& record);

 private:
  void name(Pod& pod) const;

  const Division division_;
  std::map<std::string, Pod> pods_;
  std::map<std::string, std::string> holders_;  // of the last list: virtual GPU -> "namespace/name"
  bool known_ = false;
};

}  // namespace nvshare::kubernetes
