#include "kubernetes/dra/quantity.h"

#include "base/parse.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr std::string_view kBinary = "KMGTPE";       // followed by 'i'
constexpr std::string_view kDecimal = "num kMGTPE";  // 10^-9 to 10^18
constexpr int kDigitsMax = 18;
constexpr int64_t kExponentMax = 18;

struct Scaled {
  int64_t digits = 0;
  int tens = 0;  // value = digits * 10^tens * 1024^binary
  int binary = 0;
};

// False: no suffix of a quantity.
bool take_suffix(std::string_view suffix, Scaled* value) {
  if (suffix.empty()) return true;
  if (suffix.size() == 2 && suffix[1] == 'i') {
    const size_t at = kBinary.find(suffix[0]);
    value->binary = static_cast<int>(at) + 1;
    return at != std::string_view::npos;
  }
  if (suffix.size() == 1 && suffix[0] != ' ') {
    const size_t at = kDecimal.find(suffix[0]);
    value->tens += (static_cast<int>(at) - 3) * 3;
    return at != std::string_view::npos;
  }
  if (suffix[0] != 'e' && suffix[0] != 'E') return false;
  suffix.remove_prefix(suffix.size() > 1 && suffix[1] == '+' ? 2 : 1);
  const bool negative = suffix.starts_with('-');
  if (negative) suffix.remove_prefix(1);
  const auto exponent = parse_integer(suffix, 0, kExponentMax);
  if (!exponent) return false;
  value->tens += static_cast<int>(negative ? -*exponent : *exponent);
  return true;
}

// Nothing: no number, or more digits than any amount has.
bool take_digits(std::string_view* text, Scaled* value) {
  int digits = 0;
  bool point = false;
  bool any = false;
  size_t at = 0;
  for (; at < text->size(); ++at) {
    const char c = (*text)[at];
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') break;
    any = true;
    if (value->digits > 0 || c != '0') ++digits;
    if (digits > kDigitsMax) return false;
    value->digits = value->digits * 10 + (c - '0');
    if (point) --value->tens;
  }
  text->remove_prefix(at);
  return any;
}

bool multiply(int64_t* value, int64_t by) { return !__builtin_mul_overflow(*value, by, value) && *value <= kQuantityMost; }

}  // namespace

Result<int64_t> parse_quantity(std::string_view text) {
  const auto shown = static_cast<int>(text.size() > 60 ? 60 : text.size());
  const auto wrong = [&](const char* why) { return error_format("'%.*s' is %s", shown, text.data(), why); };
  Scaled value;
  std::string_view rest = text;
  if (rest.starts_with('+')) rest.remove_prefix(1);
  if (!take_digits(&rest, &value) || !take_suffix(rest, &value)) return wrong("no amount; accepted: such as 20Gi, 1500M, 30 or 2e9");
  // Binary factors first: what they make whole is not lost to rounding.
  for (int i = 0; i < value.binary; ++i) {
    if (!multiply(&value.digits, 1024)) return wrong("more than any amount may be");
  }
  for (; value.tens > 0 && value.digits > 0; --value.tens) {
    if (!multiply(&value.digits, 10)) return wrong("more than any amount may be");
  }
  for (; value.tens < 0 && value.digits > 0; ++value.tens) value.digits = value.digits / 10 + (value.digits % 10 != 0 ? 1 : 0);
  if (value.digits > kQuantityMost) return wrong("more than any amount may be");
  return value.digits;
}

std::string bytes_quantity(int64_t bytes) {
  size_t power = 0;
  while (bytes > 0 && bytes % 1024 == 0 && power < kBinary.size()) {
    bytes /= 1024;
    ++power;
  }
  return std::to_string(bytes) + (power == 0 ? "" : std::string(1, kBinary[power - 1]) + "i");
}

}  // namespace nvshare::kubernetes::dra
