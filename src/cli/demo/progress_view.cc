#include "cli/demo/progress_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nvshare::cli::demo {
namespace {

constexpr double kPlainEveryS = 5;
constexpr int kBarWidth = 30;

}  // namespace

std::string bar(double done, int width) {
  const double within = std::clamp(done, 0.0, 1.0);
  const auto full = static_cast<size_t>(std::floor(within * width));
  return fmt::format("[{}{}] {:3.0f} %", std::string(full, '#'), std::string(static_cast<size_t>(width) - full, '.'),
                     std::floor(100 * within));
}

void ProgressView::begin(const std::string& title) {
  fmt::print(out_, "{}\n", title);
  std::fflush(out_);
  drawn_ = 0;
  next_plain_s_ = kPlainEveryS;
}

void ProgressView::show(const std::vector<JobLine>& lines, double elapsed_s) {
  if (columns_ == 0) {
    if (elapsed_s < next_plain_s_) return;
    next_plain_s_ = elapsed_s + kPlainEveryS;
    std::string text;
    for (const JobLine& line : lines) {
      text += fmt::format("{}{} {:.0f} %{}{}", text.empty() ? "" : ", ", line.label, 100 * line.done, line.state.empty() ? "" : " ",
                          line.state);
    }
    fmt::print(out_, "  {:5.1f} s  {}\n", elapsed_s, text);
    std::fflush(out_);
    return;
  }
  erase();
  for (const JobLine& line : lines) {
    std::string text = fmt::format("  {}  {}  {}", line.label, bar(line.done, kBarWidth), line.state);
    // A line that wrapped would be two to draw over.
    if (text.size() >= static_cast<size_t>(columns_)) text.resize(static_cast<size_t>(columns_) - 1);
    fmt::print(out_, "{}\n", text);
  }
  fmt::print(out_, "  {:.1f} s\n", elapsed_s);
  std::fflush(out_);
  drawn_ = lines.size() + 1;
}

void ProgressView::end(const std::string& summary) {
  erase();
  fmt::print(out_, "  {}\n", summary);
  std::fflush(out_);
}

void ProgressView::erase() {
  if (drawn_ > 0) fmt::print(out_, "\x1b[{}A\x1b[J", drawn_);
  drawn_ = 0;
}

}  // namespace nvshare::cli::demo
