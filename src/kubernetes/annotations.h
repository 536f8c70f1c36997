// Limits of pods, put together: what the kubelet granted them, the watch of this node's pods and their annotations, the way to the
// scheduler, pods' events. Registration with the kubelet and scheduling know nothing of it and never wait for it.
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
#include "kubernetes/pod_limits.h"
#include "kubernetes/pod_watch.h"

namespace nvshare::kubernetes {

class Annotations {
 public:
  struct Options {
    ApiServerAddress api_server;  // without a URL: annotations are not watched, and what the kubelet granted is all
    std::string node;             // this node's name in the cluster
    std::string runtime_dir;      // the scheduler's
    ResourceNames resources;
    int priority_max = 0;  // the highest that an annotation may give
    NamespaceMaxima namespace_maxima;
    PodWatch::Pace pace;
    std::string kubelet_dir;  // whose checkpoint is read; empty: none
    std::string record;       // a file for what a restart must not forget; empty: none
    // The API server's first list is waited for so long before grants are sent without it.
    std::chrono::milliseconds list_patience{10'000};
  };
  // Starts threads.
  explicit Annotations(const Options& options);

  // Who holds which devices now: names for pods that only the kubelet knows. Any thread.
  void held(const std::vector<HeldDevices>& listed);

  int lists() const { return watch_ ? watch_->lists() : 0; }
  std::vector<protocol::admin::PodRequest> limits() const;  // as they are sent

 private:
  void listed(const std::vector<std::string>& pods);
  void changed(const std::string& pod);
  void deleted(const std::string& pod);
  void granted(const std::map<std::string, PodGrant>& pods);
  std::optional<WatchedPod> read(const std::string& pod) const;
  void tell(PodLimits::Changes changes);
  void restore();
  void save();
  std::vector<protocol::admin::PodRequest> all() const;  // under mutex_
  void send_changes();                                   // the same
  std::string holder_of(const PodGrant& grant) const;    // the same

  const ResourceNames resources_;
  const std::string record_;
  const bool watches_;
  const NamespaceMaxima maxima_;
  mutable std::mutex mutex_;
  PodLimits limits_;                                         // guarded by mutex_
  std::map<std::string, PodGrant> grants_;                   // the same; by UID
  std::map<std::string, std::string> holders_;               // the same; virtual GPU -> "namespace/name"
  std::map<std::string, protocol::admin::PodRequest> sent_;  // the same; by UID
  bool whole_ = false;                                       // the same: `limits_` is all that the API server would say
  std::string recorded_;                                     // of the watch's thread
  // In this order: who calls ends before who is called.
  std::optional<EventTeller> teller_;
  LimitsLink link_;
  std::optional<CheckpointWatch> checkpoint_;
  std::optional<PodWatch> watch_;
};

}  // namespace nvshare::kubernetes
