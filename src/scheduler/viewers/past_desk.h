// Where threads that are not the loop's get what the scheduler remembers of its last minute (trace_ring.h), as lines of a trace. The loop
// copies it, in parts; the text is made by the thread that asks. At most one a second is made, whoever asks. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "loop/event_loop.h"
#include "scheduler/trace_ring.h"

namespace nvshare::scheduler {

class PastDesk : public std::enable_shared_from_this<PastDesk> {
 public:
  static constexpr size_t kClientsMax = 300;  // with more of them it costs the loop too much: nothing is told
  static constexpr size_t kPartsMax = 40;     // and with more that happened
  using Text = std::shared_ptr<const std::string>;
  // What follows `after`, on the loop's thread. Nullopt: there are too many clients.
  using Read = std::function<std::optional<TraceRing::Copied>(uint64_t after)>;

  static std::shared_ptr<PastDesk> open(EventLoop& loop, Read read) {
    return std::shared_ptr<PastDesk>(new PastDesk(loop, std::move(read)));
  }

  // Not from the loop's thread; waits a second at most for each part. Empty: it is not told. Null: the loop was too busy, or the desk is
  // closed.
  Text lines();

  // Nothing is asked for from then on. From the loop's thread, before what `read` needs goes away.
  void close();

 private:
  PastDesk(EventLoop& loop, Read read) : loop_(loop), read_(std::move(read)) {}

  struct Answer {
    bool is_there = false;
    std::optional<TraceRing::Copied> copied;
  };
  // False: no answer came.
  bool ask(uint64_t after, std::optional<TraceRing::Copied>& copied);
  void answer(uint64_t after, const std::shared_ptr<Answer>& answer);  // on the loop's thread

  EventLoop& loop_;
  Mutex asking_;  // one thread asks, others wait for its text; taken before mutex_
  Text text_ GUARDED_BY(asking_);
  int64_t made_at_ GUARDED_BY(asking_) = 0;
  Mutex mutex_;  // whoever holds it waits for nothing else
  Condition changed_;
  Read read_ GUARDED_BY(mutex_);  // empty: closed
};

}  // namespace nvshare::scheduler
