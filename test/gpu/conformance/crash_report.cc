#include "crash_report.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace conformance {
namespace {

constexpr int kFrames = 64;
std::array<char, 256 << 10> handler_stack;  // the program's own may be what overflowed

void report(int signal, siginfo_t* info, void* /*context*/) {
  std::array<char, 96> line;
  const int length = std::snprintf(line.data(), line.size(), "signal %d, address %p, process %d:\n", signal, info->si_addr, getpid());
  std::array<void*, kFrames> frames;
  const int count = backtrace(frames.data(), kFrames);
  for (const int to : {STDERR_FILENO, STDOUT_FILENO}) {  // a log; who compares crashes
    [[maybe_unused]] const ssize_t written = write(to, line.data(), static_cast<size_t>(length));
    backtrace_symbols_fd(frames.data(), count, to);
  }
  raise(signal);  // SA_RESETHAND: as if this handler were not there
}

}  // namespace

void report_crashes() {
  std::array<void*, 1> first;
  backtrace(first.data(), 1);  // loads what it needs now, not in the handler
  const stack_t stack{.ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = report;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace conformance
