#include "cli/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>

namespace nvshare::cli {
namespace {

// Three significant digits without trailing zeros: 1.5, 12.3, 384.
std::string three_digits(double value) {
  int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

}  // namespace

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.5 and more would round to a four-digit "1024".
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_duration(int64_t nanoseconds) {
  if (nanoseconds <= 0) return "0 s";
  if (nanoseconds < 1'000'000) return "<1 ms";
  double seconds = static_cast<double>(nanoseconds) / 1e9;
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{} s", three_digits(seconds));
  int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {:02} h", whole / 86400, whole % 86400 / 3600);
}

}  // namespace nvshare::cli
