#include "cli/top/screen.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "cli/columns.h"

namespace nvshare::cli::top {
namespace {

const char* codes_of(Style style, bool colour) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kTitle:
      return "1";
    case Style::kDim:
      return colour ? "90" : "";
    case Style::kHeading:
    case Style::kSelected:
      return "7";
    case Style::kGood:
      return colour ? "32" : "";
    case Style::kWarning:
      return colour ? "33" : "";
    case Style::kBad:
      return colour ? "31;1" : "1";
    case Style::kTenant0:
      return colour ? "36" : "";
    case Style::kTenant1:
      return colour ? "33" : "";
    case Style::kTenant2:
      return colour ? "32" : "";
    case Style::kTenant3:
      return colour ? "35" : "";
    case Style::kTenant4:
      return colour ? "34" : "";
    case Style::kTenant5:
      return colour ? "31" : "";
  }
  return "";
}

}  // namespace

void Line::add(const std::string& text, Style style) {
  if (text.empty()) return;
  // Nearly all of a screen, and to go over its characters one by one took a tenth of what `top` takes.
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  std::string shown = is_plain ? text : printable(text);
  columns_ += is_plain ? text.size() : width_of(shown);
  if (!spans_.empty() && spans_.back().style == style) {
    spans_.back().text += shown;
  } else {
    spans_.push_back({std::move(shown), style});
  }
}

void Line::fill_to(size_t column, Style style) {
  if (columns_ < column) add(std::string(column - columns_, ' '), style);
}

void Line::cut(size_t columns) {
  if (columns_ <= columns) return;
  const size_t dots = columns < 4 ? 0 : 2;
  size_t left = columns - dots;
  size_t kept = 0;
  for (; kept < spans_.size() && left > 0; ++kept) {
    spans_[kept].text = first_columns(spans_[kept].text, left);
    left -= width_of(spans_[kept].text);
  }
  spans_.resize(kept);
  columns_ = columns - dots - left;
  if (dots > 0) add(std::string(dots + left, '.'), spans_.empty() ? Style::kPlain : spans_.back().style);
}

std::string Line::text() const {
  std::string out;
  for (const Span& span : spans_) out += span.text;
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

std::string Line::ansi(bool colour) const {
  std::string out;
  for (const Span& span : spans_) {
    const std::string codes = codes_of(span.style, colour);
    out += codes.empty() ? span.text : "\033[" + codes + "m" + span.text + "\033[0m";
  }
  return out;
}

std::string text_of(const Screen& screen) {
  std::string out;
  for (const Line& line : screen) out += line.text() + '\n';
  return out;
}

}  // namespace nvshare::cli::top
