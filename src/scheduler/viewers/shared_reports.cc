#include "scheduler/viewers/shared_reports.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "loop/event_loop.h"
#include "protocol/report_changes.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kTimeOfOthers = 4;  // for one of a report's parts
constexpr int64_t kTurnNs = 200'000;  // but so long it goes on: many parts are short, and each turn costs as much as some

SharedReport::Text text_of(const protocol::admin::StatusReport& report, uint64_t since, bool brief) {
  namespace admin = protocol::admin;
  try {
    return std::make_shared<const std::string>(since == 0 ? admin::encode(report, brief)
                                                          : admin::encode(admin::news_since(report, since), brief));
  } catch (const std::exception& problem) {
    return std::make_shared<const std::string>(admin::encode_error(std::string("an error of the scheduler's own: ") + problem.what()));
  }
}

}  // namespace

std::shared_ptr<SharedReport::Entry> SharedReport::entry(Form& form) const {
  if (form.first > report_.changes) form.first = 0;
  Lock lock(mutex_);
  if (texts_.size() >= kTextsMax && !texts_.contains(form)) form.first = 0;
  std::shared_ptr<Entry>& found = texts_[form];
  if (!found) found = std::make_shared<Entry>();
  return found;
}

SharedReport::Text SharedReport::text(uint64_t since, bool brief) const {
  Form form{since, brief};
  const std::shared_ptr<Entry> found = entry(form);
  std::call_once(found->once, [&] { found->text = text_of(report_, form.first, brief); });
  if (form.first == 0) (brief ? is_written_in_brief_ : is_written_) = true;
  return found->text;
}

void SharedReport::has_text(bool brief, std::string text) const {
  Form form{0, brief};
  const std::shared_ptr<Entry> found = entry(form);
  std::call_once(found->once, [&] { found->text = std::make_shared<const std::string>(std::move(text)); });
  (brief ? is_written_in_brief_ : is_written_) = true;
}

SharedReport::Text SharedReport::whole_if_written(bool brief) const {
  if (brief && is_written_in_brief_) return text(0, true);
  return is_written_ ? text(0) : nullptr;
}

bool SharedReports::serves(const Report& report, int64_t age_max_ns, uint64_t changes_min) {
  return report && report->report().changes >= changes_min && monotonic_ns() - report->taken_at() <= age_max_ns;
}

void SharedReports::ask(int64_t age_max_ns, uint64_t changes_min, Then then) {
  if (serves(latest_, age_max_ns, changes_min)) return then(latest_);
  waiting_.push_back({age_max_ns, changes_min, std::move(then)});
  if (served_.empty() && waiting_.size() == 1) loop_.post([this] { begin(); });
}

void SharedReports::begin() {
  if (waiting_.empty() || !served_.empty()) return;
  served_ = std::exchange(waiting_, {});
  begun_at_ = part_ended_at_ = monotonic_ns();
  go_on(true);
}

void SharedReports::go_on(bool begins) {
  try {
    const int64_t began = monotonic_ns(), until = began + std::max((began - part_ended_at_) / kTimeOfOthers, kTurnNs);
    std::optional<protocol::admin::StatusReport> report = look_(begins);
    while (!report && monotonic_ns() < until) report = look_(false);
    part_ended_at_ = monotonic_ns();
    if (!report) return loop_.post([this] { go_on(false); });
    note_what_is_written();
    replace(latest_, std::make_shared<const SharedReport>(std::move(*report), begun_at_));
  } catch (const std::exception& problem) {
    return give(error_format("an error of the scheduler's own: %.200s", problem.what()));
  }
  give(latest_);
}

void SharedReports::give(const Result<Report>& report) {
  for (Asker& asker : std::exchange(served_, {})) {
    asker.then(report);
  }
  // Those that came meanwhile; the latest one may do for some by now.
  for (Asker& asker : std::exchange(waiting_, {})) ask(asker.age_max_ns, asker.changes_min, std::move(asker.then));
}

void SharedReports::note_what_is_written() {
  if (latest_ != written_ && latest_ && latest_->is_written()) replace(written_, latest_);
}

void SharedReports::replace(Report& report, Report by) {
  Report former = std::exchange(report, std::move(by));
  if (former && take_former_) take_former_(std::move(former));
}

SharedReport::Text SharedReports::written(int64_t age_max_ns, uint64_t changes_min, bool brief) {
  note_what_is_written();
  return serves(written_, age_max_ns, changes_min) ? written_->whole_if_written(brief) : nullptr;
}

}  // namespace nvshare::scheduler
