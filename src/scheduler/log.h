// The daemon's log: standard error, through spdlog. Routine decisions are debug, joins and leaves info, the unusual warning.
#pragma once

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/printable.h"

namespace nvshare::scheduler {

// Once, at start. Until then spdlog's own default applies.
inline void log_to_standard_error() { spdlog::set_default_logger(spdlog::stderr_logger_st("nvshare-scheduler")); }

inline void set_log_level(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

// Lets the first message of a kind through, then one per ten seconds, and counts what it held back. Not thread-safe.
class RepeatedWarnings {
 public:
  template <typename... Arguments>
  void warn(const std::string& kind, int64_t now_ns, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    auto [at, is_new] = last_.try_emplace(kind);
    Last& last = at->second;
    if (!is_new && now_ns - last.at_ns < kPauseNs) {
      ++last.held_back;
      return;
    }
    std::string text = fmt::format(format, std::forward<Arguments>(arguments)...);
    if (last.held_back > 0) text += fmt::format(" ({} more since the last such line)", last.held_back);
    spdlog::warn("{}", text);
    last = {now_ns, 0};
    if (last_.size() > kKindsMax) last_.clear();
  }

 private:
  static constexpr int64_t kPauseNs = 10'000'000'000;
  static constexpr size_t kKindsMax = 1000;
  struct Last {
    int64_t at_ns = 0;
    uint64_t held_back = 0;
  };
  std::map<std::string, Last> last_;
};

}  // namespace nvshare::scheduler
