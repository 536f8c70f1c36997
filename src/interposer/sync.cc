#include "interposer/sync.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace nvshare::interposer {

void futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns) {
  timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? nullptr : &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }

void sleep_ns(int64_t duration_ns) {
  const NotCancelled whole;
  timespec duration{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  nanosleep(&duration, nullptr);
}

bool start_thread(pthread_t* thread, void* (*body)(void*), void* argument, const char* name) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(thread, nullptr, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) return false;
  pthread_setname_np(*thread, name);
  return true;
}

}  // namespace nvshare::interposer
