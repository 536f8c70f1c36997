#include "interposer/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/mutex.h"
#include "interposer/sync.h"
#include "interposer/variable.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#ifndef F_GETPIPE_SZ
#define F_GETPIPE_SZ 1032
#endif

namespace nvshare::interposer {
namespace {

constexpr int kLinesMax = 200;
constexpr int64_t kLinePatience_ns = 20'000'000;

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

bool wait_for_room(int64_t deadline_ns) {
  const int64_t rest = std::max<int64_t>(deadline_ns - now_ns(), 0);
  const timespec patience{0, rest};
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  sigset_t all;  // a signal would end the wait early, with no room yet
  sigfillset(&all);
  return ppoll(&room, 1, &patience, &all) != 0;
}

// What other processes write to as well: one of them may take the room that this one has just seen.
bool fills_up() {
  int type = 0;
  socklen_t bytes = sizeof type;
  return fcntl(STDERR_FILENO, F_GETPIPE_SZ) > 0 || getsockopt(STDERR_FILENO, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0;
}

// False: errno says why not. It waits for nobody where the kernel can write so (pipes since Linux 6.4, sockets; no terminals).
bool write_now(const char* line, size_t length, int64_t deadline_ns) {
  iovec data{const_cast<char*>(line), length};
  do {
    if (syscall(SYS_pwritev2, STDERR_FILENO, &data, 1, -1L, -1L, RWF_NOWAIT) >= 0) return true;
    if (errno == EPIPE) return false;
    if (errno != EAGAIN || !fills_up()) return write(STDERR_FILENO, line, length) >= 0;
  } while (wait_for_room(deadline_ns));
  return false;
}

// A closed or full stderr is the program's business: it is not ended by our line (SIGPIPE), and no thread of ours stands still for it, with
// locks and a scheduler that waits for its answer. A line that finds no room for kLinePatience_ns is lost.
// It stays one line, and asks nothing of a terminal, where a variable or a name in it has control characters of ASCII.
void write_line(char* line, size_t length) {
  const NotCancelled whole;
  std::replace_if(
      line, line + length - 1, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
  const int64_t deadline_ns = now_ns() + kLinePatience_ns;
  if (!wait_for_room(deadline_ns)) return;
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const bool broken = !write_now(line, length, deadline_ns) && errno == EPIPE;
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
