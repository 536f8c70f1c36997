// Text from elsewhere for logs, events and terminals: one line of it, whatever bytes it has. Pure, thread-safe; it allocates.
#pragma once

#include <string>
#include <string_view>

namespace nvshare {

// The length of the UTF-8 character that the text begins with; 0: it is none.
inline size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const unsigned lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool is_none = (lead == 0xed && byte(1) >= 0xa0) || (lead == 0xf4 && byte(1) >= 0x90);  // a surrogate, or beyond the last
  return overlong || is_none ? 0 : length;
}

// A line's end, or what turns the order around of what follows, as U+202E does: a name could make a line say something else.
inline bool changes_the_line(std::string_view character) {
  return character == "\u061c" || character == "\u200e" || character == "\u200f" || (character >= "\u2028" && character <= "\u202e") ||
         (character >= "\u2066" && character <= "\u2069");
}

// Control characters, those that change the line, and bytes that are no UTF-8 become question marks. Terminals obey U+0080 to U+009F as
// well, and as single bytes.
inline std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    const auto c = static_cast<unsigned char>(text[i]);
    const bool is_c0 = c < 0x20 || c == 0x7f;
    const bool is_c1 = length == 2 && c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (length == 0 || is_c0 || is_c1 || changes_the_line(text.substr(i, length))) {
      shown += '?';
    } else {
      shown += text.substr(i, length);
    }
    i += length > 0 ? length : 1;
  }
  return shown;
}

}  // namespace nvshare
