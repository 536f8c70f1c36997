// What the fuzz targets share. A target is one LLVMFuzzerTestOneInput; what must hold is required, and aborts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace nvshare::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// An error says what is wrong.
template <typename T>
bool good(const Result<T>& result) {
  if (!result) require(result.error().text[0] != 0, "an error has a text");
  return static_cast<bool>(result);
}

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// The first line, which is taken off the text.
inline std::string_view take_line(std::string_view* text) {
  const size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  *text = end == std::string_view::npos ? std::string_view() : text->substr(end + 1);
  return line;
}

// The first byte, which is taken off; 0 where there is none.
inline uint8_t take_byte(std::string_view* text) {
  if (text->empty()) return 0;
  const auto byte = static_cast<uint8_t>(text->front());
  text->remove_prefix(1);
  return byte;
}

}  // namespace nvshare::fuzz
