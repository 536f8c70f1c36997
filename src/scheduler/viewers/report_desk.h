// Where threads that are not the loop's get the scheduler's report, as an admin's `status` has it: they leave a wish, the loop gives one
// report to all that wait, one that others have where that is new enough, and never waits for them. Any thread but the loop's may ask;
// thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "loop/event_loop.h"
#include "scheduler/viewers/shared_reports.h"

namespace nvshare::scheduler {

class ReportDesk : public std::enable_shared_from_this<ReportDesk> {
 public:
  using Report = SharedReports::Report;
  using Look =
      std::function<void(int64_t age_max_ns, uint64_t changes_min, SharedReports::Then)>;  // SharedReports::ask, on the loop's thread

  static std::shared_ptr<ReportDesk> open(EventLoop& loop, Look look) {
    return std::shared_ptr<ReportDesk>(new ReportDesk(loop, std::move(look)));
  }

  // A report that was at most `age_max_ns` old at the call, or later, and whose `changes` are at least `changes_min`; waits for it a second
  // at most. Null: the loop was too busy, or the desk is closed.
  Report fresh(int64_t age_max_ns, uint64_t changes_min = 0);

  // admin::StatusReport::changes, as they are now, and the last of them on each GPU, by its UUID. A GPU that is missing may have changed.
  using OnGpus = std::map<std::string, uint64_t, std::less<>>;
  void changed(uint64_t changes, OnGpus on_gpus);
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  uint64_t changes_on(const std::vector<std::string_view>& gpus) const;  // the latest of theirs; 0: of none

  // From then on no report is asked for, and who waits for one has none. From the loop's thread, before what `look` needs goes away.
  void close();

 private:
  ReportDesk(EventLoop& loop, Look look) : loop_(loop), look_(std::move(look)) {}
  // On the loop's thread.
  void ask_for_report();
  void take(const Result<Report>& report, uint64_t wish);

  EventLoop& loop_;
  std::atomic<uint64_t> changes_ = 0;
  // Whoever holds it waits for nothing else; the loop holds it only to take or put a report.
  mutable Mutex mutex_;
  Condition changed_;
  Look look_ GUARDED_BY(mutex_);  // empty: closed
  Report report_ GUARDED_BY(mutex_);
  uint64_t wishes_ GUARDED_BY(mutex_) = 0;   // that the loop was asked for
  uint64_t granted_ GUARDED_BY(mutex_) = 0;  // of them
  bool wanted_ GUARDED_BY(mutex_) = false;   // the last one is not begun: more may join it
  OnGpus on_gpus_ GUARDED_BY(mutex_);
  int64_t age_max_ns_ GUARDED_BY(mutex_) = 0;
  uint64_t changes_min_ GUARDED_BY(mutex_) = 0;
};

}  // namespace nvshare::scheduler
