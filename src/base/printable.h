// Text from elsewhere for logs, events and terminals: one line of it, whatever bytes it has. Pure, thread-safe; it allocates.
#pragma once

#include <string>
#include <string_view>

namespace nvshare {

inline std::string printable(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return shown;
}

}  // namespace nvshare
