#include "base/parse.h"

namespace nvshare {
namespace {

struct Unit {
  std::string_view suffix;
  uint64_t factor;
};

constexpr uint64_t kRangeMax = INT64_MAX;

constexpr Unit kByteUnits[] = {
    {"", 1},
    {"K", 1000},
    {"M", 1000 * 1000},
    {"G", 1000ULL * 1000 * 1000},
    {"T", 1000ULL * 1000 * 1000 * 1000},
    {"Ki", 1ULL << 10},
    {"Mi", 1ULL << 20},
    {"Gi", 1ULL << 30},
    {"Ti", 1ULL << 40},
};

constexpr Unit kDurationUnits[] = {
    {"", 1000ULL * 1000 * 1000},
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000 * 1000},
    {"s", 1000ULL * 1000 * 1000},
    {"min", 60ULL * 1000 * 1000 * 1000},
    {"h", 3600ULL * 1000 * 1000 * 1000},
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A decimal number as whole + fraction / 10^fraction_digits, and what follows it.
struct Number {
  uint64_t whole = 0;
  uint64_t fraction = 0;
  uint64_t fraction_scale = 1;
  std::string_view rest;
  bool valid = false;
};

Number read_number(std::string_view text) {
  Number number;
  size_t i = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) {
    uint64_t digit = static_cast<uint64_t>(text[i] - '0');
    if (number.whole > (kRangeMax - digit) / 10) return number;
    number.whole = number.whole * 10 + digit;
  }
  if (i == 0) return number;
  if (i < text.size() && text[i] == '.') {
    size_t first = ++i;
    for (; i < text.size() && is_digit(text[i]); ++i) {
      if (number.fraction_scale >= 1000000000) continue;  // nine digits are more than any unit here resolves
      number.fraction = number.fraction * 10 + static_cast<uint64_t>(text[i] - '0');
      number.fraction_scale *= 10;
    }
    if (i == first) return number;
  }
  number.rest = text.substr(i);
  number.valid = true;
  return number;
}

// whole * factor + fraction, or false when out of range.
bool scale(const Number& number, uint64_t factor, uint64_t* out) {
  __extension__ using Wide = unsigned __int128;
  Wide value = static_cast<Wide>(number.whole) * factor;
  value += static_cast<Wide>(number.fraction) * factor / number.fraction_scale;
  if (value > kRangeMax) return false;
  *out = static_cast<uint64_t>(value);
  return true;
}

int length_of(std::string_view text) { return text.size() > 80 ? 80 : static_cast<int>(text.size()); }

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  Number number = read_number(text);
  if (number.valid) {
    std::string_view suffix = number.rest;
    if (suffix.size() > 1 && suffix.back() == 'B') suffix.remove_suffix(1);
    for (const Unit& unit : kByteUnits) {
      uint64_t bytes = 0;
      if (suffix == unit.suffix && (unit.factor > 1 || number.fraction == 0) && scale(number, unit.factor, &bytes)) return bytes;
    }
  }
  return error_format(
      "'%.*s' is not an amount of memory; accepted: bytes, or a number with K, M, G, T, Ki, Mi, Gi or Ti, up to 2^63-1 bytes",
      length_of(text), text.data());
}

Result<int64_t> parse_duration_ns(std::string_view text) {
  Number number = read_number(text);
  if (number.valid) {
    for (const Unit& unit : kDurationUnits) {
      uint64_t ns = 0;
      if (number.rest == unit.suffix && scale(number, unit.factor, &ns)) return static_cast<int64_t>(ns);
    }
  }
  return error_format("'%.*s' is not a duration; accepted: seconds, or a number with ns, us, ms, s, min or h", length_of(text),
                      text.data());
}

Result<int64_t> parse_integer(std::string_view text, int64_t minimum, int64_t maximum) {
  bool negative = !text.empty() && text[0] == '-';
  Number number = read_number(negative ? text.substr(1) : text);
  if (number.valid && number.rest.empty() && number.fraction_scale == 1) {
    int64_t value = static_cast<int64_t>(number.whole);
    if (negative) value = -value;
    if (value >= minimum && value <= maximum) return value;
  }
  return error_format("'%.*s' is not an integer from %lld to %lld", length_of(text), text.data(), static_cast<long long>(minimum),
                      static_cast<long long>(maximum));
}

Result<double> parse_decimal(std::string_view text, double minimum, double maximum) {
  Number number = read_number(text);
  if (number.valid && number.rest.empty()) {
    double value = static_cast<double>(number.whole) + static_cast<double>(number.fraction) / static_cast<double>(number.fraction_scale);
    if (value >= minimum && value <= maximum) return value;
  }
  return error_format("'%.*s' is not a number from %g to %g", length_of(text), text.data(), minimum, maximum);
}

}  // namespace nvshare
