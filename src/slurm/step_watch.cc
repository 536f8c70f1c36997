#include "slurm/step_watch.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "protocol/admin_connection.h"
#include "slurm/job_link.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

// Of the two seconds between SIGTSTP and SIGSTOP, where Slurm freezes no cgroup. Nothing is continued later: it would run although Slurm
// has stopped it.
constexpr int64_t kWindowMs = 1500;
constexpr int64_t kLookMs = 10;
constexpr int kLookPatienceMs = 500;
constexpr int kDepthMax = 64;  // of processes below a slurmstepd

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void sleep_ms(int64_t duration) {
  const timespec pause = {static_cast<time_t>(duration / 1000), duration % 1000 * 1'000'000};
  nanosleep(&pause, nullptr);
}

bool is_pending(int signal) {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, signal) == 1;
}

}  // namespace

std::optional<ProcessState> state_of_process(pid_t pid) {
  char path[64], line[512] = {};
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return std::nullopt;
  const size_t length = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[length] = '\0';
  const char* name_end = std::strrchr(line, ')');  // a program's name may hold anything
  ProcessState state;
  char letter = 0;
  constexpr char kFields[] = " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64;
  if (name_end == nullptr || std::sscanf(name_end + 1, kFields, &letter, &state.parent, &state.started) != 3) return std::nullopt;
  state.stopped = letter == 'T';
  return state;
}

bool descends_from(pid_t pid, pid_t ancestor) {
  for (int depth = 0; depth < kDepthMax && pid > 1; ++depth) {
    if (pid == ancestor) return true;
    const auto state = state_of_process(pid);
    if (!state) return false;
    pid = state->parent;
  }
  return false;
}

bool has_pending(pid_t pid, int signal) {
  std::ifstream lines("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("SigPnd:") && !line.starts_with("ShdPnd:")) continue;
    if ((std::strtoull(line.c_str() + std::strlen("SigPnd:"), nullptr, 16) >> (signal - 1) & 1) != 0) return true;
  }
  return false;
}

void StepWatch::run() {
  sigset_t all;
  sigfillset(&all);
  for (;;) {
    if (mover_ > 0) wait_with_mover();
    int signal = 0;
    if (sigwait(&all, &signal) == 0) take(signal);
  }
}

void StepWatch::take(int signal) {
  if (signal == SIGTERM) {
    admin::JobRequest ends;
    ends.ends = true;
    tell_of(ends);
  } else if (signal == SIGTSTP) {
    job_stops();
  } else if (signal == SIGCONT) {
    job_goes_on();
  }
}

void StepWatch::tell_of(admin::JobRequest request) {
  request.job = job_;
  (void)tell(runtime_dir_, request);  // where it cannot be told, the job goes on without
}

void StepWatch::job_stops() {
  const int64_t begin = now_ms();
  if (move_seconds_ > 0) freezer_ = StepFreezer(membership_of(getpid()), job_);
  suspended_ = true;
  admin::JobRequest suspended;
  suspended.suspended = true;
  tell_of(suspended);
  const bool moves_on = !freezer_.empty() && start_mover();
  const int64_t until = begin + (moves_on ? move_seconds_ * int64_t{1000} : kWindowMs);
  const auto has_news = [] { return is_pending(SIGCONT) || is_pending(SIGTERM) || is_pending(SIGTSTP); };
  while (now_ms() < until && !has_news() && continue_stopped()) sleep_ms(kLookMs);
  signal_continued(SIGSTOP);
}

// Where they cannot be known there are none: nothing is done, then.
std::vector<pid_t> StepWatch::with_memory() const {
  auto client = admin::AdminConnection::open(runtime_dir_);
  if (!client) return {};
  auto line = client->ask(admin::StatusRequest{.brief = true}, kLookPatienceMs);
  if (!line) return {};
  auto status = admin::decode_status(*line);
  if (!status) return {};
  const auto tenant = std::find_if(status->tenants.begin(), status->tenants.end(), [&](const auto& one) { return one.job == job_; });
  if (tenant == status->tenants.end()) return {};
  std::vector<pid_t> pids;
  for (const admin::ClientReport& one : status->clients) {
    if (one.tenant == tenant->id && one.resident > one.unswappable && is_own(one.pid)) pids.push_back(one.pid);
  }
  return pids;
}

bool StepWatch::continue_stopped() {
  const std::vector<pid_t> pids = with_memory();
  for (const pid_t pid : pids) {
    const auto state = state_of_process(pid);
    const auto is_it = [&](const Continued& one) { return one.pid == pid && one.started == state->started; };
    if (!state || !state->stopped || std::any_of(continued_.begin(), continued_.end(), is_it)) continue;
    if (kill(pid, SIGCONT) == 0) continued_.push_back({pid, state->started});
  }
  return !pids.empty();
}

void StepWatch::signal_continued(int signal) const {
  for (const Continued& one : continued_) {
    const auto state = state_of_process(one.pid);
    if (state && state->started == one.started) kill(one.pid, signal);
  }
}

bool StepWatch::is_own(pid_t pid) const { return descends_from(pid, stepd_) || freezer_.contains(membership_of(pid)); }

bool StepWatch::start_mover() {
  if (shared_ == nullptr) {
    void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    shared_ = new (page) Shared;
  }
  shared_->mover_ends = false;
  const pid_t watch = getpid();
  mover_ = fork();
  if (mover_ != 0) return mover_ > 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  // slurmstepd is in no cgroup that is frozen; its children in that one are signalled by nobody.
  if (getppid() == watch && freezer_.join(membership_of(stepd_))) move(watch);
  _exit(0);
}

// Slurm's SIGCONT must be known to the mover before it is taken: this process may be frozen between any two instructions.
void StepWatch::wait_with_mover() {
  sigset_t pending;
  while (sigpending(&pending) == 0 && sigisemptyset(&pending) == 1) {
    if (waitpid(mover_, nullptr, WNOHANG) == mover_) {
      mover_ = 0;
      return;
    }
    sleep_ms(kLookMs);
  }
  if (is_pending(SIGCONT) || is_pending(SIGTSTP)) end_mover();
}

void StepWatch::end_mover() {
  shared_->mover_ends = true;
  waitpid(std::exchange(mover_, 0), nullptr, 0);
}

void StepWatch::move(pid_t watch) {
  const auto must_end = [&] { return shared_->mover_ends || has_pending(watch, SIGCONT) || has_pending(watch, SIGKILL); };
  // While it is not frozen, it moves out by itself.
  for (const int64_t until = now_ms() + move_seconds_ * int64_t{1000}; !freezer_.is_freezing(); sleep_ms(kLookMs)) {
    if (must_end() || now_ms() > until) return;
  }
  if (with_memory().empty()) return;
  freezer_.thaw();
  for (const int64_t until = now_ms() + move_seconds_ * int64_t{1000}; now_ms() < until && !with_memory().empty(); sleep_ms(kLookMs)) {
    if (must_end()) return;
  }
  freezer_.freeze();
  // Where Slurm let the step go on just before, it is frozen with the signal that said so. Once nothing in it runs, nothing more comes.
  for (bool frozen = false; !frozen; sleep_ms(kLookMs)) {
    frozen = freezer_.is_frozen();
    if (!must_end()) continue;
    freezer_.thaw();
    return;
  }
}

void StepWatch::job_goes_on() {
  signal_continued(SIGCONT);
  continued_.clear();
  if (!std::exchange(suspended_, false)) return;
  admin::JobRequest resumed;
  resumed.suspended = false;
  tell_of(resumed);
}

}  // namespace nvshare::slurm
