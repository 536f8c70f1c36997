#include "interposer/log.h"

#include <errno.h>
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

int read_level() {
  const char* text = getenv(kLevel.name);
  if (text == nullptr || *text == '\0') return static_cast<int>(kLevel.unset);
  if (const auto* choice = kLevel.find(text)) return static_cast<int>(choice->value);
  char why[256], line[300];
  kLevel.explain(text, why);
  const int length = snprintf(line, sizeof line, "nvshare: warning: %s\n", why);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, static_cast<size_t>(length));
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
  const NotCancelled whole;
  // A closed or full stderr is the program's business, not ours.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, static_cast<size_t>(length));
  errno = saved_errno;
}

}  // namespace nvshare::interposer
