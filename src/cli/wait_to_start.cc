#include "cli/wait_to_start.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/parse.h"
#include "cli/columns.h"
#include "cli/gpu_choice.h"
#include "cli/set_command.h"
#include "cli/start_condition.h"
#include "cli/units.h"

namespace nvshare::cli {
namespace {

using protocol::admin::StatusReport;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(500);
constexpr int64_t kLongWait = 10'000'000'000;  // after it the terminal's bell rings

// One line on standard error. In a terminal it is written over; else only what is new is written.
class Line {
 public:
  Line() : terminal_(isatty(STDERR_FILENO) == 1) {}

  void show(const std::string& text, int64_t waited) {
    if (!terminal_) {
      if (!shown_) fmt::print(stderr, "nvshare: waits for {}\n", text);
    } else {
      const std::string line = fmt::format("nvshare: waits for {}, {} so far", text, format_duration(waited));
      fmt::print(stderr, "\r\033[K{}", first_columns(line, columns() - 1));
      std::fflush(stderr);
    }
    shown_ = true;
  }
  void end(const std::string& text, int64_t waited) const {
    if (!shown_) return;
    fmt::print(stderr, "{}nvshare: {} after {}{}\n", terminal_ ? "\r\033[K" : "", text, format_duration(waited),
               terminal_ && waited > kLongWait ? "\a" : "");
  }
  void clear() const {
    if (shown_ && terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  static size_t columns() {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
  }

  bool terminal_;
  bool shown_ = false;
};

int refuse(int code, const std::string& text) {
  fmt::print(stderr, "nvshare: {}\n", text);
  return code;
}

// A scheduler that is started anew is waited for.
Result<StatusReport> look(SchedulerLink& link) {
  if (link.admin) {
    if (auto status = link.admin->status()) return status;
  }
  auto again = AdminConnection::open(link.runtime_directory);
  if (!again) return again.error();
  link.admin = std::move(*again);
  return link.admin->status();
}

Result<StartCondition> condition_of(const RunOptions& options, const std::string& visible_devices, const StatusReport& status) {
  StartCondition condition;
  condition.free_gpu = options.wait;
  if (options.wait) {
    auto gpus = gpus_listed(status, options.gpu.empty() ? visible_devices : options.gpu);
    if (!gpus) return error_format("--wait: %s", gpus.error().text);
    condition.gpus = std::move(*gpus);
  }
  for (const std::string& name : options.after) {
    const std::vector<uint64_t> ids = tenants_named(status, name);
    if (ids.empty()) fmt::print(stderr, "nvshare: --after {}: there is no such tenant, or it has ended\n", name);
    condition.ended.insert(condition.ended.end(), ids.begin(), ids.end());
  }
  return condition;
}

}  // namespace

Result<int64_t> patience_of(const RunOptions& options) {
  for (const std::string& tenant : options.after) {
    if (auto is_job = check_job(tenant); !is_job) return error_format("--after: %s", is_job.error().text);
  }
  if (options.timeout.empty()) return -1;
  if (!options.wait && options.after.empty())
    return error_format("--timeout bounds the wait of --wait or --after TENANT; neither is there");
  const auto given = parse_duration_ns(options.timeout);
  if (!given) return error_format("--timeout: %s", given.error().text);
  return *given;
}

std::optional<int> wait_to_start(const RunOptions& options, const std::string& visible_devices, SchedulerLink& link) {
  const char* asked = options.wait ? "--wait" : "--after";
  if (!options.wait && options.after.empty()) return std::nullopt;
  const auto patience = patience_of(options);
  if (!patience) return refuse(kExitUsage, patience.error().text);
  if (!link.admin)
    return refuse(kExitCannotRun, fmt::format("{}: only a scheduler that answers you says who has the GPU: {}. Without {} the program "
                                              "begins at once, and waits when it needs the GPU",
                                              asked, link.admin_error, asked));

  const auto began = Clock::now();
  std::optional<StartCondition> condition;
  Line line;
  while (true) {
    std::string missing = "the scheduler";
    if (auto status = look(link)) {
      if (!condition) {
        auto made = condition_of(options, visible_devices, *status);
        if (!made) return refuse(kExitUsage, made.error().text);
        condition = std::move(*made);
      }
      missing = missing_for(*status, *condition);
    }
    const int64_t waited = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began).count();
    if (missing.empty()) {
      line.end("begins", waited);
      return std::nullopt;
    }
    if (*patience >= 0 && waited >= *patience) {
      line.clear();
      return refuse(kExitTimedOut, fmt::format("--timeout {}: it still waits for {}", options.timeout, missing));
    }
    line.show(missing, waited);
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace nvshare::cli
