// Reads the kubelet's checkpoint whenever it changes, on a loop. A file that is not there, or cannot be read or understood, is
// no news: what was read before stays, and it is read again when it changes.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "kubernetes/pods/checkpoint.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes {

class CheckpointWatch {
 public:
  // What it says now. Called on the loop's thread.
  using Read = std::function<void(const Checkpoint& checkpoint)>;

  // `look_interval`: between two looks at what no event reports.
  CheckpointWatch(LoopThread& loop, const std::string& kubelet_dir, ResourceNames resources, Read read,
                  std::chrono::milliseconds look_interval = std::chrono::seconds(10));
  ~CheckpointWatch();
  CheckpointWatch(const CheckpointWatch&) = delete;
  CheckpointWatch& operator=(const CheckpointWatch&) = delete;

 private:
  void step();
  void look();
  void take_events();

  LoopThread& loop_;
  const std::string folder_, file_;
  const ResourceNames resources_;
  const Read read_;
  const std::chrono::milliseconds look_interval_;
  FileDescriptor events_;
  int watch_ = -1;  // of the folder
  struct stat seen_ {};
  std::string problem_;              // that was logged
  std::vector<std::string> unread_;  // the same
  std::optional<Watch> events_watch_;
  std::optional<Timer> next_look_;
};

}  // namespace nvshare::kubernetes
