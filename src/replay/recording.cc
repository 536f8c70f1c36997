#include "replay/recording.h"

#include <string_view>
#include <utility>

#include "scheduler/trace_possible.h"

namespace nvshare::replay {
namespace {

constexpr size_t kLineMax = 64 << 20;  // of ten thousand tenants that all use host memory one has less than a megabyte

std::optional<scheduler::TraceLine> beginning(std::string_view text) {
  auto line = scheduler::decode_trace(text);
  if (!line || !std::holds_alternative<scheduler::TraceStart>(*line)) return std::nullopt;
  return *line;
}

// Schedulers up to 0.2 began in the line that the one before had left incomplete.
std::optional<scheduler::TraceLine> beginning_within(std::string_view text) {
  const size_t at = text.rfind(R"({"config":)");
  return at == std::string_view::npos || at == 0 ? std::nullopt : beginning(text.substr(at));
}

Error is_none(size_t line, const Error& why) {
  return error_format("line %zu: %.150s; accepted is what nvshare-scheduler --trace wrote", line, why.text);
}

}  // namespace

// A line that is longer than any ends where that shows: it is none.
bool Recording::read() {
  text_.clear();
  char part[16384];
  for (bool more = true; more && text_.size() < kLineMax;) {
    lines_.getline(part, sizeof part);
    auto got = static_cast<size_t>(lines_.gcount());
    more = lines_.fail() && !lines_.eof() && !lines_.bad() && got > 0;
    if (lines_.good()) --got;  // the line's end
    text_.append(part, got);
    if (more) lines_.clear();
  }
  if (text_.empty() && lines_.fail()) return false;
  ++number_;
  return true;
}

// Each scheduler's clock begins anew, and only goes on.
Result<std::optional<Recording::Line>> Recording::checked(Line line) {
  if (auto possible = scheduler::check_possible(line.is); !possible) return is_none(line.number, possible.error());
  if (std::holds_alternative<scheduler::TraceStart>(line.is)) first_ = -1;
  if (const auto* traced = std::get_if<scheduler::TraceEvent>(&line.is)) {
    if (first_ < 0) first_ = last_ = traced->now;
    if (traced->now < last_) return is_none(line.number, error_format("the time goes back"));
    if (traced->now - first_ > scheduler::kTraceDurationMax) return is_none(line.number, error_format("that is years after the beginning"));
    last_ = traced->now;
  }
  return std::optional<Line>(std::move(line));
}

// The line that was read is none: whether a scheduler left it so.
std::optional<Recording::Line> Recording::of_the_next_scheduler() {
  std::optional<scheduler::TraceLine> start = beginning_within(text_);
  if (!start && read()) start = beginning(text_);
  if (!start) return std::nullopt;
  return Line{number_, std::move(*start)};
}

Result<std::optional<Recording::Line>> Recording::next() {
  if (!read()) return std::optional<Line>();
  const size_t number = number_;
  if (text_.size() >= kLineMax) return is_none(number, error_format("it has more than %zu MiB", kLineMax >> 20));
  auto line = scheduler::decode_trace(text_);
  if (line) return checked({number, std::move(*line)});
  const bool is_last = lines_.peek() == std::istream::traits_type::eof();
  std::optional<Line> next = of_the_next_scheduler();
  if (number == 1 || (!next && !is_last)) return is_none(number, line.error());
  ++incomplete_;
  if (!next) return std::optional<Line>();
  return checked(std::move(*next));
}

}  // namespace nvshare::replay
