#include "interposer/gate/gate.h"

#include <linux/membarrier.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

namespace nvshare::interposer {

constinit Gate program_gate;
thread_local constinit Mark* Gate::thread_mark_ = nullptr;

namespace {

constinit std::atomic<Mark*> all_marks{nullptr};
constinit std::atomic<uint64_t> threads_so_far{0};
pthread_once_t key_once = PTHREAD_ONCE_INIT;
pthread_key_t thread_end_key;
bool key_made = false;

// From a message's arrival until it has opened the gate, if it does and nothing keeps its reader.
constexpr int64_t kMessageSettle_ns = 40'000;

int membarrier(int command) { return static_cast<int>(syscall(SYS_membarrier, command, 0, 0)); }

}  // namespace

// A later destructor of the same thread may call CUDA again; it then takes a new mark.
void Gate::detach_thread(void* mark) {
  if (const auto ends = program_gate.thread_ends_.load(std::memory_order_acquire); ends != nullptr) {
    ends(static_cast<Mark*>(mark)->thread.load(std::memory_order_relaxed));
  }
  thread_mark_ = nullptr;
  static_cast<Mark*>(mark)->leave_all();  // a thread that was cancelled inside a call
  static_cast<Mark*>(mark)->taken.store(0, std::memory_order_release);
}

void Gate::make_key() { key_made = pthread_key_create(&thread_end_key, detach_thread) == 0; }

void Gate::initialise() {
  if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0) needs_fence_.store(false, std::memory_order_seq_cst);
}

Mark* Gate::attach_thread() {
  pthread_once(&key_once, Gate::make_key);
  Mark* mark = nullptr;
  for (Mark* candidate = all_marks.load(std::memory_order_acquire); candidate != nullptr; candidate = candidate->next) {
    uint32_t free_mark = 0;
    if (candidate->taken.load(std::memory_order_relaxed) == 0 &&
        candidate->taken.compare_exchange_strong(free_mark, 1, std::memory_order_acq_rel)) {
      mark = candidate;
      break;
    }
  }
  if (mark == nullptr) {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignof(Mark), sizeof(Mark)) != 0) return nullptr;
    mark = new (memory) Mark;
    mark->taken.store(1, std::memory_order_relaxed);
    Mark* head = all_marks.load(std::memory_order_relaxed);
    do {
      mark->next = head;
    } while (!all_marks.compare_exchange_weak(head, mark, std::memory_order_seq_cst));
    program_gate.marks_.fetch_add(1, std::memory_order_relaxed);
  }
  mark->leave_all();
  mark->thread.store(threads_so_far.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  thread_mark_ = mark;
  if (key_made) pthread_setspecific(thread_end_key, mark);
  return mark;
}

void Gate::clear(uint32_t bits) {
  flags_.fetch_and(~bits, std::memory_order_seq_cst);
  futex_wake_all(&flags_);
  if (const WakeSocket* const sleeper = wake_.load(std::memory_order_seq_cst); sleeper != nullptr) sleeper->wake();
}

void Gate::wait_change_or_message(uint32_t seen, int messages, const WakeSocket& wake, int64_t timeout_ns) {
  const WakeSocket* nobody = nullptr;
  const int wake_fd = messages < 0 ? -1 : wake.get();
  if (wake_fd < 0 || !wake_.compare_exchange_strong(nobody, &wake, std::memory_order_seq_cst)) {
    return wait_change(seen, timeout_ns);
  }
  const int64_t deadline = now_ns() + timeout_ns;
  bool has_message = false;
  if (flags_.load(std::memory_order_seq_cst) == seen) {  // else its clear() may have come before the wake-up
    // Not the C library's functions, in which a program's thread could be cancelled.
    pollfd fds[2] = {{wake_fd, POLLIN, 0}, {messages, POLLIN, 0}};
    timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    has_message = syscall(SYS_ppoll, fds, 2, &limit, nullptr, 0) > 0 && fds[1].revents != 0;
  }
  wake_.store(nullptr, std::memory_order_seq_cst);
  wake.settle();
  if (!has_message) return;
  // Awake, but not for long: on a busy machine the reader may need this very processor, and who sleeps is soonest run when woken.
  const int64_t settled = now_ns() + kMessageSettle_ns;
  while (flags_.load(std::memory_order_acquire) == seen && now_ns() < settled) {
  }
  // It was something else, or memory has to come in first: that takes its time, and so may whatever else the descriptor is by now.
  if (const int64_t rest = deadline - now_ns(); rest > 0) wait_change(seen, rest);
}

bool Gate::quiesce(int64_t deadline_ns) {
  if (needs_fence_.load(std::memory_order_relaxed) || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    needs_fence_.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  for (Mark* mark = all_marks.load(std::memory_order_seq_cst); mark != nullptr; mark = mark->next) {
    int spins = 0;
    while (mark->depth(std::memory_order_acquire) != 0) {
      if (now_ns() >= deadline_ns) return false;
      sleep_ns(spins++ < 20 ? 5'000 : 100'000);
    }
  }
  return true;
}

uint64_t Gate::submissions() const {
  uint64_t sum = 0;
  for (Mark* mark = all_marks.load(std::memory_order_acquire); mark != nullptr; mark = mark->next) {
    sum += mark->submissions.load(std::memory_order_relaxed);
  }
  return sum;
}

std::optional<uint64_t> Gate::entries(bool of_many) const {
  if (!of_many && marks_.load(std::memory_order_relaxed) > kFewMarks) return std::nullopt;
  uint64_t sum = 0;
  for (Mark* mark = all_marks.load(std::memory_order_acquire); mark != nullptr; mark = mark->next) sum += mark->entries();
  return sum;
}

bool Gate::busy() const {
  for (Mark* mark = all_marks.load(std::memory_order_acquire); mark != nullptr; mark = mark->next) {
    if (mark->depth() != 0) return true;
  }
  return false;
}

void Gate::watch(uint32_t bit, bool wanted) {
  Lock lock(watch_mutex_);
  uint32_t& watchers = watchers_[bit == kLimited ? 1 : 0];
  if (wanted) {
    if (watchers++ == 0) set(bit);
  } else {
    if (--watchers == 0) clear(bit);
  }
}

void Gate::reset_after_fork() {
  watch_mutex_.reset_after_fork();
  for (uint32_t& watchers : watchers_) watchers = 0;
  for (Mark* mark = all_marks.load(std::memory_order_relaxed); mark != nullptr; mark = mark->next) {
    mark->leave_all();
    if (mark != thread_mark_) mark->taken.store(0, std::memory_order_relaxed);
  }
  waiting_.store(0, std::memory_order_relaxed);
  wake_.store(nullptr, std::memory_order_relaxed);
  flags_.store(0, std::memory_order_relaxed);
}

}  // namespace nvshare::interposer
