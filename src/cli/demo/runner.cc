#include "cli/demo/runner.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "cli/process.h"

namespace nvshare::cli::demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMs = 200;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Running {
  FileDescriptor output;
  std::string unfinished_line;
  Clock::time_point begin;
};

// Its standard output and error come back through one pipe. It dies with us.
Result<pid_t> start(const JobSpec& spec, const sigset_t& mask, FileDescriptor& output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return error_format("cannot make a pipe: %s", strerror(errno));
  output.reset(ends[0]);
  const FileDescriptor writer(ends[1]);
  fcntl(output.get(), F_SETFL, O_NONBLOCK);
  Spawn job;
  job.argv = spec.argv;
  job.environment = spec.environment;
  job.output = writer.get();
  job.no_input = true;
  job.dies_with_us = true;
  job.mask = &mask;
  return spawn(job);
}

// Blocks what the loop reads from a signalfd instead.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }

  // True when somebody wants us to stop.
  bool drain() {
    bool stop = false;
    signalfd_siginfo info{};
    while (read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) stop |= info.ssi_signo != SIGCHLD;
    return stop;
  }

 private:
  sigset_t before_{};
  FileDescriptor fd_;
};

class Phase {
 public:
  explicit Phase(const Observer& observer) : observer_(observer) {}
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
  ~Phase() {
    kill_all();
    while (alive_ > 0) reap(0);
  }

  Result<PhaseResult> run(const std::vector<JobSpec>& specs, double limit_s) {
    begin_ = Clock::now();
    for (const JobSpec& spec : specs) {
      JobState state;
      Running running;
      running.begin = Clock::now();
      auto pid = start(spec, signals_.before(), running.output);
      if (!pid) return pid.error();
      state.pid = *pid;
      ++alive_;
      result_.jobs.push_back(state);
      running_.push_back(std::move(running));
    }
    while (alive_ > 0) {
      wait_a_moment();
      for (size_t i = 0; i < running_.size(); ++i) read_reports(i);
      if (signals_.drain()) {
        result_.interrupted = true;
        kill_all();
      }
      reap(WNOHANG);
      if (limit_s > 0 && alive_ > 0 && seconds_since(begin_) > limit_s && !result_.cut_off) {
        result_.cut_off = true;
        kill_all();
      }
      observe(alive_ == 0);
    }
    return std::move(result_);
  }

 private:
  void wait_a_moment() {
    std::vector<pollfd> descriptors = {{signals_.fd(), POLLIN, 0}};
    for (const Running& job : running_) {
      if (job.output) descriptors.push_back({job.output.get(), POLLIN, 0});
    }
    poll(descriptors.data(), descriptors.size(), kTickMs);
  }

  void read_reports(size_t index) {
    Running& job = running_[index];
    char buffer[4096];
    ssize_t n = 0;
    while (job.output && (n = read(job.output.get(), buffer, sizeof buffer)) != 0) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;
      job.unfinished_line.append(buffer, static_cast<size_t>(n));
      size_t end = 0;
      while ((end = job.unfinished_line.find('\n')) != std::string::npos) {
        take_report(job.unfinished_line.substr(0, end), result_.jobs[index]);
        job.unfinished_line.erase(0, end + 1);
      }
    }
    job.output.reset();
  }

  void reap(int flags) {
    for (size_t i = 0; i < result_.jobs.size(); ++i) {
      JobState& state = result_.jobs[i];
      if (state.ended) continue;
      state.wall_s = seconds_since(running_[i].begin);
      int status = 0;
      if (waitpid(state.pid, &status, flags) != state.pid) continue;
      read_reports(i);
      state.ended = true;
      state.exit_code = exit_code_of(status);
      --alive_;
      result_.wall_s = seconds_since(begin_);
    }
  }

  void kill_all() {
    for (const JobState& state : result_.jobs) {
      if (!state.ended) kill(state.pid, SIGKILL);
    }
  }

  void observe(bool at_last) {
    if (!at_last && seconds_since(observed_) < kTickMs / 1000.0) return;
    observed_ = Clock::now();
    observer_(result_.jobs, seconds_since(begin_));
  }

  const Observer& observer_;
  Signals signals_;
  Clock::time_point begin_;
  Clock::time_point observed_;
  PhaseResult result_;
  std::vector<Running> running_;
  int alive_ = 0;
};

}  // namespace

void take_report(const std::string& line, JobState& state) {
  const nlohmann::json report = nlohmann::json::parse(line, nullptr, false);
  if (!report.is_object() || !report.contains("event") || !report["event"].is_string()) {
    state.last_words = line;
    return;
  }
  const std::string event = report["event"].get<std::string>();
  const auto number = [&report](const char* name) {
    auto found = report.find(name);
    return found != report.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  if (event == "progress") state.done = number("done");
  if (event == "gpu") {
    auto name = report.find("name");
    if (name != report.end() && name->is_string()) state.gpu_name = name->get<std::string>();
    state.gpu_bytes = static_cast<uint64_t>(number("total"));
  }
  if (event == "result") {
    state.done = 1;
    state.busy_s = number("busy_s");
    auto checksum = report.find("checksum");
    if (checksum != report.end() && checksum->is_string()) state.checksum = checksum->get<std::string>();
  }
}

Result<PhaseResult> run_jobs(const std::vector<JobSpec>& specs, double limit_s, const Observer& observer) {
  return Phase(observer).run(specs, limit_s);
}

}  // namespace nvshare::cli::demo
