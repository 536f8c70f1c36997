#include "cli/top/top_command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <utility>

#include "cli/own_client.h"
#include "cli/scheduler_link.h"
#include "cli/set_command.h"
#include "cli/top/model.h"
#include "cli/top/pace.h"
#include "cli/top/past.h"
#include "cli/top/terminal.h"
#include "cli/top/view.h"
#include "protocol/report_changes.h"

namespace nvshare::cli::top {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStripCells = 300;
constexpr double kStripCellSMin = 1;
constexpr size_t kPastClientsMax = 300;
constexpr int kEscapeWaitMs = 50;  // a lone escape is the key when nothing follows for so long
constexpr size_t kOnceColumns = 120;
constexpr int kNice = 10;                              // beside what it was started with
constexpr double kEarlyShare = 0.3, kEarlySMax = 0.3;  // of the interval; reports that another viewer has may come so early

// The scheduler that answers; another one after it was restarted.
class Source {
 public:
  using Answer = std::optional<Result<const protocol::admin::StatusReport*>>;  // good until the next one

  Result<protocol::admin::StatusReport> report() {
    if (auto ok = find(); !ok) return ok.error();
    if (!admin_) return ask_own(runtime_directory_);
    auto report = admin_->status();
    if (!report) admin_.reset();
    return report;
  }

  // Asks for what is new since the report before, once there is something, or for all of it after `within_s`, which may come `early_s`
  // before that, and be so old: viewers share it. Nothing: take() will have it. A scheduler that tells only of the asker's own answers at
  // once.
  Answer begin(double within_s, double early_s) {
    if (auto ok = find(); !ok) return Answer(ok.error());
    if (!admin_) return own();
    protocol::admin::StatusRequest request{.brief = true};
    if (last_ && last_->changes != 0) {
      const double within_ms = std::clamp(within_s * 1000, 1.0, static_cast<double>(protocol::admin::kStatusWaitMsMax));
      request = {last_->changes, static_cast<int64_t>(within_ms), static_cast<int64_t>(early_s * 1000), true};
    }
    if (auto ok = admin_->begin(request); !ok) return failed(ok.error());
    asked_ = true;
    return {};
  }

  // What begin() asked for, if it has come.
  Answer take() {
    if (!asked_) return {};
    auto line = admin_->take();
    if (!line) return failed(line.error());
    if (!*line) return {};
    asked_ = false;
    auto report = protocol::admin::decode_status(**line);
    if (!report) return failed(report.error());
    is_all_ = report->since == 0;
    if (!is_all_ && (!last_ || !complete(*report, std::move(*last_)))) {  // another scheduler's: all of it, next
      last_.reset();
      return {};
    }
    last_ = std::move(*report);
    return Answer(&*last_);
  }

  // Whether the report of the last answer was complete, with all amounts and times as they are now.
  bool is_all() const { return is_all_; }

  bool asked() const { return asked_; }
  bool tells_of_changes() const { return admin_ && last_ && last_->changes != 0; }
  // Readable when the answer comes; -1: none is awaited.
  int descriptor() const { return asked_ ? admin_->descriptor() : -1; }

  // What the scheduler remembers of its last minute; nothing where it does not tell. On a connection of its own, as change().
  std::optional<Past> past() {
    if (!admin_) return {};
    auto admin = AdminConnection::open(runtime_directory_);
    Past past;
    protocol::admin::TraceRequest request;
    for (bool more = true; more;) {
      const auto line = admin ? admin->ask(request) : Result<std::string>(admin.error());
      const auto part = line ? protocol::admin::decode_trace_part(*line) : Result<protocol::admin::TracePart>(line.error());
      if (!part) return {};
      for (const std::string& one : part->lines) {
        if (!past.add(one)) return {};
      }
      request.after = part->next;
      more = part->more;
    }
    return past;
  }

  // On a connection of its own: the other one waits for changes.
  Result<void> change(const std::vector<std::string>& words) {
    const auto request = parse_changes(words);
    if (!request) return request.error();
    if (!admin_) return error_format("%s", reason_.c_str());
    auto admin = AdminConnection::open(runtime_directory_);
    if (!admin) return admin.error();
    const auto line = admin->ask(*request);
    if (!line) return line.error();
    return protocol::admin::decode_ok(*line);
  }

 private:
  // The scheduler that answers, if there is none yet.
  Result<void> find() {
    if (admin_) return {};
    auto link = find_scheduler();
    if (!link) return link.error();
    runtime_directory_ = link->runtime_directory;
    // Whom it takes no admin requests from it tells of their own.
    if (!link->admin) {
      reason_ = link->admin_error;
    } else {
      admin_ = std::move(*link->admin);
    }
    return {};
  }

  Answer own() {
    auto report = ask_own(runtime_directory_);
    if (!report) return Answer(report.error());
    own_ = std::move(*report);
    return Answer(&own_);
  }

  Answer failed(const Error& error) {
    admin_.reset();
    asked_ = false;
    last_.reset();
    is_all_ = true;
    return Answer(error);
  }

  std::optional<AdminConnection> admin_;
  std::string runtime_directory_;
  std::string reason_ = "no scheduler answers";        // while there is none
  std::optional<protocol::admin::StatusReport> last_;  // the admin's
  protocol::admin::StatusReport own_;
  bool is_all_ = true;
  bool asked_ = false;
};

size_t columns_of_stdout() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kOnceColumns;
}

