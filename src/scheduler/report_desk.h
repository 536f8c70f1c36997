// Where threads that are not the loop's get the scheduler's report, as an admin's `status` has it: they leave a wish, the loop makes one
// report for all that wait, and never waits for them. Any thread but the loop's may ask; thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "protocol/admin.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {

class ReportDesk : public std::enable_shared_from_this<ReportDesk> {
 public:
  using Report = std::shared_ptr<const protocol::admin::StatusReport>;
  using Look = std::function<protocol::admin::StatusReport()>;  // on the loop's thread

  static std::shared_ptr<ReportDesk> open(EventLoop& loop, Look look) {
    return std::shared_ptr<ReportDesk>(new ReportDesk(loop, std::move(look)));
  }

  // A report that is at most `age_max_ns` old and whose `changes` are at least `changes_min`, or that was made since the call; waits for it
  // a second at most. Null: the loop was too busy, or the desk is closed.
  Report fresh(int64_t age_max_ns, uint64_t changes_min = 0);

  // admin::StatusReport::changes, as they are now.
  void changed(uint64_t changes) { changes_.store(changes, std::memory_order_release); }
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

  // From then on no report is asked for, and who waits for one has none. From the loop's thread, before what `look` needs goes away.
  void close();

 private:
  ReportDesk(EventLoop& loop, Look look) : loop_(loop), look_(std::move(look)) {}
  void make_report();  // on the loop's thread

  EventLoop& loop_;
  std::atomic<uint64_t> changes_ = 0;
  // Whoever holds it waits for nothing else; the loop holds it only to take or put a report.
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  Look look_;  // empty: closed
  Report report_;
  int64_t taken_at_ = 0;
  bool wanted_ = false;
};

}  // namespace nvshare::scheduler
