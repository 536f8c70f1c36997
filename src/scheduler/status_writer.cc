#include "scheduler/status_writer.h"

#include <signal.h>

#include <exception>
#include <utility>

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

void StatusWriter::ask(Done done) {
  waiting_.push_back(std::move(done));
  if (!served_.empty() || waiting_.size() > 1) return;  // a report is being written, or is about to be made
  loop_.post([this] { begin(); });                      // so that those that have asked already share it
}

void StatusWriter::begin() {
  if (waiting_.empty() || !served_.empty()) return;
  served_ = std::exchange(waiting_, {});
  try {
    protocol::admin::StatusReport report = look_();
    std::lock_guard lock(mutex_);
    report_ = std::move(report);
  } catch (const std::exception& problem) {
    return written(failed(problem));
  }
  changed_.notify_one();
}

void StatusWriter::written(const Text& text) {
  for (const Done& done : std::exchange(served_, {})) done(text);
  begin();
}

StatusWriter::Text StatusWriter::text_of(const protocol::admin::StatusReport& report) const {
  try {
    return std::make_shared<const std::string>(protocol::admin::encode(report));
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
    lock.unlock();
    loop_.post([this, text = text_of(report)] { written(text); });
    lock.lock();
  }
}

}  // namespace nvshare::scheduler
