// A table of text: columns as wide as their widest cell, two blanks between them, no trailing blanks. Where that is wider than a terminal,
// columns are left out, the highest rank first, and long cells of columns that may shrink end in "..". Not thread-safe.
#pragma once

#include <string>
#include <vector>

namespace nvshare::cli {

enum class Align { kLeft, kRight };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    int rank = 0;          // 0: never left out
    bool shrinks = false;  // of words: its cells may be shortened
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns; missing ones are drawn empty, surplus ones are not drawn.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }

  // Title line, then the rows, each ended by a newline and begun with `indent` blanks.
  std::string draw(int indent = 0) const;
  // The same within `columns` of a terminal (0: as wide as it is), as far as that goes. Titles of what is left out go to `left_out`, in
  // their order.
  std::string draw_within(size_t columns, std::vector<std::string>& left_out) const;

 private:
  std::vector<size_t> widths() const;
  std::string draw_columns(const std::vector<size_t>& widths, int indent) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nvshare::cli
