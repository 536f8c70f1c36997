#include "scheduler/viewers/status_writer.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "protocol/admin.h"

namespace nvshare::scheduler {
namespace {

StatusWriter::Text text_of(const Error& error) { return std::make_shared<const std::string>(protocol::admin::encode_error(error.text)); }

}  // namespace

StatusWriter::StatusWriter(EventLoop& loop, SharedReports& reports)
    : loop_(loop), reports_(reports), answer_timer_(loop, [this] { answer_next(); }) {
  // Signals are the loop's business: the thread inherits this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { write(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  reports_.hand_former_to([this](SharedReports::Report report) {
    {
      Lock lock(mutex_);
      former_.push_back(std::move(report));
    }
    changed_.notify_one();
  });
}

StatusWriter::~StatusWriter() {
  reports_.hand_former_to({});
  {
    Lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StatusWriter::ask(const Wish& wish, Done done) {
  waiting_.push_back({wish, std::move(done)});
  if (!served_.empty() || waiting_.size() > 1) return;  // a report is being made or written, or is about to be made
  loop_.post([this] { begin(); });                      // so that those that have asked already share it
}

void StatusWriter::begin() {
  if (waiting_.empty() || !served_.empty()) return;
  answer_by_what_is_written();
  if (waiting_.empty()) return;
  served_ = std::exchange(waiting_, {});
  Wish all = served_.front().wish;
  for (const Asker& asker : served_) {
    all.age_max_ns = std::min(all.age_max_ns, asker.wish.age_max_ns);
    all.changes_min = std::max(all.changes_min, asker.wish.changes_min);
  }
  reports_.ask(all.age_max_ns, all.changes_min, [this](const Result<SharedReports::Report>& report) { take(report); });
}

void StatusWriter::take(const Result<SharedReports::Report>& report) {
  std::set<Form> forms;
  for (const Asker& asker : served_) forms.insert(form_of(asker.wish));
  if (!report) {
    Texts texts;
    for (const Form& form : forms) texts[form] = text_of(report.error());
    return written(texts);
  }
  {
    Lock lock(mutex_);
    report_ = *report;
    forms_ = std::move(forms);
  }
  changed_.notify_one();
}

// Those that want all of it and need not have it newer.
void StatusWriter::answer_by_what_is_written() {
  for (Asker& asker : std::exchange(waiting_, {})) {  // who is answered may ask again
    const Wish& wish = asker.wish;
    Text text = wish.since == 0 ? reports_.written(wish.age_max_ns, wish.changes_min, wish.brief) : nullptr;
    if (text) {
      answer(std::move(asker), std::move(text));
    } else {
      waiting_.push_back(std::move(asker));
    }
  }
}

void StatusWriter::written(const Texts& texts) {
  for (Asker& asker : std::exchange(served_, {})) {
    const Form form = form_of(asker.wish);
    answer(std::move(asker), texts.at(form));
  }
  reports_.note_what_is_written();
  begin();
}

void StatusWriter::answer(Asker asker, Text text) {
  if (!asker.wish.shares()) return asker.done(text);
  answers_.push_back({std::move(asker.done), std::move(text)});
  if (answers_.size() == 1) answer_timer_.arm(monotonic_ns());
}

void StatusWriter::answer_next() {
  const Answer next = std::move(answers_.front());
  answers_.pop_front();
  if (!answers_.empty()) answer_timer_.arm(monotonic_ns() + kBetweenAnswersNs);
  next.done(next.text);
}

void StatusWriter::write() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return ends_ || report_ || !former_.empty(); });
    if (ends_) return;
    std::vector<SharedReports::Report> former = std::exchange(former_, {});
    SharedReports::Report report = std::exchange(report_, nullptr);
    const std::set<Form> forms = std::exchange(forms_, {});
    lock.unlock();
    former.clear();
    Texts texts;
    for (const Form& form : forms) texts[form] = report->text(form.first, form.second);
    if (report) loop_.post([this, texts = std::move(texts)] { written(texts); });
    report.reset();
    lock.lock();
  }
}

}  // namespace nvshare::scheduler
