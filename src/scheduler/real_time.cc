#include "scheduler/real_time.h"

#include <sched.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace nvshare::scheduler {
namespace {

constexpr int kPriority = 1;  // the lowest: before ordinary threads alone
constexpr rlim_t kAtMostUs = 2 * RealTime::kInARowUs;
constexpr long kPauseNs = 50'000;  // a shorter one may be over before the thread has gone to sleep

std::atomic<pid_t> real_time_thread{0};
std::atomic<int> handlers_bell{-1};
struct sigaction handler_before;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): with the handler, one in a process

// The C library's of musl refuses. The flag stays: to take it back needs a privilege.
bool run_as(pid_t thread, int policy, int priority) {
  const sched_param parameter{priority};
  return syscall(SYS_sched_setscheduler, thread, policy | SCHED_RESET_ON_FORK, &parameter) == 0;
}

void give_way(int) {
  const int error_before = errno;
  const uint64_t once = 1;
  run_as(real_time_thread, SCHED_OTHER, 0);
  [[maybe_unused]] const ssize_t rung = ::write(handlers_bell, &once, sizeof once);
  errno = error_before;
}

// The kernel moves the soft limit on by a second with each signal.
Result<void> limit_time_in_a_row() {
  rlimit limit{};
  getrlimit(RLIMIT_RTTIME, &limit);
  if (limit.rlim_max < kAtMostUs) {
    return error_format("RLIMIT_RTTIME ends real-time threads after %lld us already (at least %lld are needed)",
                        static_cast<long long>(limit.rlim_max), static_cast<long long>(kAtMostUs));
  }
  limit.rlim_cur = RealTime::kInARowUs;
  if (setrlimit(RLIMIT_RTTIME, &limit) != 0) return error_format("cannot set RLIMIT_RTTIME: %s", std::strerror(errno));
  return {};
}

// The kernel counts the time in a row from a real-time thread's last sleep, also across times at which it was ordinary: without one, what
// made it give way before makes it do so again at the next tick.
void count_time_in_a_row_anew() {
  const timespec pause{0, kPauseNs};
  nanosleep(&pause, nullptr);
}

}  // namespace

Result<std::unique_ptr<RealTime>> RealTime::begin(EventLoop& loop, int64_t hold_ns) {
  if (auto ok = limit_time_in_a_row(); !ok) return ok.error();
  FileDescriptor bell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell) return error_format("eventfd: %s", std::strerror(errno));
  if (!run_as(0, SCHED_RR, kPriority)) return error_format("the kernel does not let it (%s)", std::strerror(errno));
  run_as(0, SCHED_OTHER, 0);
  return std::unique_ptr<RealTime>(new RealTime(loop, std::move(bell), hold_ns));
}

RealTime::RealTime(EventLoop& loop, FileDescriptor bell, int64_t hold_ns)
    : hold_ns_(hold_ns), bell_(std::move(bell)), timer_(loop, [this] { look(); }), bell_watch_(loop, bell_.get(), [this] { gave_way(); }) {
  real_time_thread = static_cast<pid_t>(syscall(SYS_gettid));
  handlers_bell = bell_.get();
  struct sigaction action {};
  action.sa_handler = give_way;
  action.sa_flags = SA_RESTART;
  sigaction(SIGXCPU, &action, &handler_before);
}

RealTime::~RealTime() {
  run_as(0, SCHED_OTHER, 0);
  sigaction(SIGXCPU, &handler_before, nullptr);
}

void RealTime::needed() {
  needed_at_ = monotonic_ns();
  if (is_on_ || gave_way_) return;
  if (switch_on()) timer_.arm(needed_at_ + hold_ns_);
}

bool RealTime::switch_on() {
  is_on_ = limit_time_in_a_row() && run_as(0, SCHED_RR, kPriority);
  if (is_on_) {
    count_time_in_a_row_anew();
  } else {
    warnings_.warn("refused", monotonic_ns(), "real_time: the kernel no longer lets it ({})", std::strerror(errno));
  }
  return is_on_;
}

void RealTime::gave_way() {
  uint64_t times = 0;
  if (::read(bell_.get(), &times, sizeof times) < 0) return;
  warnings_.warn("gave way", monotonic_ns(), "this scheduler was busy for {} ms in a row: for {} s it is at ordinary priority",
                 kInARowUs / 1'000, kOrdinaryNs / 1'000'000'000);
  is_on_ = false;
  gave_way_ = true;
  timer_.arm(monotonic_ns() + kOrdinaryNs);
}

void RealTime::look() {
  gave_way_ = false;
  const int64_t ends_at = needed_at_ + hold_ns_;
  const bool goes_on = monotonic_ns() < ends_at;
  if (goes_on && (is_on_ || switch_on())) return timer_.arm(ends_at);
  run_as(0, SCHED_OTHER, 0);
  is_on_ = false;
}

}  // namespace nvshare::scheduler
