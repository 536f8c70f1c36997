// Mutexes (base/mutex.h), and what else threads need inside guest processes: time, sleep, a start without signals. The lock order stands in
// README.md.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/mutex.h"

namespace nvshare::interposer {

// Tells clang that a mutex is held which it knows by another name: the caller's, of the same object.
inline void held([[maybe_unused]] const Mutex& mutex) NVSHARE_THREAD_ANNOTATION(assert_capability(mutex)) {}

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// Sleeps while *word == expected, at most timeout_ns (negative: for ever). May wake without cause.
void futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns);
void futex_wake_all(const std::atomic<uint32_t>* word);

void sleep_ns(int64_t duration_ns);

// Starts a detached-at-exit thread with all signals blocked. False on failure.
bool start_thread(pthread_t* thread, void* (*body)(void*), void* argument, const char* name);

}  // namespace nvshare::interposer
