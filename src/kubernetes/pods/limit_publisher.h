// Publishes limits of pods to the node's scheduler, for the device plugin and for the DRA driver: one wanted state, and the difference to
// what the scheduler has taken. A new connection gets everything (a scheduler that has just started may know nothing); a scheduler that
// ends is noticed at once and looked for until it is back. Lives on a loop: nothing there waits for the scheduler.
//
// Pods that are no longer wanted are published as gone, and remembered until the scheduler has taken that. That the pods are all of the
// node is said only when the caller says so: others may publish theirs.
#pragma once

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "loop/loop_thread.h"
#include "protocol/admin_connection.h"

namespace nvshare::kubernetes {

class LimitPublisher {
 public:
  using Pods = std::vector<protocol::admin::PodRequest>;

  // Nothing is sent before the first set_wanted().
  LimitPublisher(LoopThread& loop, std::string runtime_dir);
  ~LimitPublisher();
  LimitPublisher(const LimitPublisher&) = delete;
  LimitPublisher& operator=(const LimitPublisher&) = delete;

  // Takes the place of what was wanted before. `complete`: these are all pods of the node, the scheduler forgets any others. Any thread;
  // does not wait for the scheduler.
  void set_wanted(const Pods& pods, bool complete);
  // Sends the difference now and waits for the scheduler's answer. An error: the wanted state is not in force; it is published as soon as
  // a scheduler answers. Any thread but the loop's, with no mutex held that a step of the loop takes.
  Result<void> publish();

 private:
  using ByUid = std::map<std::string, protocol::admin::PodRequest>;
  using Waiter = std::shared_ptr<std::promise<Result<void>>>;
  struct Difference {
    Pods pods;
    bool complete = false;  // everything, and that it is everything
  };
  // A difference on its way, in as many requests as it takes; one at a time.
  struct Round {
    Difference difference;
    size_t sent = 0;  // pods; all are answered before the next are sent
    bool was_connected = false, is_second = false;
    std::vector<Waiter> waiters;
  };
  // On the loop's thread.
  void begin_round();
  void send_difference();
  void disconnect();
  void send_part();
  void send_rest();
  void take_answer();
  void end_round(const Result<void>& done);
  void note(const Result<void>& done);
  Difference difference();
  void note_published(const Difference& sent);

  LoopThread& loop_;
  const std::string runtime_dir_;
  Mutex mutex_;  // nothing waits with it held
  ByUid wanted_ GUARDED_BY(mutex_);
  std::set<std::string> gone_ GUARDED_BY(mutex_);  // no longer wanted, and not known to be taken
  bool is_set_ GUARDED_BY(mutex_) = false;
  bool complete_ GUARDED_BY(mutex_) = false;
  // Of the loop's thread.
  std::optional<protocol::admin::AdminConnection> scheduler_;
  ByUid published_;  // what this connection's scheduler has taken
  bool published_complete_ = false;
  std::optional<Round> round_;
  std::vector<Waiter> waiters_;  // for the next round
  bool again_ = false;           // another round is due when this one has ended
  std::chrono::milliseconds pause_;
  bool complained_ = false;
  std::optional<Watch> watch_;         // of the connection
  std::optional<Timer> retry_, late_;  // the next round is due; the scheduler did not answer in time
};

}  // namespace nvshare::kubernetes
