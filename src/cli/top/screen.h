// Text with styles, as lines: what commands draw and a terminal shows. Pure, thread-safe.
#pragma once

#include <string>
#include <vector>

namespace nvshare::cli::top {

enum class Style {
  kPlain,
  kTitle,     // bold
  kDim,       // of little weight
  kHeading,   // a table's head, reversed
  kSelected,  // the row that keys act on, reversed
  kGood,
  kWarning,
  kBad,
  kTenant0,  // six colours that tenants take in turn; their letters tell them apart without
  kTenant1,
  kTenant2,
  kTenant3,
  kTenant4,
  kTenant5,
};

struct Span {
  std::string text;
  Style style = Style::kPlain;
};

// One line of a screen, no newline in it.
class Line {
 public:
  Line() = default;
  explicit Line(const std::string& text, Style style = Style::kPlain) { add(text, style); }

  // What is no UTF-8 or a control character becomes a question mark: names come from programs.
  void add(const std::string& text, Style style = Style::kPlain);
  // Blanks up to column `column`.
  void fill_to(size_t column, Style style = Style::kPlain);
  // Cuts what lies past `columns`; the last two are dots then.
  void cut(size_t columns);

  size_t columns() const { return columns_; }
  std::string text() const;  // without styles and without trailing blanks
  // With the terminal's control sequences; with `colour` false bold and reversed stay.
  std::string ansi(bool colour) const;

 private:
  std::vector<Span> spans_;
  size_t columns_ = 0;
};

using Screen = std::vector<Line>;

// Lines, each ended by a newline.
std::string text_of(const Screen& screen);

}  // namespace nvshare::cli::top
