// Amounts of memory in messages, for people: "1.5 GiB", of at most three digits below 1000, as nvsharectl shows them. Pure, allocates
// nothing.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>

namespace nvshare {

struct Amount {
  char text[16];
};

// log(LogLevel::kInfo, "%s are in use", amount(bytes).text)
inline Amount amount(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < sizeof kUnits / sizeof kUnits[0]) {  // more would round to a four-digit "1024"
    value /= 1024;
    ++unit;
  }
  char digits[32];
  snprintf(digits, sizeof digits, "%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
  if (char* point = strchr(digits, '.')) {
    char* last = digits + strlen(digits) - 1;
    while (*last == '0') *last-- = 0;
    if (last == point) *point = 0;
  }
  Amount out;
  snprintf(out.text, sizeof out.text, "%.8s %s", digits, kUnits[unit]);
  return out;
}

}  // namespace nvshare
