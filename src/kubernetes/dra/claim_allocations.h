// The claims that this node has prepared: whether another one fits, and what follows for each pod. Pure.
//
// Kubernetes' scheduler has counted before; two of its instances, or a ratio that was lowered since, may have counted wrongly.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/claim.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes::dra {

class ClaimAllocations {
 public:
  // A claim that is there already is left as it is, and must be the same one: what containers were given cannot change. Of several pods
  // the first is one that is the first of another claim already. Errors say what a GPU has, and which claims have it.
  Result<void> admit(const Claim& claim, const DeviceModels& devices);
  // What was prepared before a restart: it is in use, whatever the node offers today.
  void restore(const Claim& claim) { claims_[claim.uid] = claim; }
  void remove(const std::string& claim_uid) { claims_.erase(claim_uid); }
  const Claim* find(const std::string& claim_uid) const;
  const std::map<std::string, Claim>& claims() const { return claims_; }

  // A pod's limits, all its claims together: on each GPU the sum of its shares there; where it has admin access alone, 1 MiB, and a
  // hundredth of the time if it has no share anywhere. Nothing left of it: `gone`. The scheduler knows one
  // figure for compute on all GPUs of a pod; it is the least that the pod has on one of them, so that it takes from no other pod.
  protocol::admin::PodRequest limits_of(const std::string& pod_uid) const;
  // The first pods of all claims.
  std::set<std::string> first_pods() const;

 private:
  Result<void> check_pod(const Claim& claim) const;
  Claim with_first_pod(const Claim& claim) const;
  std::map<std::string, Claim> claims_;  // by UID
};

}  // namespace nvshare::kubernetes::dra
