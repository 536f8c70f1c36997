#include "cli/top/top_command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cli/own_client.h"
#include "cli/scheduler_link.h"
#include "cli/set_command.h"
#include "cli/top/model.h"
#include "cli/top/terminal.h"
#include "cli/top/view.h"

namespace nvshare::cli::top {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStripCells = 300;
constexpr double kStripCellSMin = 1;
constexpr int kEscapeWaitMs = 50;  // a lone escape is the key when nothing follows for so long
constexpr size_t kOnceColumns = 120;

// The scheduler that answers; another one after it was restarted.
class Source {
 public:
  Result<protocol::admin::StatusReport> report() {
    if (!admin_) {
      auto link = find_scheduler();
      if (!link) return link.error();
      // Whom it takes no admin requests from it tells of their own.
      if (!link->admin) {
        reason_ = link->admin_error;
        return ask_own(link->runtime_directory);
      }
      admin_ = std::move(*link->admin);
    }
    auto report = admin_->status();
    if (!report) admin_.reset();
    return report;
  }

  Result<void> change(const std::vector<std::string>& words) {
    const auto request = parse_changes(words);
    if (!request) return request.error();
    if (!admin_) return error_format("%s", reason_.c_str());
    const auto line = admin_->ask(*request);
    if (!line) return line.error();
    return protocol::admin::decode_ok(*line);
  }

 private:
  std::optional<AdminClient> admin_;
  std::string reason_ = "no scheduler answers";  // while there is none
};

size_t columns_of_stdout() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kOnceColumns;
}

int fail(const char* text) {
  fmt::print(stderr, "nvsharectl top: {}\n", text);
  return 1;
}

int draw_once(Source& source, const TopOptions& options) {
  auto report = source.report();
  if (!report) return fail(report.error().text);
  History history(kStripCells, kStripCellSMin);
  history.add(*report, 0);
  const size_t columns = options.columns > 0 ? static_cast<size_t>(options.columns) : columns_of_stdout();
  fmt::print("{}", text_of(draw(history.model(), Ui(), columns, 0)));
  return 0;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Until the user leaves.
void follow(Source& source, Terminal& terminal, double interval_s) {
  History history(kStripCells, std::max(interval_s, kStripCellSMin));
  Ui ui;
  std::string rest;
  const auto begin = Clock::now();
  double next_s = 0;
  while (!Terminal::asked_to_end()) {
    if (seconds_since(begin) >= next_s) {
      auto report = source.report();
      report ? history.add(*report, seconds_since(begin)) : history.fail(report.error().text);
      next_s = seconds_since(begin) + interval_s;
    }
    const Size size = terminal.size();
    ui.page_rows = size.lines / 2;
    terminal.show(draw(history.model(), ui, size.columns, size.lines));

    const int wait_ms = rest.empty() ? static_cast<int>(std::max(0.0, next_s - seconds_since(begin)) * 1000) + 1 : kEscapeWaitMs;
    bool ended = false;
    const std::string bytes = terminal.read(wait_ms, ended);
    if (ended) return;
    for (const Key key : keys_of(bytes, rest, bytes.empty())) {
      const Wish wish = press(ui, history.model(), key);
      if (wish.quit) return;
      if (wish.change.empty()) continue;
      const auto changed = source.change(wish.change);
      ui.bad_message = !changed;
      ui.message = changed ? "set " + wish.change[1] : changed.error().text;
      next_s = 0;
    }
  }
}

}  // namespace

int top_command(const TopOptions& options) {
  Source source;
  if (options.once) return draw_once(source, options);
  // Before the screen is taken, so that a reason stays to be read.
  if (auto report = source.report(); !report) return fail(report.error().text);
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = options.colour && (no_colour == nullptr || *no_colour == '\0');
  auto terminal = Terminal::open(colour);
  if (!terminal) return fail(terminal.error().text);
  follow(source, *terminal, options.interval_s);
  return 0;
}

}  // namespace nvshare::cli::top
