// Brings limits of pods to the node's scheduler, on a thread of its own: everything when a connection is made (a scheduler that has just
// started knows nothing), later what changed. A scheduler that is gone is noticed at once and looked for until it is back.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "protocol/admin_client.h"

namespace nvshare::kubernetes {

class LimitsLink {
 public:
  using Pods = std::vector<protocol::admin::PodRequest>;

  explicit LimitsLink(std::string runtime_dir);
  ~LimitsLink();
  LimitsLink(const LimitsLink&) = delete;
  LimitsLink& operator=(const LimitsLink&) = delete;

  // Any thread; none waits for the scheduler. Nothing is sent before begin() or the first replace(). After begin() alone not all pods are
  // known: what is sent takes nothing from other pods.
  void begin();
  void change(const Pods& pods);
  void replace(const Pods& all);

 private:
  void run();
  Result<void> send(protocol::admin::Client& scheduler, const Pods& pods, bool complete);
  void wait(int scheduler, std::chrono::milliseconds longest);

  const std::string runtime_dir_;
  FileDescriptor wake_;  // eventfd
  std::mutex mutex_;
  std::map<std::string, protocol::admin::PodRequest> all_;      // guarded by mutex_; by UID
  std::map<std::string, protocol::admin::PodRequest> changed_;  // guarded by mutex_; not sent yet
  bool known_ = false;                                          // guarded by mutex_; replace() was called
  bool whole_due_ = false;                                      // guarded by mutex_; for the first time
  bool begun_ = false;                                          // guarded by mutex_
  bool stop_ = false;                                           // guarded by mutex_
  std::thread thread_;                                          // last
};

}  // namespace nvshare::kubernetes
