#include "scheduler/viewers/report_desk.h"

#include <algorithm>
#include <utility>

#include "scheduler/log.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kReportPatienceNs = 1'000'000'000;

}  // namespace

ReportDesk::Report ReportDesk::fresh(int64_t age_max_ns, uint64_t changes_min) {
  Lock lock(mutex_);
  if (look_ && report_ && report_->report().changes >= changes_min && monotonic_ns() - report_->taken_at() < age_max_ns) return report_;
  age_max_ns_ = wanted_ ? std::min(age_max_ns_, age_max_ns) : age_max_ns;
  changes_min_ = wanted_ ? std::max(changes_min_, changes_min) : changes_min;
  if (look_ && !std::exchange(wanted_, true)) {
    ++wishes_;
    loop_.post([desk = shared_from_this()] { desk->ask_for_report(); });
  }
  // Also what is older than age_max_ns by the time that this thread runs again is new enough.
  const auto is_granted = [this, mine = wishes_]() REQUIRES(mutex_) { return granted_ >= mine; };
  changed_.wait_for(mutex_, kReportPatienceNs, [&]() REQUIRES(mutex_) { return !look_ || is_granted(); });
  return look_ && is_granted() ? report_ : nullptr;
}

void ReportDesk::changed(uint64_t changes, OnGpus on_gpus) {
  Lock lock(mutex_);
  on_gpus_.swap(on_gpus);
  changes_.store(changes, std::memory_order_release);
}

uint64_t ReportDesk::changes_on(const std::vector<std::string_view>& gpus) const {
  Lock lock(mutex_);
  uint64_t latest = 0;
  for (const std::string_view gpu : gpus) {
    const auto at = on_gpus_.find(gpu);
    latest = std::max(latest, at != on_gpus_.end() ? at->second : changes());
  }
  return latest;
}

void ReportDesk::ask_for_report() {
  Look look;
  int64_t age_max_ns = 0;
  uint64_t changes_min = 0, wish = 0;
  {
    Lock lock(mutex_);
    look = look_;
    age_max_ns = age_max_ns_;
    changes_min = changes_min_;
    wish = wishes_;
    wanted_ = false;  // also where the report fails: the next viewer asks anew
  }
  if (!look) return;
  look(age_max_ns, changes_min, [desk = shared_from_this(), wish](const Result<Report>& report) { desk->take(report, wish); });
}

void ReportDesk::take(const Result<Report>& report, uint64_t wish) {
  if (!report) spdlog::error("no report for viewers: {}", report.error().text);
  {
    Lock lock(mutex_);
    report_ = report ? *report : nullptr;
    granted_ = wish;
  }
  changed_.notify_all();
}

void ReportDesk::close() {
  {
    Lock lock(mutex_);
    look_ = nullptr;
  }
  changed_.notify_all();
}

}  // namespace nvshare::scheduler
