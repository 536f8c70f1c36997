#include "scheduler/status_writer.h"

#include <signal.h>

#include <exception>
#include <utility>

#include "protocol/report_changes.h"

namespace nvshare::scheduler {
namespace {

StatusWriter::Text failed(const std::exception& problem) {
  return std::make_shared<const std::string>(
      protocol::admin::encode_error(std::string("an error of the scheduler's own: ") + problem.what()));
}

}  // namespace

StatusWriter::StatusWriter(EventLoop& loop, Look look) : loop_(loop), look_(std::move(look)) {
  // Signals are the loop's business: the thread inherits this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { write(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StatusWriter::~StatusWriter() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StatusWriter::ask(uint64_t since, Done done) {
  waiting_.push_back({since, std::move(done)});
  if (!served_.empty() || waiting_.size() > 1) return;  // a report is being written, or is about to be made
  loop_.post([this] { begin(); });                      // so that those that have asked already share it
}

void StatusWriter::begin() {
  if (waiting_.empty() || !served_.empty()) return;
  served_ = std::exchange(waiting_, {});
  std::set<uint64_t> sinces;
  for (const Asker& asker : served_) sinces.insert(asker.since);
  try {
    protocol::admin::StatusReport report = look_();
    std::lock_guard lock(mutex_);
    report_ = std::move(report);
    sinces_ = std::move(sinces);
  } catch (const std::exception& problem) {
    Texts texts;
    for (const uint64_t since : sinces) texts[since] = failed(problem);
    return written(texts);
  }
  changed_.notify_one();
}

void StatusWriter::written(const Texts& texts) {
  for (const Asker& asker : std::exchange(served_, {})) asker.done(texts.at(asker.since));
  begin();
}

StatusWriter::Text StatusWriter::text_of(const protocol::admin::StatusReport& report, uint64_t since) {
  namespace admin = protocol::admin;
  try {
    return std::make_shared<const std::string>(since == 0 ? admin::encode(report) : admin::encode(admin::news_since(report, since)));
  } catch (const std::exception& problem) {
    return failed(problem);
  }
}

void StatusWriter::write() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || report_; });
    if (ends_) return;
    const protocol::admin::StatusReport report = *std::exchange(report_, std::nullopt);
    const std::set<uint64_t> sinces = std::exchange(sinces_, {});
    lock.unlock();
    Texts texts;
    for (const uint64_t since : sinces) texts[since] = text_of(report, since);
    loop_.post([this, texts = std::move(texts)] { written(texts); });
    lock.lock();
  }
}

}  // namespace nvshare::scheduler
