// This node's pods, as the API server has them, put together with the claims that are prepared: which pods share one claim, and how their
// annotations lower what it gives. Pure bookkeeping: no clock, no I/O; not thread-safe.
//
// Each claim counts for one pod, its first, and pods that use claims of that pod alone are members of its tenant. The kubelet prepares a
// claim once; a pod that comes to it later is known from here only.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kubernetes/dra/claim_allocations.h"
#include "kubernetes/pods/pod_limits.h"

namespace nvshare::kubernetes::dra {

class ClaimPods {
 public:
  // priority_max: the highest that an annotation may give. `watches`: pods are heard of; until the first list limits only lower what the
  // scheduler has. Else no pod has annotations, and members are those that a claim was reserved for when it was prepared.
  ClaimPods(int priority_max, bool watches) : annotated_(priority_max), heard_(!watches) {}

  // A pod that uses a claim as it is now; these are all that there are.
  PodLimits::Changes update(const WatchedPod& pod, const ClaimAllocations& claims);
  PodLimits::Changes remove(const std::string& uid);
  PodLimits::Changes replace(const std::vector<WatchedPod>& pods, const ClaimAllocations& claims);
  // Claims were prepared or unprepared: what annotations say is compared with what pods have now.
  PodLimits::Changes compare(const ClaimAllocations& claims);

  // What the scheduler is to have: of each tenant, and of each other pod that belongs to it.
  std::vector<protocol::admin::PodRequest> limits(const ClaimAllocations& claims) const;

  // For the next driver: the last good values of annotations.
  std::string record() const { return annotated_.record(); }
  Result<std::vector<std::string>> restore(const std::string& record) { return annotated_.restore(record); }

 private:
  // Of one tenant.
  struct Group {
    std::map<std::string, std::string> pods;  // UID -> "namespace/name", the first one included
    std::set<std::string> heeded;             // whose annotations count: a pod that was never started speaks for nobody
    std::set<std::string> uncounted;          // GPUs of claims that its pods use and that count for others
  };
  using Groups = std::map<std::string, Group>;  // by the UID of the first pod
  Groups groups_of(const ClaimAllocations& claims) const;
  void lower(const Group& group, protocol::admin::PodRequest* limits) const;
  PodLimits::Changes annotate(WatchedPod pod, const std::map<std::string, protocol::admin::PodRequest>& granted);
  std::map<std::string, protocol::admin::PodRequest> granted_to_pods(const ClaimAllocations& claims) const;

  PodLimits annotated_;
  std::map<std::string, WatchedPod> seen_;  // by UID: those with claims that have not ended
  bool heard_;
};

}  // namespace nvshare::kubernetes::dra
