#include "cli/table.h"

#include <algorithm>
#include <utility>

#include "cli/columns.h"

namespace nvshare::cli {

namespace {

constexpr size_t kGone = 0;          // the width of a column that is left out
constexpr size_t kBetween = 2;       // blanks
constexpr size_t kShortFirst = 24;   // words are shortened so far before a column is left out for them,
constexpr size_t kShortestCell = 8;  // and so far when nothing more can be left out

size_t line_width(const std::vector<size_t>& widths) {
  size_t sum = 0;
  for (const size_t width : widths) sum += width == kGone ? 0 : width + kBetween;
  return sum > 0 ? sum - kBetween : 0;
}

}  // namespace

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(std::max<size_t>(width_of(column.title), 1));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  return widths;
}

std::string Table::draw(int indent) const { return draw_columns(widths(), indent); }

std::string Table::draw_within(size_t columns, std::vector<std::string>& left_out) const {
  std::vector<size_t> widths = this->widths();
  if (columns == 0 || line_width(widths) <= columns) return draw_columns(widths, 0);
  const auto shrink = [&](size_t least) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!columns_[i].shrinks || widths[i] == kGone) continue;
      const size_t more = line_width(widths) - std::min(line_width(widths), columns);
      const size_t floor = std::max(least, width_of(columns_[i].title));
      if (widths[i] > floor) widths[i] = std::max(floor, widths[i] - std::min(widths[i], more));
    }
  };
  shrink(kShortFirst);
  while (line_width(widths) > columns) {
    size_t last = columns_.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] != kGone && columns_[i].rank > 0 && (last == columns_.size() || columns_[i].rank > columns_[last].rank)) last = i;
    }
    if (last == columns_.size()) break;
    widths[last] = kGone;
  }
  shrink(kShortestCell);
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (widths[i] == kGone) left_out.push_back(columns_[i].title);
  }
  return draw_columns(widths, 0);
}

std::string Table::draw_columns(const std::vector<size_t>& widths, int indent) const {
  std::string out;
  auto draw_row = [&](auto cell_at) {
    std::string line(static_cast<size_t>(indent), ' ');
    bool first = true;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] == kGone) continue;
      const std::string cell = shortened(cell_at(i), widths[i]);
      const std::string fill(widths[i] - width_of(cell), ' ');
      if (!std::exchange(first, false)) line += std::string(kBetween, ' ');
      line += columns_[i].align == Align::kRight ? fill + cell : cell + fill;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  draw_row([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) draw_row([&](size_t i) { return i < row.size() ? row[i] : std::string(); });
  return out;
}

}  // namespace nvshare::cli
