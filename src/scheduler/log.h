// The daemon's log: standard error, through spdlog. Routine decisions are debug, joins and leaves info, the unusual warning.
//
// Programs of everybody bring lines about, and whoever reads the log may stop: a line never waits for the reader and never ends the daemon.
// What cannot be written at once, or comes too fast, is dropped and counted, and the next line that can be written says how many.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/printable.h"

namespace nvshare::scheduler {

// So many at once, and then so many a second. Not thread-safe.
class LineRate {
 public:
  LineRate(double burst, double each_second) : burst_(burst), each_second_(each_second), left_(burst) {}
  bool allows(int64_t now_ns);
  uint64_t held_back() const { return held_back_; }
  uint64_t take_held_back() { return std::exchange(held_back_, 0); }

 private:
  double burst_;
  double each_second_;
  double left_;
  int64_t then_ns_ = 0;
  uint64_t held_back_ = 0;
};

// Writes lines to a descriptor that it borrows.
class UnwaitingSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr size_t kLineBytesMax = 2048;  // a pipe takes that much as a whole, or nothing
  // Of lines that are not for debugging.
  static constexpr double kLinesAtOnce = 1000;
  static constexpr double kLinesEachSecond = 100;

  explicit UnwaitingSink(int fd);

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  bool write(const char* text, size_t bytes) const;

  const int fd_;
  bool is_socket_ = false;
  LineRate rate_{kLinesAtOnce, kLinesEachSecond};
  uint64_t dropped_ = 0;
};

// Once, at start. Until then spdlog's own default applies.
void log_to_standard_error();

inline void set_log_level(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

// Routine lines that a tenant's programs bring about, such as joins: a tenant that starts many has a few of them, and one that says how
// many there were. Programs that are tenants of their own count together, by user. Not thread-safe.
class TenantLines {
 public:
  static constexpr double kTenantAtOnce = 20;
  static constexpr double kTenantEachSecond = 0.5;
  static constexpr double kAllAtOnce = 200;
  static constexpr double kAllEachSecond = 10;

  // Whether the line of this tenant, or user, may be written; `more` is what to put behind it, for those that were not.
  bool allows(const std::string& tenant, int64_t now_ns, std::string* more);

 private:
  static constexpr size_t kTenantsMax = 1000;
  std::map<std::string, LineRate> tenants_;
  LineRate all_{kAllAtOnce, kAllEachSecond};
};

// Lets the first message of a kind through, then one per ten seconds, and counts what it held back; of all kinds together no more than
// LineRate says. What a tenant's programs bring about, with names of kinds that they may make up, is bounded for each tenant, so that none
// keeps the warnings about others, or about the scheduler, out of the log. Not thread-safe.
class RepeatedWarnings {
 public:
  static constexpr double kWarningsAtOnce = 100;
  static constexpr double kWarningsEachSecond = 2;

  template <typename... Arguments>
  void warn(const std::string& kind, int64_t now_ns, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    const auto allows = [&](std::string* more) {
      if (!rate_.allows(now_ns)) return false;
      if (const uint64_t others = rate_.take_held_back(); others > 0) *more = fmt::format(" ({} warnings were left out before it)", others);
      return true;
    };
    say(kind, now_ns, allows, format, std::forward<Arguments>(arguments)...);
  }

  // About a program of that tenant or user.
  template <typename... Arguments>
  void warn_of(const std::string& whose, const std::string& kind, int64_t now_ns, fmt::format_string<Arguments...> format,
               Arguments&&... arguments) {
    const auto allows = [&](std::string* more) { return tenants_.allows(whose, now_ns, more); };
    say(kind, now_ns, allows, format, std::forward<Arguments>(arguments)...);
  }

 private:
  static constexpr int64_t kPauseNs = 10'000'000'000;
  static constexpr size_t kKindsMax = 1000;
  struct Last {
    int64_t at_ns = 0;
    uint64_t held_back = 0;
  };

  template <typename Allows, typename... Arguments>
  void say(const std::string& kind, int64_t now_ns, const Allows& allows, fmt::format_string<Arguments...> format,
           Arguments&&... arguments) {
    auto [at, is_new] = last_.try_emplace(kind);
    Last& last = at->second;
    if (!is_new && now_ns - last.at_ns < kPauseNs) {
      ++last.held_back;
      return;
    }
    if (std::string more; allows(&more)) {
      std::string text = fmt::format(format, std::forward<Arguments>(arguments)...);
      if (last.held_back > 0) text += fmt::format(" ({} more since the last such line)", last.held_back);
      spdlog::warn("{}{}", text, more);
    }
    last = {now_ns, 0};
    if (last_.size() > kKindsMax) last_.clear();
  }

  std::map<std::string, Last> last_;
  LineRate rate_{kWarningsAtOnce, kWarningsEachSecond};
  TenantLines tenants_;
};

}  // namespace nvshare::scheduler
