#include "cli/turn_wait.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "cli/units.h"

namespace nvshare::cli {
namespace {

using protocol::admin::TurnReport;

constexpr int64_t kShownAfter = 1'000'000'000;  // in a terminal
constexpr int64_t kToldAfter = 5'000'000'000;   // elsewhere
constexpr int64_t kRewriteMs = 1000;            // with the time that has passed
constexpr int kAnswerWithinMs = 200;            // signals are not passed on meanwhile
constexpr int64_t kAfterFailureMs = 5000;

// The line below is made where the screen ends, the cursor stays where it is: IND, up, save; down, begin of line, no wrap; restore.
constexpr char kBegin[] = "\033D\033[A\0337\033[B\r\033[J\033[?7l";
constexpr char kEnd[] = "\033[?7h\0338";
constexpr char kClear[] = "\033[0J";  // from the cursor on

// A terminal that is read key by key belongs to a program that draws; one of another process group, to somebody else.
bool may_draw() {
  termios modes{};
  return tcgetpgrp(STDERR_FILENO) == getpgrp() && tcgetattr(STDERR_FILENO, &modes) == 0 && (modes.c_lflag & ICANON) != 0;
}

bool is_drawable() {
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

int columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

int64_t milliseconds_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<TurnWait> turn_wait_of(const TurnReport& report, int64_t since_ns) {
  if (!report.waits) return std::nullopt;
  TurnWait wait{report.waited_ns + since_ns, fmt::format("waits for its turn on GPU {}", report.gpu)};
  if (report.holder.empty()) return wait;
  wait.text += fmt::format(": '{}' has it, {} for {}", report.holder, report.state, format_duration(report.held_ns + since_ns));
  if (report.others > 0) wait.text += fmt::format(", and {} more", report.others);
  if (report.left_ns > since_ns) wait.text += fmt::format(", about {} yet", format_duration(report.left_ns - since_ns));
  return wait;
}

std::string TurnWaitLine::next(const std::optional<TurnWait>& wait, int columns) {
  const int64_t before = std::exchange(waited_ns_, wait ? wait->waited_ns : -1);
  if (!wait || wait->waited_ns < before) told_ = false;
  if (terminal_) {
    if (wait && wait->waited_ns >= kShownAfter) {
      shown_ = true;
      const std::string text = fmt::format("nvshare: {}; {} so far", wait->text, format_duration(wait->waited_ns));
      return fmt::format("{}{:.{}}{}", kBegin, text, columns - 1, kEnd);
    }
    return std::exchange(shown_, false) ? kClear : "";
  }
  if (!wait || wait->waited_ns < kToldAfter || std::exchange(told_, true)) return {};
  return fmt::format("nvshare: {}\n", wait->text);
}

int64_t TurnWaitLine::ask_again_ms(const std::optional<TurnWait>& wait) const {
  if (terminal_) return wait ? 250 : 1000;  // what the program prints in its turn should not stand before the rest of the line
  return wait && !told_ ? 1000 : 2500;
}

TurnWaitWatch::TurnWaitWatch(std::string runtime_directory, uint64_t tenant)
    : runtime_directory_(std::move(runtime_directory)), tenant_(tenant), terminal_(isatty(STDERR_FILENO) == 1), line_(is_drawable()) {}

int64_t TurnWaitWatch::look() {
  if (terminal_ && !may_draw()) {  // nothing could be told
    report_ = {};
    ask_at_ = 0;
    write({});
    return kFirstMs;
  }
  if (milliseconds_now() >= ask_at_) ask(milliseconds_now());
  const int64_t now = milliseconds_now();
  write(turn_wait_of(report_, (now - asked_at_) * 1'000'000));
  const int64_t left = std::max<int64_t>(ask_at_ - now, 1);
  return line_.shown() ? std::min(left, kRewriteMs) : left;
}

void TurnWaitWatch::ask(int64_t now) {
  asked_at_ = now;
  ask_at_ = now + kAfterFailureMs;
  report_ = {};
  auto admin = AdminConnection::open(runtime_directory_);
  if (!admin) return;
  const auto line = admin->ask(protocol::admin::TurnRequest{tenant_}, kAnswerWithinMs);
  const auto report = line ? protocol::admin::decode_turn(*line) : Result<TurnReport>(line.error());
  if (!report) return;
  report_ = *report;
  ask_at_ = now + std::max(line_.ask_again_ms(turn_wait_of(report_, 0)), report_.again_ms);
}

void TurnWaitWatch::write(const std::optional<TurnWait>& wait) {
  const std::string text = line_.next(wait, columns());
  if (!text.empty()) (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace nvshare::cli
