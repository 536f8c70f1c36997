#include "scheduler/report_desk.h"

#include <chrono>
#include <utility>

namespace nvshare::scheduler {
namespace {

constexpr auto kReportPatience = std::chrono::seconds(1);

}  // namespace

ReportDesk::Report ReportDesk::fresh(int64_t age_max_ns, uint64_t changes_min) {
  std::unique_lock lock(mutex_);
  if (look_ && report_ && report_->changes >= changes_min && monotonic_ns() - taken_at_ < age_max_ns) return report_;
  const int64_t asked_at = monotonic_ns();
  if (look_ && !std::exchange(wanted_, true)) {
    loop_.post([desk = shared_from_this()] { desk->make_report(); });
  }
  // Also what is older than age_max_ns by the time that this thread runs again is new enough.
  const auto is_new = [&] { return report_ && taken_at_ >= asked_at; };
  changed_.wait_for(lock, kReportPatience, [&] { return !look_ || is_new(); });
  return look_ && is_new() ? report_ : nullptr;
}

void ReportDesk::make_report() {
  Look look;
  {
    std::lock_guard lock(mutex_);
    look = look_;
    wanted_ = false;  // also where the report fails: who comes next asks anew
  }
  if (!look) return;
  auto report = std::make_shared<const protocol::admin::StatusReport>(look());
  {
    std::lock_guard lock(mutex_);
    report_ = std::move(report);
    taken_at_ = monotonic_ns();
  }
  changed_.notify_all();
}

void ReportDesk::close() {
  {
    std::lock_guard lock(mutex_);
    look_ = nullptr;
  }
  changed_.notify_all();
}

}  // namespace nvshare::scheduler
