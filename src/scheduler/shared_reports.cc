#include "scheduler/shared_reports.h"

#include <exception>
#include <utility>

#include "protocol/report_changes.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {
namespace {

SharedReport::Text text_of(const protocol::admin::StatusReport& report, uint64_t since) {
  namespace admin = protocol::admin;
  try {
    return std::make_shared<const std::string>(since == 0 ? admin::encode(report) : admin::encode(admin::news_since(report, since)));
  } catch (const std::exception& problem) {
    return std::make_shared<const std::string>(admin::encode_error(std::string("an error of the scheduler's own: ") + problem.what()));
  }
}

}  // namespace

std::shared_ptr<SharedReport::Entry> SharedReport::entry(uint64_t& since) const {
  if (since > report_.changes) since = 0;
  std::lock_guard lock(mutex_);
  if (texts_.size() >= kTextsMax && !texts_.contains(since)) since = 0;
  std::shared_ptr<Entry>& found = texts_[since];
  if (!found) found = std::make_shared<Entry>();
  return found;
}

SharedReport::Text SharedReport::text(uint64_t since) const {
  const std::shared_ptr<Entry> found = entry(since);
  std::call_once(found->once, [&] { found->text = text_of(report_, since); });
  if (since == 0) is_written_ = true;
  return found->text;
}

bool SharedReports::serves(const Report& report, int64_t age_max_ns, uint64_t changes_min) const {
  return report && report->report().changes >= changes_min && monotonic_ns() - report->taken_at() <= age_max_ns;
}

SharedReports::Report SharedReports::fresh(int64_t age_max_ns, uint64_t changes_min) {
  if (serves(latest_, age_max_ns, changes_min)) return latest_;
  if (latest_ && latest_->is_written()) written_ = latest_;
  const int64_t now = monotonic_ns();
  return latest_ = std::make_shared<const SharedReport>(look_(), now);
}

SharedReports::Report SharedReports::written(int64_t age_max_ns, uint64_t changes_min) {
  if (latest_ && latest_->is_written()) written_ = latest_;
  return serves(written_, age_max_ns, changes_min) ? written_ : nullptr;
}

}  // namespace nvshare::scheduler
