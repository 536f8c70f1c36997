#include "cli/top/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/result.h"

namespace nvshare::cli::top {
namespace {

constexpr char kEnter[] = "\033[?1049h\033[?25l";         // the alternate buffer; no cursor
constexpr char kLeave[] = "\033[0m\033[?25h\033[?1049l";  // and back

volatile sig_atomic_t end_signal = 0;

void note_end(int signal) { end_signal = signal; }
void note_resize(int) {}  // poll() returns; the size is looked at anew

void write_all(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

void on_signal(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

Result<Terminal> Terminal::open(bool colour) {
  termios before{};
  if (isatty(STDOUT_FILENO) == 0 || tcgetattr(STDIN_FILENO, &before) != 0) {
    return error_format(
        "top needs a terminal; 'nvsharectl top --once' writes one picture of it, 'nvsharectl status --json' is for programs");
  }
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) on_signal(signal, note_end);
  on_signal(SIGWINCH, note_resize);
  termios raw = before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0) return error_format("cannot set the terminal: %s", strerror(errno));
  write_all(kEnter);
  return Terminal(before, colour);
}

Terminal::Terminal(Terminal&& other) noexcept
    : before_(other.before_),
      colour_(other.colour_),
      owns_(std::exchange(other.owns_, false)),
      shown_size_(other.shown_size_),
      shown_(std::move(other.shown_)) {}

Terminal::~Terminal() {
  if (!owns_) return;
  write_all(kLeave);
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

Size Terminal::size() const {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

void Terminal::show(const Screen& screen) {
  const Size now = size();
  std::string out;
  if (now.columns != shown_size_.columns || now.lines != shown_size_.lines) {
    out += "\033[2J";
    shown_.clear();
    shown_size_ = now;
  }
  const size_t lines = std::max(screen.size(), shown_.size());
  shown_.resize(lines);
  for (size_t i = 0; i < lines; ++i) {
    std::string line = i < screen.size() ? screen[i].ansi(colour_) : std::string();
    if (line == shown_[i]) continue;
    out += "\033[" + std::to_string(i + 1) + ";1H" + line + "\033[K";
    shown_[i] = std::move(line);
  }
  write_all(out);
}

std::string Terminal::read(int timeout_ms, int other, bool& ended) {
  ended = false;
  pollfd wait[] = {{STDIN_FILENO, POLLIN, 0}, {other, POLLIN, 0}};  // poll() passes over -1
  if (poll(wait, 2, timeout_ms) <= 0 || wait[0].revents == 0) return {};
  char bytes[256];
  const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (n > 0) return std::string(bytes, static_cast<size_t>(n));
  ended = n == 0 || errno != EINTR;
  return {};
}

bool Terminal::asked_to_end() { return end_signal != 0; }

}  // namespace nvshare::cli::top
