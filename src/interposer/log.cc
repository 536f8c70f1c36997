#include "interposer/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/mutex.h"
#include "interposer/variable.h"

namespace nvshare::interposer {
namespace {

constexpr int kLinesMax = 200;
constexpr timespec kRoomPatience{0, 20'000'000};

// The names are those of the lines, too.
constexpr ChoiceVariable<LogLevel, 4> kLevel = {
    .name = "NVSHARE_LOG_LEVEL",
    .choices = {{"error", LogLevel::kError}, {"warning", LogLevel::kWarning}, {"info", LogLevel::kInfo}, {"debug", LogLevel::kDebug}},
    .unset = LogLevel::kWarning,
    .wrong = LogLevel::kWarning,
    .then = "Going on with warning",
    .meaning = "what the library says on standard error"};

std::atomic<int> lines_written{0};
std::atomic<int> level_plus_one{0};

// A closed or full stderr is the program's business: it is not ended by our line (SIGPIPE), and no thread of ours stands still for it, with
// locks and a scheduler that waits for its answer. A line that finds no room for kRoomPatience is lost.
void write_line(const char* line, size_t length) {
  const NotCancelled whole;
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  sigset_t all;  // a signal would end the wait early, with no room yet
  sigfillset(&all);
  if (ppoll(&room, 1, &kRoomPatience, &all) == 0) return;
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const bool broken = write(STDERR_FILENO, line, length) < 0 && errno == EPIPE;
  const timespec now{0, 0};
  if (broken && !was_pending) sigtimedwait(&pipe_signal, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int read_level() {
  const char* text = getenv(kLevel.name);
  if (text == nullptr || *text == '\0') return static_cast<int>(kLevel.unset);
  if (const auto* choice = kLevel.find(text)) return static_cast<int>(choice->value);
  char why[256], line[300];
  kLevel.explain(text, why);
  const int length = snprintf(line, sizeof line, "nvshare: warning: %s\n", why);
  write_line(line, static_cast<size_t>(length));
  return static_cast<int>(kLevel.wrong);
}

}  // namespace

bool log_enabled(LogLevel level) {
  int current = level_plus_one.load(std::memory_order_relaxed);
  if (current == 0) {
    int fresh = read_level() + 1;
    // Two threads may both read the variable; only the first result stands, so a wrong value is at worst named twice.
    level_plus_one.compare_exchange_strong(current, fresh, std::memory_order_relaxed);
    current = level_plus_one.load(std::memory_order_relaxed);
  }
  return static_cast<int>(level) < current;
}

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  int saved_errno = errno;
  bool last = false;
  if (level <= LogLevel::kWarning) {
    int before = lines_written.fetch_add(1, std::memory_order_relaxed);
    if (before > kLinesMax) return;
    last = before == kLinesMax;
  }
  char line[512];
  int length = snprintf(line, sizeof line, "nvshare[%d]: %s: ", static_cast<int>(getpid()), kLevel.choices[static_cast<int>(level)].text);
  va_list arguments;
  va_start(arguments, format);
  int more = last ? snprintf(line + length, sizeof line - static_cast<size_t>(length), "further messages are not shown")
                  : vsnprintf(line + length, sizeof line - static_cast<size_t>(length), format, arguments);
  va_end(arguments);
  if (more > 0) length += more;
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length++] = '\n';
  write_line(line, static_cast<size_t>(length));
  errno = saved_errno;
}

}  // namespace nvshare::interposer
