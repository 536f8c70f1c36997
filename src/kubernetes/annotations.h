// Limits of pods, put together: what the kubelet granted them, the watch of this node's pods and their annotations, the way to the
// scheduler, pods' events. Registration with the kubelet and scheduling know nothing of it and never wait for it.
//
// The scheduler keeps what it was told. Until all that holds for a pod is known here (its annotations, its namespace), a request only
// lowers what the scheduler has of it; and until all pods are known, by the API server's list and the kubelet's checkpoint, none takes
// anything from pods that it does not name.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "kubernetes/books.h"
#include "kubernetes/checkpoint_watch.h"
#include "kubernetes/event_teller.h"
#include "kubernetes/limits_link.h"
#include "kubernetes/object_watch.h"
#include "kubernetes/pod_grants.h"
#include "kubernetes/pod_limits.h"
#include "kubernetes/record_keeper.h"

namespace nvshare::kubernetes {

class Annotations {
 public:
  struct Options {
    ApiServerAddress api_server;  // without a URL: annotations are not watched, and what the kubelet granted is all
    std::string node;             // this node's name in the cluster
    std::string runtime_dir;      // the scheduler's
    ResourceNames resources;
    int priority_max = 0;              // the highest that an annotation may give
    bool annotations_reserve = false;  // what one says of GPU time is reserved too
    NamespaceMaxima namespace_maxima;
    ObjectWatch::Pace pace;
    EventTeller::Pace event_pace;
    std::string kubelet_dir;      // whose checkpoint is read; empty: none
    std::string not_shared_hint;  // added to what is told of a pod that uses its GPU past nvshare
    std::string record_dir;       // for what a restart must not forget: limits.json, pod-grants.json; empty: none
  };
  // Starts threads.
  explicit Annotations(const Options& options);

  // Who holds which devices now: names for pods that only the kubelet knows. Any thread.
  void held(const std::vector<HeldDevices>& listed);
  // What the scheduler has to say of pods: told as their events, and in the log. Any thread.
  void noticed(const std::vector<protocol::admin::PodNotice>& notices);
  // False: of a pod that holds devices the name is not known yet, and so not what its namespace may have.
  bool all_named() const;

  int lists() const { return watch_ ? watch_->lists() : 0; }
  std::vector<protocol::admin::PodRequest> limits() const;  // as they are sent

 private:
  void listed(const std::vector<std::string>& pods);
  void changed(const std::string& pod);
  void deleted(const std::string& pod);
  void granted(const Checkpoint& checkpoint);
  std::optional<WatchedPod> read(const std::string& pod) const;
  void tell(PodLimits::Changes changes);
  void restore(const std::string& folder);
  std::vector<protocol::admin::PodRequest> all() const;  // under mutex_
  void send_changes();                                   // the same

  const ResourceNames resources_;
  const bool watches_;
  const NamespaceMaxima maxima_;
  const std::string not_shared_hint_;
  mutable std::mutex mutex_;
  PodLimits limits_;                                         // guarded by mutex_
  PodGrants grants_;                                         // the same
  std::map<std::string, protocol::admin::PodRequest> sent_;  // the same; by UID
  bool heard_ = false;                                       // the same: the API server has listed its pods, or is not asked
  bool grants_known_ = false;                                // the same: and so are the kubelet's
  bool whole_ = false;                                       // the same: the scheduler is told that these are all
  // In this order: who calls ends before who is called.
  std::optional<EventTeller> teller_;
  LimitsLink link_;
  RecordKeeper keeper_;
  std::optional<CheckpointWatch> checkpoint_;
  std::optional<ObjectWatch> watch_;
};

}  // namespace nvshare::kubernetes
