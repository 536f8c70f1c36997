// How much of a line UTF-8 text takes in a terminal, which has names of programs and pods in it. Pure but for the last; thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace nvshare::cli {

// Columns: two for a character of East Asian writing and for most emoji, none for an accent on the one before.
size_t width_of(const std::string& text);

// As much of its beginning as fits into so many columns: one fewer where a character of two would be cut.
std::string first_columns(const std::string& text, size_t columns);

// Cut to `columns`, its end replaced by ".." where something is missing.
std::string shortened(const std::string& text, size_t columns);

// With line ends in place of blanks, so that no line is longer than `columns` unless a word is, and `indent` blanks at the begin of each
// but the first; 0: as it is.
std::string wrapped(const std::string& text, size_t columns, size_t indent = 0);

// Standard output's; 0: it is no terminal.
size_t columns_of_output();

}  // namespace nvshare::cli
