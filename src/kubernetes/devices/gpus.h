// Which GPUs this node has, and whether they are well. NVML is asked on a thread of its own, because a driver call may take long.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "kubernetes/devices/device_ids.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes {

// Those of `all` (in NVML's order) that `visible` names: "all", or UUIDs and numbers with commas between them. "none" and "void" name none.
Result<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& all, const std::string& visible);

// GPUs by NVML. Without NVML, those that `visible` names by UUID, when the memory of each is configured.
Result<std::vector<Gpu>> find_gpus(const std::string& visible, const Division& division);

// NVML writes eight digits of a PCI address's domain and capitals, the kernel four and small letters.
std::string kernel_pci_address(const std::string& address);

// Of a GPU at this PCI address (NVML's way of writing it), from the kernel; -1 if it does not say.
int numa_node_of(const std::string& sysfs, const std::string& pci_address);

// Errors that a program causes and that leave the GPU well, as NVIDIA's own plugin has them.
bool is_programs_error(uint64_t xid);

// What ails each GPU. Pure.
//
// Unhealthy: it did not answer twice in a row, until it answers; the driver reported an error of it, until it was away and is back (a
// reset) or this program starts anew; no scheduler answered for a while, all of them until one does.
class Ailments {
 public:
  // What one look at a GPU says; true: its health is another one now.
  bool saw(const std::string& uuid, bool answered);
  bool reported(const std::string& uuid, uint64_t xid);
  void scheduler_answers(bool answers) { scheduler_answers_ = answers; }
  bool answers(const std::string& uuid) const;
  bool healthy(const std::string& uuid) const { return reason(uuid).empty(); }
  std::string reason(const std::string& uuid) const;  // empty: it is well

 private:
  static constexpr int kSilentMax = 2;
  struct One {
    std::string uuid;
    int silent = 0;  // looks in a row without an answer
    uint64_t xid = 0;
  };
  One& of(const std::string& uuid);
  const One* find(const std::string& uuid) const;
  std::vector<One> all_;
  bool scheduler_answers_ = true;
};

// Asks NVML about each GPU every so often, waits for what the driver reports of them in between, and asks the scheduler whether it is
// there. Without NVML at its start it reports nothing of NVML's, ever.
class HealthWatch {
 public:
  using Changed = std::function<void(const Gpu& gpu, bool healthy, const std::string& why)>;  // on the watch's thread

  struct Options {
    std::vector<Gpu> gpus;
    std::chrono::nanoseconds interval;
    std::string runtime_dir;                      // the scheduler's
    std::chrono::nanoseconds scheduler_patience;  // so long it may be away; 0: it is not asked
    // What the scheduler has to say of pods, on the watch's thread; none: it is not asked for that.
    std::function<void(const std::vector<protocol::admin::PodNotice>&)> noticed;
  };
  HealthWatch(Options options, Changed changed);
  ~HealthWatch();  // waits for a look in progress, a second at most where NVML is waited for
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

 private:
  class Driver;
  using Clock = std::chrono::steady_clock;
  void run();
  bool scheduler_answers();
  void report();
  void rest(Driver& driver);  // until the next look

  const Options options_;
  const Changed changed_;
  Ailments ailments_;                                   // of the thread, as the next two
  std::vector<std::pair<std::string, bool>> reported_;  // UUID, healthy
  Clock::time_point scheduler_answered_at_;
  uint64_t noticed_ = 0;  // the last notice's number
  Mutex mutex_;
  Condition stopped_;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
