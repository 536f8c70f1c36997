#include "scheduler/shared_reports.h"

#include <exception>
#include <utility>

#include "protocol/report_changes.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kTimeOfOthers = 4;  // for one of a report's parts

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
  Lock lock(mutex_);
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
  const int64_t now = monotonic_ns();
  return made(look_(), now);
}

SharedReports::Report SharedReports::in_parts(bool begins, int64_t age_max_ns, uint64_t changes_min) {
  if (begins) {
    if (serves(latest_, age_max_ns, changes_min)) return latest_;
    parts_begun_at_ = part_ended_at_ = monotonic_ns();
  }
  const int64_t began = monotonic_ns(), until = began + (began - part_ended_at_) / kTimeOfOthers;
  std::optional<protocol::admin::StatusReport> report = look_in_parts_(begins);
  while (!report && monotonic_ns() < until) report = look_in_parts_(false);
  part_ended_at_ = monotonic_ns();
  return report ? made(std::move(*report), parts_begun_at_) : nullptr;
}

// What was made at once while this one was made in parts is newer, and stays the latest.
SharedReports::Report SharedReports::made(protocol::admin::StatusReport report, int64_t taken_at) {
  Report made = std::make_shared<const SharedReport>(std::move(report), taken_at);
  if (latest_ && latest_->taken_at() > taken_at) return made;
  note_what_is_written();
  replace(latest_, made);
  return made;
}

void SharedReports::note_what_is_written() {
  if (latest_ != written_ && latest_ && latest_->is_written()) replace(written_, latest_);
}

void SharedReports::replace(Report& report, Report by) {
  Report former = std::exchange(report, std::move(by));
  if (former && take_former_) take_former_(std::move(former));
}

SharedReports::Report SharedReports::written(int64_t age_max_ns, uint64_t changes_min) {
  note_what_is_written();
  return serves(written_, age_max_ns, changes_min) ? written_ : nullptr;
}

}  // namespace nvshare::scheduler
