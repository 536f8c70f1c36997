// A table of text: columns as wide as their widest cell, two blanks between them, no trailing blanks. Not thread-safe.
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
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns; missing ones are drawn empty, surplus ones are not drawn.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }

  // Title line, then the rows, each ended by a newline and begun with `indent` blanks.
  std::string draw(int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nvshare::cli
