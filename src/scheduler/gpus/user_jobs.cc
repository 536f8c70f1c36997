#include "scheduler/gpus/user_jobs.h"

#include <signal.h>

#include <exception>
#include <system_error>
#include <utility>

#include "scheduler/log.h"

namespace nvshare::scheduler {

void UserJobs::later(uid_t user, std::function<void()> job) {
  bool needs_thread = false;
  {
    const Lock lock(mutex_);
    if (ends_) return;
    waiting_[user].push_back(std::move(job));
    size_t ready = 0;  // users of whom one may begin
    for (const auto& [whose, jobs] : waiting_) ready += busy_.contains(whose) ? 0 : 1;
    needs_thread = ready > idle_ && threads_.size() < threads_most_;
    if (needs_thread) ++idle_;  // soon
  }
  wake_.notify_all();
  if (!needs_thread) return;
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& problem) {
    {
      const Lock lock(mutex_);
      --idle_;
    }
    if (threads_.empty()) throw;
    spdlog::warn("MPS: no further thread: {}; users wait for each other's daemons", problem.what());
  }
}

void UserJobs::finish() {
  const Lock lock(mutex_);
  done_.wait(mutex_, [this]() REQUIRES(mutex_) { return waiting_.empty() && busy_.empty(); });
}

void UserJobs::end() {
  {
    const Lock lock(mutex_);
    ends_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::map<uid_t, std::deque<std::function<void()>>>::iterator UserJobs::next() {
  auto at = waiting_.begin();
  while (at != waiting_.end() && busy_.contains(at->first)) ++at;
  return at;
}

void UserJobs::work() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the loop's
  Lock lock(mutex_);
  while (true) {
    wake_.wait(mutex_, [this]() REQUIRES(mutex_) { return ends_ || next() != waiting_.end(); });
    --idle_;
    if (ends_) return;
    const auto at = next();
    const uid_t user = at->first;
    std::function<void()> job = std::move(at->second.front());
    at->second.pop_front();
    if (at->second.empty()) waiting_.erase(at);
    busy_.insert(user);
    lock.unlock();
    try {
      job();
    } catch (const std::exception& problem) {
      spdlog::warn("MPS: {}", problem.what());
    }
    job = nullptr;
    lock.lock();
    busy_.erase(user);
    ++idle_;
    if (waiting_.empty() && busy_.empty()) done_.notify_all();
  }
}

}  // namespace nvshare::scheduler
