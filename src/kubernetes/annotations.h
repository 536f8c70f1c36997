// Limits by annotation, put together: the watch of this node's pods, their limits, the way to the scheduler, pods' events. Registration
// with the kubelet and scheduling know nothing of it and never wait for it.
#pragma once

#include <mutex>
#include <string>

#include "kubernetes/event_teller.h"
#include "kubernetes/limits_link.h"
#include "kubernetes/pod_limits.h"
#include "kubernetes/pod_watch.h"

namespace nvshare::kubernetes {

class Annotations {
 public:
  struct Options {
    ApiServerAddress api_server;
    std::string node;         // this node's name in the cluster
    std::string runtime_dir;  // the scheduler's
    ResourceNames resources;
    int priority_max = 0;  // the highest that an annotation may give
    PodWatch::Pace pace;
  };
  // Starts threads.
  explicit Annotations(const Options& options);

  int lists() const { return watch_.lists(); }
  std::vector<protocol::admin::PodRequest> limits() const;

 private:
  void listed(const std::vector<std::string>& pods);
  void changed(const std::string& pod);
  void deleted(const std::string& pod);
  std::optional<WatchedPod> read(const std::string& pod) const;
  void tell(PodLimits::Changes changes);

  const ResourceNames resources_;
  mutable std::mutex mutex_;
  PodLimits limits_;  // guarded by mutex_
  // In this order: who calls ends before who is called.
  EventTeller teller_;
  LimitsLink link_;
  PodWatch watch_;
};

}  // namespace nvshare::kubernetes
