// Tells the node's scheduler the limits of pods with claims. A claim is prepared only once the scheduler has them, so telling waits for its
// answer; a thread notices a scheduler that ends, and tells its successor all of them.
//
// Never says that these are all pods of the node: others may speak for theirs.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "protocol/admin_client.h"

namespace nvshare::kubernetes::dra {

class ClaimLimits {
 public:
  using Pods = std::vector<protocol::admin::PodRequest>;

  // `all`: of claims that were prepared before a restart.
  ClaimLimits(std::string runtime_dir, const Pods& all);
  ~ClaimLimits();
  ClaimLimits(const ClaimLimits&) = delete;
  ClaimLimits& operator=(const ClaimLimits&) = delete;

  // Any thread. An error: they are not in force; they are told as soon as a scheduler answers, unless told otherwise before.
  Result<void> tell(const Pods& changed);

 private:
  void run();
  Result<void> send(const Pods& pods);  // with the mutex held, as the next one
  Result<void> connect();               // and send everything
  void wait(int scheduler, std::chrono::milliseconds longest);

  const std::string runtime_dir_;
  FileDescriptor wake_;  // eventfd
  std::mutex mutex_;
  std::map<std::string, protocol::admin::PodRequest> all_;  // guarded by mutex_; by UID; with those that are gone until that was told
  std::optional<protocol::admin::Client> scheduler_;        // guarded by mutex_
  bool stop_ = false;                                       // guarded by mutex_
  std::thread thread_;                                      // last
};

}  // namespace nvshare::kubernetes::dra
