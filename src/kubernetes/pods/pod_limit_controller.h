// Limits of pods, put together: what the kubelet granted them, the watch of this node's pods and their annotations, the way to the
// scheduler, pods' events. Registration with the kubelet and scheduling know nothing of it and never wait for it.
//
// The scheduler keeps what it was sent. Until all that holds for a pod is known here (its annotations, its namespace), a request only
// lowers what the scheduler has of it; and until all pods are known, by the API server's list and the kubelet's checkpoint, none takes
// anything from pods that it does not name.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "kubernetes/devices/device_allocations.h"
#include "kubernetes/pods/checkpoint_watch.h"
#include "kubernetes/pods/event_recorder.h"
#include "kubernetes/pods/limit_publisher.h"
#include "kubernetes/pods/object_watch.h"
#include "kubernetes/pods/pod_allocations.h"
#include "kubernetes/pods/pod_limits.h"
#include "kubernetes/pods/state_store.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes {

class PodLimitController {
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
    EventRecorder::Pace event_pace;
    std::string kubelet_dir;      // whose checkpoint is read; empty: none
    std::string not_shared_hint;  // added to the event of a pod that uses its GPU past nvshare
    std::string record_dir;       // for what a restart must not forget: limits.json, pod-grants.json; empty: none
  };
  // Starts threads.
  explicit PodLimitController(const Options& options);

  // Which container holds which devices now: names for pods that only the kubelet knows. Any thread.
  void held(const std::vector<HeldDevices>& listed);
  // What the scheduler has to say of pods: recorded as their events, and in the log. Any thread.
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
  void report(PodLimits::Changes changes);
  void restore(const std::string& folder) REQUIRES(mutex_);
  std::vector<protocol::admin::PodRequest> all() const REQUIRES(mutex_);
  void publish() REQUIRES(mutex_);

  const ResourceNames resources_;
  const bool watches_;
  const NamespaceMaxima maxima_;
  const std::string not_shared_hint_;
  mutable Mutex mutex_;
  PodLimits limits_ GUARDED_BY(mutex_);
  PodAllocations allocations_ GUARDED_BY(mutex_);
  bool heard_ GUARDED_BY(mutex_) = false;              // the API server has listed its pods, or is not asked
  bool allocations_known_ GUARDED_BY(mutex_) = false;  // and so are the kubelet's
  // In this order: a part that calls ends before the one that it calls.
  LoopThread loop_;  // of all but the store
  std::optional<EventRecorder> recorder_;
  LimitPublisher publisher_;
  StateStore store_;
  std::optional<CheckpointWatch> checkpoint_;
  std::optional<ObjectWatch> watch_;
};

}  // namespace nvshare::kubernetes
