#include "slurm/step_watch.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "protocol/admin_client.h"
#include "slurm/job_link.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

// Of the two seconds between SIGTSTP and SIGSTOP. Nothing is continued later: it would run although Slurm has stopped it.
constexpr int64_t kWindowMs = 1500;
constexpr int64_t kLookMs = 10;
constexpr int kLookPatienceMs = 500;
constexpr int kDepthMax = 64;  // of processes below a slurmstepd

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
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
  if (name_end == nullptr || std::sscanf(name_end + 1, " %c %d", &letter, &state.parent) != 2) return std::nullopt;
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

void StepWatch::run() {
  sigset_t all;
  sigfillset(&all);
  for (;;) {
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
  const int64_t until = now_ms() + kWindowMs;
  suspended_ = true;
  admin::JobRequest suspended;
  suspended.suspended = true;
  tell_of(suspended);
  while (now_ms() < until && !is_pending(SIGCONT) && continue_stopped()) {
    const timespec pause = {0, kLookMs * 1'000'000};
    nanosleep(&pause, nullptr);
  }
  for (const pid_t pid : continued_) kill(pid, SIGSTOP);
}

bool StepWatch::continue_stopped() {
  auto client = admin::Client::open(runtime_dir_);
  if (!client) return false;
  auto line = client->ask(admin::StatusRequest{}, kLookPatienceMs);
  if (!line) return false;
  auto status = admin::decode_status(*line);
  if (!status) return false;
  const auto tenant = std::find_if(status->tenants.begin(), status->tenants.end(), [&](const auto& one) { return one.job == job_; });
  if (tenant == status->tenants.end()) return false;
  bool any_left = false;
  for (const admin::ClientReport& one : status->clients) {
    if (one.tenant != tenant->id || one.resident <= one.unswappable) continue;
    any_left = true;
    const auto state = state_of_process(one.pid);
    if (!state || !state->stopped || !descends_from(one.pid, stepd_)) continue;
    if (std::find(continued_.begin(), continued_.end(), one.pid) != continued_.end()) continue;
    if (kill(one.pid, SIGCONT) == 0) continued_.push_back(one.pid);
  }
  return any_left;
}

void StepWatch::job_goes_on() {
  for (const pid_t pid : std::exchange(continued_, {})) kill(pid, SIGCONT);
  if (!std::exchange(suspended_, false)) return;
  admin::JobRequest resumed;
  resumed.suspended = false;
  tell_of(resumed);
}

}  // namespace nvshare::slurm