int fail(const char* text) {
  fmt::print(stderr, "nvsharectl top: {}\n", text);
  return 1;
}

// With what happened before, on a node of so many clients that it costs the scheduler little.
void begin(History& history, Source& source, const protocol::admin::StatusReport& report) {
  if (report.clients.size() > kPastClientsMax) return;
  if (const std::optional<Past> past = source.past()) history.begin_with(*past, report);
}

int draw_once(Source& source, const TopOptions& options) {
  auto report = source.report();
  if (!report) return fail(report.error().text);
  History history(kStripCells, kStripCellSMin);
  begin(history, source, *report);
  history.add(*report, 0);
  const size_t columns = options.columns > 0 ? static_cast<size_t>(options.columns) : columns_of_stdout();
  fmt::print("{}", text_of(draw(history.model(), Ui(), columns, 0)));
  return 0;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

int milliseconds(double seconds) { return static_cast<int>(std::max(0.0, seconds) * 1000) + 1; }

// A look is a report and its picture: of all every `interval_s`, and of what is new as soon as something changes.
class Follower {
 public:
  Follower(Source& source, Terminal& terminal, double interval_s)
      : source_(source), terminal_(terminal), interval_s_(interval_s), history_(kStripCells, std::max(interval_s, kStripCellSMin)) {}

  // Until the user leaves.
  void run() {
    while (!Terminal::asked_to_end()) {
      look();
      show();
      if (std::exchange(has_looked_, false)) settle_pace();
      bool ended = false;
      const std::string bytes = terminal_.read(wait_ms(), source_.descriptor(), ended);
      if (ended || !take_keys(bytes)) return;
    }
  }

 private:
  double now_s() const { return seconds_since(begin_); }

  // The report that was asked for, if it has come; asks for one where it is time.
  Source::Answer next_report() {
    if (source_.asked()) return source_.take();
    if (now_s() < next_s_) return {};
    asked_s_ = now_s();
    return source_.begin(std::max(all_s_ + pace_.whole_every_s(interval_s_) - asked_s_, 0.0),
                         std::min(interval_s_ * kEarlyShare, kEarlySMax));
  }

  void look() {
    const Source::Answer answer = next_report();
    if (!answer) return;
    has_looked_ = true;
    if (!*answer) return history_.fail(answer->error().text);
    const protocol::admin::StatusReport& report = ***answer;
    if (!source_.is_all()) return history_.refresh(report);
    if (!std::exchange(has_begun_, true)) {
      begin(history_, source_, report);
      used_s_ = processor_seconds();  // once, and no measure of what looks cost
    }
    history_.add(report, static_cast<double>(report.uptime_ns) / 1e9);  // not when it came: it may be another viewer's
    all_s_ = now_s();
  }

  // Not where nothing is other than it was: each look is asked for first, and a report comes in many pieces.
  void show() {
    const Size size = terminal_.size();
    const bool is_as_shown = size.columns == shown_size_.columns && size.lines == shown_size_.lines;
    if (!has_looked_ && !std::exchange(has_keys_, false) && is_as_shown) return;
    shown_size_ = size;
    ui_.page_rows = size.lines / 2;
    terminal_.show(draw(history_.model(), ui_, size.columns, size.lines, lines_));
  }

  // After a look, when the next one is asked for.
  void settle_pace() {
    const double used_s = processor_seconds(), took_s = used_s - std::exchange(used_s_, used_s);
    source_.is_all() ? pace_.looked_at_all(took_s) : pace_.looked(took_s, now_s());
    next_s_ = source_.tells_of_changes() ? now_s() + pace_.wait_s() : asked_s_ + interval_s_;
  }

  int wait_ms() const {
    if (!rest_.empty()) return kEscapeWaitMs;
    return milliseconds(source_.asked() ? interval_s_ : next_s_ - now_s());
  }

  // False: the user leaves.
  bool take_keys(const std::string& bytes) {
    has_keys_ = !bytes.empty() || !rest_.empty();
    for (const Key key : keys_of(bytes, rest_, bytes.empty())) {
      const Wish wish = press(ui_, history_.model(), key);
      if (wish.quit) return false;
      if (wish.change.empty()) continue;
      const auto changed = source_.change(wish.change);
      ui_.bad_message = !changed;
      ui_.message = changed ? "set " + wish.change[1] : changed.error().text;
      next_s_ = 0;
    }
    return true;
  }

  Source& source_;
  Terminal& terminal_;
  const double interval_s_;
  const Clock::time_point begin_ = Clock::now();
  History history_;
  RowLines lines_;
  Ui ui_;
  Pace pace_;
  std::string rest_;
  double next_s_ = 0, asked_s_ = 0, all_s_ = 0;
  double used_s_ = processor_seconds();
  bool has_looked_ = false, has_keys_ = true;  // since it was shown
  bool has_begun_ = false;
  Size shown_size_{0, 0};
};

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
  // A viewer holds up neither the scheduler's grants nor the programs that get them, where processors are few.
  [[maybe_unused]] const int as_before = nice(kNice);
  Follower(source, *terminal, options.interval_s).run();
  return 0;
}

}  // namespace nvshare::cli::top
