#include "cli/table.h"

#include <algorithm>

#include "cli/columns.h"

namespace nvshare::cli {

std::string Table::draw(int indent) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(width_of(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }

  std::string out;
  auto draw_row = [&](auto cell_at) {
    std::string line(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = cell_at(i);
      const std::string fill(widths[i] - width_of(cell), ' ');
      if (i > 0) line += "  ";
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
