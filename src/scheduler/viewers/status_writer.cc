#include "scheduler/viewers/status_writer.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "protocol/admin.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kWrittenAtOnce = 1000, kTenantsWrittenAtOnce = 500;
constexpr std::chrono::milliseconds kUntilMemory{10};
constexpr size_t kRoomPart = 16;  // of a text is left, as the next one may be longer
// About, of a client and its tenant: so much room the first text begins with, as growing took longer than writing it.
constexpr size_t kBytesOfClient = 3000, kBytesInBrief = 1400;

StatusWriter::Text text_of(const Error& error) { return std::make_shared<const std::string>(protocol::admin::encode_error(error.text)); }

}  // namespace

StatusWriter::StatusWriter(EventLoop& loop, SharedReports& reports)
    : loop_(loop),
      reports_(reports),
      no_text_(text_of({"an error of the scheduler's own: there is no memory for the report's text"})),
      answer_timer_(loop, [this] { answer_next(); }) {
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
  awaits_report_ = true;
  reports_.ask(all.age_max_ns, all.changes_min, [this](const Result<SharedReports::Report>& report) { take(report); });
}

void StatusWriter::take(const Result<SharedReports::Report>& report) {
  awaits_report_ = false;
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
    began_last_ = number_;
    forms_ = std::move(forms);
    part_ = {};
  }
  changed_.notify_one();
}

void StatusWriter::made(const Clients* clients) {
  if (clients == nullptr) {
    whole_forms_.clear();
    for (const Asker& asker : served_) {
      if (awaits_report_ && asker.wish.since == 0) whole_forms_.insert(form_of(asker.wish));
    }
    told_ = told_tenants_ = 0;
    ++number_;
    Lock lock(mutex_);
    part_ = {};
    return;
  }
  if (whole_forms_.empty() || clients->size() < told_ + kWrittenAtOnce) return;
  told_ = clients->size();
  write_soon(*clients, {});
}

// The first ones at once, as the last clients come with them.
void StatusWriter::made(const Clients& clients, const Tenants& tenants, bool all) {
  if (whole_forms_.empty() || tenants.size() == told_tenants_) return;
  if (!all && told_tenants_ > 0 && tenants.size() < told_tenants_ + kTenantsWrittenAtOnce) return;
  told_tenants_ = tenants.size();
  write_soon(clients, tenants);
}

void StatusWriter::write_soon(const Clients& clients, const Tenants& tenants) {
  {
    Lock lock(mutex_);
    if (report_) return;  // the thread is to write another one first
    part_ = {number_, clients, tenants, clients.capacity()};
    forms_ = whole_forms_;
  }
  changed_.notify_one();
}

void StatusWriter::keep(Kept kept) {
  if (kept.clients.empty() && kept.tenants.empty()) return;
  {
    Lock lock(mutex_);
    part_ = {};
    kept_.push_back(std::move(kept));
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
    const auto text = texts.find(form_of(asker.wish));
    answer(std::move(asker), text != texts.end() ? text->second : no_text_);
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

void StatusWriter::write_some(Begun& begun, const Part& part, const std::set<Form>& forms) {
  try {
    if (begun.report != part.report || begun.clients != part.clients.data()) begun.begin(part.report, part.clients.data());
    for (const Form& form : forms) {
      const size_t former = begun.bytes[form];
      const size_t bytes = former > 0 ? former + former / kRoomPart : part.clients_most * (form.second ? kBytesInBrief : kBytesOfClient);
      protocol::admin::StatusText& text = begun.texts.try_emplace(form, form.second, bytes).first->second;
      text.add(part.clients.subspan(text.clients()));
      text.add(part.tenants.subspan(text.tenants()));
    }
  } catch (...) {
    begun.begin(0, nullptr);  // it is written once the report is there, which says what is wrong
  }
}

StatusWriter::Text StatusWriter::finish(Begun& begun, const SharedReport& report, uint64_t number, const Form& form) {
  try {
    const auto text = begun.texts.find(form);
    if (text != begun.texts.end() && begun.report == number && begun.clients == report.report().clients.data())
      report.has_text(form.second, text->second.finish(report.report()));
  } catch (...) {
    begun.begin(0, nullptr);  // written anew
  }
  Text whole = report.text(form.first, form.second);
  if (form.first == 0) begun.bytes[form] = whole->size();
  return whole;
}

StatusWriter::Texts StatusWriter::write_all(Begun& begun, const SharedReport& report, uint64_t number, const std::set<Form>& forms) {
  Texts texts;
  for (const Form& form : forms) {
    try {
      texts[form] = finish(begun, report, number, form);
    } catch (...) {
      begun.begin(0, nullptr);  // written() has a text for it
    }
  }
  begun.begin(0, nullptr);
  return texts;
}

void StatusWriter::pass_on(const Texts& texts) {
  while (true) {
    try {
      return loop_.post([this, texts] { written(texts); });
    } catch (...) {
      std::this_thread::sleep_for(kUntilMemory);
    }
    Lock lock(mutex_);
    if (ends_) return;
  }
}

void StatusWriter::write() {
  Begun begun;
  Lock lock(mutex_);
  while (true) {
    changed_.wait(mutex_,
                  [this]() REQUIRES(mutex_) { return ends_ || report_ || !part_.clients.empty() || !former_.empty() || !kept_.empty(); });
    if (ends_) return;
    std::vector<SharedReports::Report> former = std::exchange(former_, {});
    std::vector<Kept> kept = std::exchange(kept_, {});
    const Part part = std::exchange(part_, {});
    SharedReports::Report report = std::exchange(report_, nullptr);
    const uint64_t number = began_last_;
    const std::set<Form> forms = std::exchange(forms_, {});
    lock.unlock();
    former.clear();
    kept.clear();
    if (!part.clients.empty()) write_some(begun, part, forms);
    if (report) pass_on(write_all(begun, *report, number, forms));
    report.reset();
    lock.lock();
  }
}

}  // namespace nvshare::scheduler
