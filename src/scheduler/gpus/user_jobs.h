// Jobs that wait for users' processes: those of one user one after another, those of several at the same time, so that nobody who makes
// his own wait holds up others'. Thread-safe.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace nvshare::scheduler {

class UserJobs {
 public:
  explicit UserJobs(size_t threads_most) : threads_most_(threads_most) {}
  // Drops those that have not begun, and waits for the others.
  ~UserJobs() { end(); }
  UserJobs(const UserJobs&) = delete;
  UserJobs& operator=(const UserJobs&) = delete;

  void later(uid_t user, std::function<void()> job);
  void finish();  // waits for all of them
  void end();

 private:
  void work();
  std::map<uid_t, std::deque<std::function<void()>>>::iterator next() REQUIRES(mutex_);

  const size_t threads_most_;
  Mutex mutex_;
  Condition wake_;
  Condition done_;
  std::map<uid_t, std::deque<std::function<void()>>> waiting_ GUARDED_BY(mutex_);
  std::set<uid_t> busy_ GUARDED_BY(mutex_);  // users with a job that runs
  size_t idle_ GUARDED_BY(mutex_) = 0;       // threads that wait, or have just been started
  bool ends_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // as many as there were users with a job at a time; of the thread that calls later() and end()
};

}  // namespace nvshare::scheduler
