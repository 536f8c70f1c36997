// Mutexes that clang's thread-safety analysis knows (thread_annotations.h): the only ones in src/, which tools/lint.py sees to. They need
// nothing of the C++ library, for libnvshare.so has them, too: no exceptions, no static constructors; times are CLOCK_MONOTONIC's, in
// nanoseconds, as std::chrono::steady_clock has them.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/thread_annotations.h"

namespace nvshare {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() ACQUIRE() { pthread_mutex_lock(&mutex_); }
  bool try_lock() TRY_ACQUIRE(true) { return pthread_mutex_trylock(&mutex_) == 0; }
  void unlock() RELEASE() { pthread_mutex_unlock(&mutex_); }
  // In a forked child, whose other threads are gone, every lock starts anew.
  void reset_after_fork() { mutex_ = PTHREAD_MUTEX_INITIALIZER; }
  pthread_mutex_t* native() { return &mutex_; }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() RELEASE() {
    if (held_) mutex_.unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  void unlock() RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// While one of these lives its thread is not cancelled (pthread_cancel), but afterwards: it would take the locks that it holds along.
class NotCancelled {
 public:
  NotCancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// A condition with deadlines on CLOCK_MONOTONIC. Every use is with the one mutex given to wait. May wake without cause, but where there is
// a predicate: that is a lambda with REQUIRES(mutex), which clang looks at by itself. No thread is cancelled in it.
class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  void wait(Mutex& mutex) REQUIRES(mutex);
  // False when the deadline has passed.
  bool wait_until(Mutex& mutex, int64_t deadline_ns) REQUIRES(mutex);
  void notify_all() {
    prepare();
    pthread_cond_broadcast(&condition_);
  }
  void notify_one() {
    prepare();
    pthread_cond_signal(&condition_);
  }

  template <typename Predicate>
  void wait(Mutex& mutex, const Predicate& is_true) REQUIRES(mutex) {
    while (!held(is_true)) wait(mutex);
  }
  // What the predicate says at last.
  template <typename Predicate>
  bool wait_until(Mutex& mutex, int64_t deadline_ns, const Predicate& is_true) REQUIRES(mutex) {
    while (!held(is_true)) {
      if (!wait_until(mutex, deadline_ns)) return held(is_true);
    }
    return true;
  }
  // At most so long from now on; less than 292 years.
  template <typename Predicate>
  bool wait_for(Mutex& mutex, int64_t duration_ns, const Predicate& is_true) REQUIRES(mutex) {
    return wait_until(mutex, deadline_in(duration_ns), is_true);
  }

 private:
  // By the caller's name of the mutex, which only the caller knows to be the one that waits.
  template <typename Predicate>
  static bool held(const Predicate& is_true) NO_THREAD_SAFETY_ANALYSIS {
    return is_true();
  }
  static int64_t deadline_in(int64_t duration_ns);
  void prepare();
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
  std::atomic<int> prepared_{0};
};

}  // namespace nvshare
