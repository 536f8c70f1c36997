// Locks for code inside guest processes: no exceptions, no static constructors, monotonic timeouts.
//
// Lock order in libnvshare.so (take from left to right, never the other way; no lock is held while waiting for the scheduler or the GPU):
//   PeerAccess -> Contexts -> Ipc, ProgramVmm -> Blocks, DriverMemory -> Turns -> Client -> Arena -> log
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/thread_annotations.h"

namespace nvshare::interposer {

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

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

// A condition with deadlines on CLOCK_MONOTONIC. Every use is with the one mutex given to wait.
class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  void wait(Mutex& mutex) REQUIRES(mutex) {
    prepare();
    pthread_cond_wait(&condition_, mutex.native());
  }
  // False when the deadline has passed.
  bool wait_until(Mutex& mutex, int64_t deadline_ns) REQUIRES(mutex);
  void notify_all() {
    prepare();
    pthread_cond_broadcast(&condition_);
  }

 private:
  void prepare();
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
  std::atomic<int> prepared_{0};
};

// Sleeps while *word == expected, at most timeout_ns (negative: for ever). May wake without cause.
void futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns);
void futex_wake_all(const std::atomic<uint32_t>* word);

void sleep_ns(int64_t duration_ns);

// Starts a detached-at-exit thread with all signals blocked. False on failure.
bool start_thread(pthread_t* thread, void* (*body)(void*), void* argument, const char* name);

}  // namespace nvshare::interposer
