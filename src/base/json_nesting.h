// How deep a text nests, asked before it is parsed: a parsed value is copied, written and compared by recursion, so a text of a million
// '[' would end the program that does it. Pure, no allocation.
#pragma once

#include <cstddef>
#include <string_view>

namespace nvshare {

inline constexpr int kJsonNestingMax = 64;  // a pod at the API server nests about 12 deep

inline bool nests_too_deep(std::string_view json) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kJsonNestingMax) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace nvshare
