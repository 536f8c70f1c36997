// Which GPUs this node has, and whether they are well. NVML is asked on a thread of its own, because a driver call may take long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices.h"

namespace nvshare::kubernetes {

// Those of `all` (in NVML's order) that `visible` names: "all", or UUIDs and numbers with commas between them. "none" and "void" name none.
Result<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& all, const std::string& visible);

// GPUs by NVML. Without NVML, those that `visible` names by UUID, when the memory of each is told.
Result<std::vector<Gpu>> find_gpus(const std::string& visible, const Division& division);

// A GPU is unhealthy when it did not answer twice in a row, and healthy again as soon as it answers.
class Ailments {
 public:
  // What one look at a GPU says; true: its health is another one now.
  bool saw(const std::string& uuid, bool answered);
  bool healthy(const std::string& uuid) const;

 private:
  static constexpr int kSilentMax = 2;
  std::vector<std::pair<std::string, int>> silent_;  // looks in a row without an answer
};

// Asks NVML about each GPU every so often. Without NVML at its start it reports nothing, ever.
class HealthWatch {
 public:
  using Changed = std::function<void(const std::string& uuid, bool healthy)>;  // on the watch's thread

  HealthWatch(std::vector<std::string> uuids, std::chrono::nanoseconds interval, Changed changed);
  ~HealthWatch();  // waits for a look in progress
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

 private:
  void run();

  const std::vector<std::string> uuids_;
  const std::chrono::nanoseconds interval_;
  const Changed changed_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;   // guarded by mutex_
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
