#include "e2e/harness/stopped_thread.h"

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace nvshare::e2e {

namespace {
constexpr int kTries = 1000;
constexpr useconds_t kPause_us = 1000;
}  // namespace

StoppedThread::StoppedThread(pid_t process, const std::string& name, long call) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task/";
  for (const auto& entry : std::filesystem::directory_iterator(tasks)) {
    std::string has;
    std::getline(std::ifstream(entry.path() / "comm"), has);
    if (has != name) continue;
    const pid_t thread = std::stoi(entry.path().filename().string());
    if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) return;
    for (int i = 0; i < kTries && thread_ == 0; ++i) {
      if (stop(thread, entry.path().string(), call)) thread_ = thread;
    }
    return;
  }
}

bool StoppedThread::stop(pid_t thread, const std::string& task, long call) {
  int status = 0;
  if (ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0 || waitpid(thread, &status, __WALL) != thread) return false;
  std::string now;
  std::getline(std::ifstream(task + "/syscall"), now, ' ');
  if (now == std::to_string(call)) return true;
  ptrace(PTRACE_CONT, thread, nullptr, nullptr);
  usleep(kPause_us);
  return false;
}

void StoppedThread::go_on() {
  if (thread_ > 0) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  thread_ = 0;
}

}  // namespace nvshare::e2e
