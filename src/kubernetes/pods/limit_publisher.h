// Publishes limits of pods to the node's scheduler, for the device plugin and for the DRA driver: one wanted state, and the difference to
// what the scheduler has taken. A new connection gets everything (a scheduler that has just started may know nothing); a scheduler that
// ends is noticed at once and looked for until it is back, on a thread of its own.
//
// Pods that are no longer wanted are published as gone, and remembered until the scheduler has taken that. That the pods are all of the
// node is said only when the caller says so: others may publish theirs.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "protocol/admin_connection.h"

namespace nvshare::kubernetes {

class LimitPublisher {
 public:
  using Pods = std::vector<protocol::admin::PodRequest>;

  // Nothing is sent before the first set_wanted().
  explicit LimitPublisher(std::string runtime_dir);
  ~LimitPublisher();
  LimitPublisher(const LimitPublisher&) = delete;
  LimitPublisher& operator=(const LimitPublisher&) = delete;

  // Takes the place of what was wanted before. `complete`: these are all pods of the node, the scheduler forgets any others. Any thread;
  // does not wait for the scheduler.
  void set_wanted(const Pods& pods, bool complete);
  // Sends the difference now and waits for the scheduler's answer. An error: the wanted state is not in force; it is published as soon as
  // a scheduler answers. Any thread.
  Result<void> publish();

 private:
  using ByUid = std::map<std::string, protocol::admin::PodRequest>;
  struct Difference {
    Pods pods;
    bool complete = false;  // everything, and that it is everything
  };
  void run();
  int descriptor();  // of the connection; -1: there is none
  Result<void> publish_difference() REQUIRES(connection_mutex_);
  Difference difference() REQUIRES(connection_mutex_);
  void note_published(const Difference& sent) REQUIRES(connection_mutex_);
  void wait(int scheduler, std::chrono::milliseconds longest);
  void wake();

  const std::string runtime_dir_;
  FileDescriptor wake_;     // eventfd
  Mutex connection_mutex_;  // taken first, and held while the scheduler answers
  std::optional<protocol::admin::AdminConnection> scheduler_ GUARDED_BY(connection_mutex_);
  ByUid published_ GUARDED_BY(connection_mutex_);  // what this connection's scheduler has taken
  bool published_complete_ GUARDED_BY(connection_mutex_) = false;
  Mutex wanted_mutex_;  // taken second; nothing waits with it held
  ByUid wanted_ GUARDED_BY(wanted_mutex_);
  std::set<std::string> gone_ GUARDED_BY(wanted_mutex_);  // no longer wanted, and not known to be taken
  bool is_set_ GUARDED_BY(wanted_mutex_) = false;
  bool complete_ GUARDED_BY(wanted_mutex_) = false;
  bool stop_ GUARDED_BY(wanted_mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
