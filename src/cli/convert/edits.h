// Changes of a text by place. Each place is of the text as it was.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nvshare::cli::convert {

class Edits {
 public:
  explicit Edits(const std::string& text) : text_(text) {}

  void insert(size_t at, std::string what) { edits_.push_back({at, at, std::move(what)}); }
  void replace(size_t from, size_t to, std::string what) { edits_.push_back({from, to, std::move(what)}); }
  void remove(size_t from, size_t to) { edits_.push_back({from, to, {}}); }

  // First byte of the line of that place, and the first byte of the next one.
  size_t line_start(size_t at) const;
  size_t next_line(size_t at) const;
  // Blanks before that place, if the line has nothing else there.
  bool begins_line(size_t at) const;
  std::string indent(size_t at) const { return std::string(at - line_start(at), ' '); }
  // The comment that ends the line of that place; empty: none.
  std::string comment_after(size_t at) const;

  const std::string& text() const { return text_; }
  // Changes may not overlap; of those at one place the first that was asked for comes first. Lines end as the text's first line does.
  std::string apply();

 private:
  struct Edit {
    size_t from;
    size_t to;
    std::string what;
  };

  const std::string& text_;
  std::vector<Edit> edits_;
};

}  // namespace nvshare::cli::convert
