#include "base/mutex.h"

#include <errno.h>

#include <limits>

namespace nvshare {

void Condition::prepare() {
  if (prepared_.load(std::memory_order_acquire) == 2) return;
  int expected = 0;
  if (prepared_.compare_exchange_strong(expected, 1, std::memory_order_acq_rel)) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&condition_, &attributes);
    pthread_condattr_destroy(&attributes);
    prepared_.store(2, std::memory_order_release);
    return;
  }
  const NotCancelled whole;
  const timespec moment{0, 1000};
  while (prepared_.load(std::memory_order_acquire) != 2) nanosleep(&moment, nullptr);
}

void Condition::wait(Mutex& mutex) {
  const NotCancelled whole;
  prepare();
  pthread_cond_wait(&condition_, mutex.native());
}

bool Condition::wait_until(Mutex& mutex, int64_t deadline_ns) {
  const NotCancelled whole;
  prepare();
  timespec deadline{deadline_ns / 1'000'000'000, deadline_ns % 1'000'000'000};
  return pthread_cond_timedwait(&condition_, mutex.native(), &deadline) != ETIMEDOUT;
}

int64_t Condition::deadline_in(int64_t duration_ns) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  const int64_t most = std::numeric_limits<int64_t>::max() - now;
  return now + (duration_ns < most ? duration_ns : most);
}

}  // namespace nvshare
