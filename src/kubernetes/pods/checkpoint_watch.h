// Reads the kubelet's checkpoint whenever it changes, on a thread of its own. A file that is not there, or cannot be read or understood, is
// no news: what was read before stays, and it is read again when it changes.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "kubernetes/pods/checkpoint.h"

namespace nvshare::kubernetes {

class CheckpointWatch {
 public:
  // What it says now. Called on the watch's thread.
  using Read = std::function<void(const Checkpoint& checkpoint)>;

  // `look_interval`: between two looks at what no event reports.
  CheckpointWatch(const std::string& kubelet_dir, ResourceNames resources, Read read,
                  std::chrono::milliseconds look_interval = std::chrono::seconds(10));
  ~CheckpointWatch();
  CheckpointWatch(const CheckpointWatch&) = delete;
  CheckpointWatch& operator=(const CheckpointWatch&) = delete;

 private:
  void run();
  void look();
  void wait();

  const std::string folder_, file_;
  const ResourceNames resources_;
  const Read read_;
  const std::chrono::milliseconds look_interval_;
  FileDescriptor wake_;  // eventfd
  FileDescriptor events_;
  int watch_ = -1;  // of the folder
  struct stat seen_ {};
  std::string problem_;              // that was logged
  std::vector<std::string> unread_;  // the same
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
