// What the node's agent says of pods, whether they have clients or not. Pure; not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

namespace nvshare::scheduler {

// 0 means none.
inline int64_t lower_limit(int64_t a, int64_t b) { return a == 0 || b == 0 ? a + b : std::min(a, b); }

// What the node's agent says of a pod, whether it has clients or not.
struct PodLimits {
  std::string name;              // "namespace/name"
  int64_t gpu_memory_limit = 0;  // bytes, 0 = none
  int core_limit = 100;          // percent of each GPU's time, its ceiling; 100 = none
  int priority = 0;
  bool ends = false;                           // it is being deleted
  std::map<std::string, int64_t> memory_on;    // by the GPU's UUID: what it has there at most
  bool gone = false;                           // nobody speaks for it any more: it is held to what it had
  int core_reserved = 0;                       // of core_limit what it was granted; 0 = none
  std::string sharing = "node";                // one of protocol::admin::kSharingWords
  int turn_seconds = 0;                        // the longest turn while others wait; 0 = as long as all others'
  std::string member_of;                       // the UID of the pod whose tenant it belongs to; empty: its own
  bool told() const { return !name.empty(); }  // else it is from clients that came back, if any
  bool limits_nothing() const { return gpu_memory_limit == 0 && core_limit == 100 && memory_on.empty(); }
  bool operator==(const PodLimits&) const = default;
};

// Of each limit the lower one; all else as `held` has it. For what is told by somebody who does not know all that holds for the pod.
PodLimits lowest_of(const PodLimits& held, PodLimits told);

// By UID. Pods that nobody speaks for any more are among them as long as something holds for them: the last kGoneMax.
class PodRegistry {
 public:
  static constexpr size_t kGoneMax = 200;  // a force-deleted pod's processes end within minutes; the file is written with each change

  void remember(const std::string& uid, const PodLimits& limits) { pods_[uid] = limits; }
  // Nobody speaks for it any more, and these hold for it from now on. One that `is_used` is forgotten only where all others are, too.
  void put_gone(const std::string& uid, const PodLimits& limits, const std::function<bool(const std::string& uid)>& is_used);
  // As an earlier scheduler knew it.
  void restore(const std::string& uid, const PodLimits& limits);
  void clear();

  const PodLimits* find(const std::string& uid) const;  // null: nobody told of it
  // The UID of the pod whose tenant new processes of this one belong to.
  const std::string& leader_of(const std::string& uid) const;
  const std::map<std::string, PodLimits>& all() const { return pods_; }

 private:
  std::map<std::string, PodLimits> pods_;
  std::deque<std::string> gone_;  // of pods_, and some that are back; the longest gone first
};

}  // namespace nvshare::scheduler
