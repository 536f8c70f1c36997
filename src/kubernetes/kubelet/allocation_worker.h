// Answers the questions that need the kubelet's list of containers and their devices, on one thread: asking for the list takes a call back
// into the kubelet, which must never happen on a thread of the server that the kubelet calls. One list answers all questions that wait for
// it. It lists once when it starts; then, also without a question, for as long as that fails or a listener waits for more
// (Node::incomplete), with pauses that double, from 100 ms to a minute.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "kubernetes/kubelet/node.h"

namespace nvshare::kubernetes {

class AllocationWorker {
 public:
  using List = std::function<Result<std::vector<HeldDevices>>()>;  // may take a few seconds
  using Chosen = std::function<void(std::vector<std::string>)>;
  using Admitted = std::function<void(std::optional<std::string> refusal)>;

  // `patience`: how long a container's start may wait for being listed; the kubelet waits 30 s.
  AllocationWorker(Node& node, List list, std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~AllocationWorker();  // answers what is left with a refusal
  AllocationWorker(const AllocationWorker&) = delete;
  AllocationWorker& operator=(const AllocationWorker&) = delete;

  // Any thread. `done` is called once, on the worker's thread; at once where no device is named.
  void prefer(Resource resource, std::vector<std::string> available, std::vector<std::string> must, int size, Chosen done);
  void pre_start(Resource resource, std::vector<std::string> ids, Admitted done);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Question {
    Resource resource = Resource::kGpu;
    std::vector<std::string> ids;  // available ones, or those of the container that starts
    std::vector<std::string> must;
    int size = 0;
    Chosen chosen;
    Admitted admitted;
    Time until;
  };

  void ask(Question question);
  void run();
  std::optional<std::string> list_once();
  bool answer(Question& question, const std::optional<std::string>& list_failed);

  Node& node_;
  const List list_;
  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Question> asked_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace nvshare::kubernetes
