#include "replay/recording.h"

#include <string_view>
#include <utility>

namespace nvshare::replay {
namespace {

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

}  // namespace

bool Recording::read() {
  if (!std::getline(lines_, text_)) return false;
  ++number_;
  return true;
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
  auto line = scheduler::decode_trace(text_);
  if (line) return std::optional<Line>(Line{number, std::move(*line)});
  const bool is_last = lines_.peek() == std::istream::traits_type::eof();
  std::optional<Line> next = of_the_next_scheduler();
  if (number == 1 || (!next && !is_last))
    return error_format("line %zu: %.150s; accepted is what nvshare-scheduler --trace wrote", number, line.error().text);
  ++incomplete_;
  return next;
}

}  // namespace nvshare::replay
