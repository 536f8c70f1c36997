// FNV-1a, 64 bits: tells texts apart that nobody makes alike on purpose. No defence against an attacker. Pure.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace nvshare {

constexpr uint64_t fnv_1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The same as 16 hexadecimal digits.
inline std::string fnv_1a_text(std::string_view text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(fnv_1a(text)));
  return digits;
}

}  // namespace nvshare
