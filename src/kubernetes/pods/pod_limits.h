// Limits of this node's pods: what each was granted (the resources in its specification), lowered by what its annotations say. Pure
// bookkeeping: no clock, no I/O; not thread-safe.
//
//   nvshare.com/gpu-core-limit     1..100, percent of each GPU's time: a ceiling, which reserves nothing (docs/adr/0017)
//   nvshare.com/gpu-memory-limit   an amount with Mi, Gi or Ti
//   nvshare.com/priority           -100..100, 0 = as everybody; above what the node allows pods it counts as that
//
// More than was granted, or than a pod of its namespace may have (namespace_maxima.h), counts as that; a value that cannot be read changes
// nothing; both are reported once. An annotation that is removed leaves what was granted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/device_ids.h"
#include "kubernetes/namespace_maxima.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes {

inline constexpr char kCoreAnnotation[] = "nvshare.com/gpu-core-limit";
inline constexpr char kMemoryAnnotation[] = "nvshare.com/gpu-memory-limit";
inline constexpr char kPriorityAnnotation[] = "nvshare.com/priority";

// The kubelet puts it on the pod that it makes at the API server for each of its static pods: the static pod's UID, which is the one that
// cgroups and the kubelet's checkpoint have. The pod at the API server has a UID of its own.
inline constexpr char kMirrorAnnotation[] = "kubernetes.io/config.mirror";

// The resources' names, as the node offers them; empty: not offered.
struct ResourceNames {
  std::string gpu, memory, core;
  Division division;  // its unit and default of memory
};

struct WatchedPod {
  std::string uid, name_space, name;
  std::string mirror_of;                            // a static pod's UID, as it says; empty: it says none
  bool ours = false;                                // it asks for a resource of ours, or has an annotation
  bool ended = false;                               // none of its containers runs again
  bool ends = false;                                // it is being deleted, and runs on for its grace period
  bool runs = false;                                // the kubelet has started it
  std::set<std::string> claims;                     // names of the ResourceClaims that it uses, in its namespace
  int64_t memory_granted = 0;                       // bytes; 0 = no limit
  int core_granted = 100;                           // percent
  int core_reserved = 0;                            // percent: what it asked of that resource; 0 = nothing
  std::map<std::string, std::string> annotations;   // ours
  std::map<std::string, std::string> annotated_by;  // annotation -> the tool that wrote it last, as the API server noted
};

// Of a v1.Pod in JSON; an error if it lacks what every pod has.
Result<WatchedPod> read_pod(std::string_view json, const ResourceNames& resources);

class PodLimits {
 public:
  // priority_max: the highest priority that an annotation may give. annotations_reserve: what an annotation says of GPU time is reserved,
  // too; for clusters where only administrators may write them.
  explicit PodLimits(int priority_max = 0, NamespaceMaxima maxima = {}, bool annotations_reserve = false)
      : priority_max_(priority_max), maxima_(std::move(maxima)), annotations_reserve_(annotations_reserve) {}

  // For the pod's events.
  struct Notice {
    std::string uid, name_space, name;
    bool warning = true;
    std::string reason;  // one word
    std::string text;
  };
  struct Changes {
    std::vector<protocol::admin::PodRequest> limits;
    std::vector<Notice> notices;
    std::vector<std::string> audit;  // one line of JSON for each limit that changed
    void add(Changes other);
  };

  // The pod as it is now.
  Changes update(const WatchedPod& pod);
  Changes remove(const std::string& uid);
  // These are all that there are.
  Changes replace(const std::vector<WatchedPod>& pods);

  // Of all pods.
  std::vector<protocol::admin::PodRequest> all() const;

  // In force for that pod, or null; and the priority that its annotation gives it, where it has one.
  const protocol::admin::PodRequest* find(const std::string& uid) const;
  std::optional<int> annotated_priority(const std::string& uid) const;

  // The static pod that this one says it speaks for; empty: none. Anybody may have written that: believe it of a pod of the same name only.
  const std::string& mirror_of(const std::string& uid) const;

  // For the next plugin on this node: the last good values, and what is in force, which the API server does not know. restore() takes the
  // place of everything known, and gives what it left out, and why; what is not in the API server's next list is gone then.
  std::string record() const;
  Result<std::vector<std::string>> restore(const std::string& record);

 private:
  struct Pod {
    WatchedPod seen;
    protocol::admin::PodRequest most;             // what it was granted and its namespace may have
    std::optional<int64_t> memory;                // the annotation's last good value
    std::optional<int> core;                      // the same
    std::optional<int> priority;                  // the same
    protocol::admin::PodRequest limits;           // in force
    std::map<std::string, std::string> reported;  // annotation -> value that was complained of
  };

  void find_most(Pod& pod, Changes* changes) const;
  void read_memory(Pod& pod, Changes* changes);
  void read_core(Pod& pod, Changes* changes);
  void read_priority(Pod& pod, Changes* changes);
  static void complain(Pod& pod, const char* annotation, const char* reason, const std::string& text, Changes* changes);
  static Notice notice_of(const Pod& pod, bool warning, const char* reason, const std::string& text);

  const int priority_max_;
  const NamespaceMaxima maxima_;
  const bool annotations_reserve_;
  std::map<std::string, Pod> pods_;  // by UID
};

}  // namespace nvshare::kubernetes
