#include "cli/turn_wait.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "cli/columns.h"
#include "cli/own_client.h"
#include "cli/units.h"

namespace nvshare::cli {
namespace {

using protocol::admin::TurnReport;

constexpr int64_t kShownAfter = 1'000'000'000;  // in a terminal
constexpr int64_t kToldAfter = 5'000'000'000;   // elsewhere
constexpr int64_t kRewriteMs = 1000;            // with the time that has passed
constexpr int kAnswerWithinMs = 200;            // signals are not passed on meanwhile
constexpr int64_t kAfterFailureMs = 5000;
constexpr int64_t kOwnAgainMs = 1000;  // a user has twenty such questions a second, and a user's programs may be many
constexpr int kAncestorsMax = 64;
constexpr size_t kNameColumns = 20;  // of who has the GPU: what follows has to fit, too

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

int32_t parent_of(int32_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  int parent = 0;
  return name_end != std::string::npos && std::sscanf(text.c_str() + name_end + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

bool is_below_us(int32_t pid) {
  for (int i = 0; pid > 1 && i < kAncestorsMax; ++i, pid = parent_of(pid)) {
    if (pid == getpid()) return true;
  }
  return false;
}

}  // namespace

std::optional<TurnWait> own_wait_of(const protocol::admin::StatusReport& own, const std::function<bool(int32_t pid)>& is_ours) {
  std::optional<TurnWait> longest;
  for (const protocol::admin::ClientReport& client : own.clients) {
    if (client.state == "idle" || !is_ours(client.pid)) continue;
    if (client.state != "waiting") return std::nullopt;
    if (longest && longest->waited_ns >= client.since_ns) continue;
    longest = TurnWait{client.since_ns, client.waiting_for.empty() ? "its turn" : client.waiting_for};
  }
  return longest;
}

std::optional<TurnWait> turn_wait_of(const TurnReport& report, int64_t since_ns) {
  if (!report.waits) return std::nullopt;
  TurnWait wait{report.waited_ns + since_ns, fmt::format("GPU {}", report.gpu)};
  if (report.holder.empty()) return wait;
  const std::string holder = shortened(report.holder, kNameColumns);
  wait.text += report.others > 0 ? fmt::format(": '{}' and {} more have it", holder, report.others) : fmt::format(": '{}' has it", holder);
  if (report.left_ns > since_ns) wait.text += fmt::format(", about {} left", format_duration(report.left_ns - since_ns));
  wait.text += fmt::format(", {} for {}", report.state, format_duration(report.held_ns + since_ns));
  return wait;
}

std::string TurnWaitLine::next(const std::optional<TurnWait>& wait, int columns) {
  const int64_t before = std::exchange(waited_ns_, wait ? wait->waited_ns : -1);
  if (!wait || wait->waited_ns < before) told_ = false;
  if (terminal_) {
    if (wait && wait->waited_ns >= kShownAfter) {
      shown_ = true;
      const std::string text = fmt::format("nvshare: waits {} for {}", format_duration(wait->waited_ns), wait->text);
      return kBegin + first_columns(text, static_cast<size_t>(columns) - 1) + kEnd;
    }
    return std::exchange(shown_, false) ? kClear : "";
  }
  if (!wait || wait->waited_ns < kToldAfter || std::exchange(told_, true)) return {};
  return fmt::format("nvshare: waits for {}\n", wait->text);
}

int64_t TurnWaitLine::ask_again_ms(const std::optional<TurnWait>& wait) const {
  if (terminal_) return wait ? 250 : 1000;  // what the program prints in its turn should not stand before the rest of the line
  return wait && !told_ ? 1000 : 2500;
}

TurnWaitWatch::TurnWaitWatch(std::string runtime_directory, std::optional<uint64_t> tenant)
    : runtime_directory_(std::move(runtime_directory)), tenant_(tenant), terminal_(isatty(STDERR_FILENO) == 1), line_(is_drawable()) {}

int64_t TurnWaitWatch::look() {
  if (terminal_ && !may_draw()) {  // nothing could be told
    report_ = {};
    own_.reset();
    ask_at_ = 0;
    write({});
    return kFirstMs;
  }
  if (milliseconds_now() >= ask_at_) ask(milliseconds_now());
  const int64_t now = milliseconds_now();
  write(wait_at(now));
  const int64_t left = std::max<int64_t>(ask_at_ - now, 1);
  return line_.shown() ? std::min(left, kRewriteMs) : left;
}

std::optional<TurnWait> TurnWaitWatch::wait_at(int64_t now) const {
  const int64_t since_ns = (now - asked_at_) * 1'000'000;
  if (tenant_) return turn_wait_of(report_, since_ns);
  std::optional<TurnWait> wait = own_;
  if (wait) wait->waited_ns += since_ns;
  return wait;
}

void TurnWaitWatch::ask(int64_t now) {
  asked_at_ = now;
  ask_at_ = now + kAfterFailureMs;
  report_ = {};
  own_.reset();
  tenant_ ? ask_admin(now, *tenant_) : ask_own(now);
}

void TurnWaitWatch::ask_own(int64_t now) {
  const auto own = cli::ask_own(runtime_directory_, kAnswerWithinMs);
  if (!own) return;
  own_ = own_wait_of(*own, is_below_us);
  ask_at_ = now + std::max(line_.ask_again_ms(own_), kOwnAgainMs);
}

void TurnWaitWatch::ask_admin(int64_t now, uint64_t tenant) {
  auto admin = AdminConnection::open(runtime_directory_);
  if (!admin) return;
  const auto line = admin->ask(protocol::admin::TurnRequest{tenant}, kAnswerWithinMs);
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
